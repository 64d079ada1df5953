"""Estimates of the KL divergence and loss change that each compression causes, for all layers from one pass.

For a layer with input a, let r be the change of its output when its weights are compressed, and g the gradient at
its output of a direction v of the class scores. Then r·g = v·δz for the change δz of the scores, to first order.
A few directions per image (see :mod:`senseapp.sensitivity.quick.directions`) give the KL, in nats: for small changes
it is the Gauss-Newton estimate ½ δzᵀ F δz, and for large ones it saturates as the KL of the softmax does. Positions
are summed before anything is squared. Where the layer's output runs straight into an activation, r and g are taken
after that (see :mod:`senseapp.sensitivity.quick.followers`), so that its bend is exact. Cost: one
forward, a backward pass for each direction, and one forward of each layer per level, or for some layers less
(see :mod:`senseapp.sensitivity.quick.weight_gradients`, and for cheaper ones with precision ``auto``
:mod:`senseapp.sensitivity.quick.integer_answers`).

Source: Martens (2020), JMLR 21, sections 8 and 9 (generalized Gauss-Newton); Theis et al. (2018),
arXiv 1801.05787, equation 6, for pruning by Fisher information.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp.evaluate import add_moments, change_of
from senseapp.results import LayerMeasurement, Status
from senseapp.sensitivity.folding import foldable_norms
from senseapp.sensitivity.layout import micro_batches, precision_context
from senseapp.sensitivity.quick.directions import choose_directions
from senseapp.sensitivity.quick.integer_answers import multiplies_integers
from senseapp.sensitivity.quick.protocol import Key, Responses
from senseapp.sensitivity.quick.recorder import Recorder
from senseapp.sensitivity.quick.responses import responses_of
from senseapp.transforms import Applied

if TYPE_CHECKING:
    from senseapp.sensitivity.sweep import Sweep

__all__ = ["quick_scan"]

_DIRECTIONS = 2
# About twenty seconds on two cores. Estimates are compared best with measurements on the same images.
_MOST_MACS = 4e12
_LEAST_IMAGES, _MOST_IMAGES = 64, 1024
_GRAPH_BYTES = 3 * 2**28  # more is hardly faster, and memory that no pass has used yet is slow

Sums = dict[str, tuple[float, ...]]


def quick_scan(sweep: Sweep) -> Iterator[LayerMeasurement]:
    """Yield an estimate (``estimated=True``) of KL, and of the loss with labels, for each target and level.

    What the scan cannot see gets no estimate, and ``sweep.notes`` says how many those are.
    """
    started = time.perf_counter()
    sums: dict[Key, Sums] = {}
    prepared: dict[Key, Applied] = {}
    norms = _norms_to_fold(sweep)
    integers = _may_round(sweep)
    responses = responses_of(sweep.compressor, sweep.bench.model, sweep.bench.trace, norms, integers=integers)
    try:
        prepared = responses.prepare([item.target for item in sweep.planned], sweep.spec.levels)
        recorder = Recorder(responses.watched, inputs=responses.at_inputs, followers=responses.followers, norms=norms)
        sums = _scan(sweep, responses, recorder, list(prepared))
    except Exception as error:  # the scan is a preview: whatever the model raises under autograd, the run goes on
        _note(sweep, f"There is no quick scan: {type(error).__name__}: {str(error).strip().splitlines()[0][:300]}")
        return
    unseen = len({key[0] for key in prepared.keys() - sums.keys()})
    if unseen:
        _note(sweep, f"The quick scan has no estimate for {unseen} of {len(sweep.planned)} targets.")
    if responses.rounded:
        _note(sweep, f"Precision auto estimated {len(responses.rounded)} convolutions with weights in 8-bit integers.")
    each = (time.perf_counter() - started) / max(1, len(sums))
    for item in sweep.planned:
        for level in sweep.spec.levels:
            key = (item.target.layer, level)
            if key not in sums:
                continue
            applied = prepared[key]
            yield LayerMeasurement(
                layer=item.target.layer,
                level=level,
                status=Status.MEASURED,
                changes=tuple(change_of(name, moments) for name, moments in sums[key].items()),
                estimated=True,
                group=item.target.group,
                members=item.target.members,
                achieved_level=applied.achieved_level,
                removed_params=applied.removed_params,
                removed_macs=applied.removed_macs,
                seconds=each,
            )


def _note(sweep: Sweep, sentence: str) -> None:
    if sentence not in sweep.notes:
        sweep.notes.append(sentence)


def _norms_to_fold(sweep: Sweep) -> dict[str, nn.BatchNorm2d]:
    """Return the norms that recorded passes do without: a sixth of their time, a third of what they hold."""
    if sweep.bench.layout.precision != "fp32":  # folded weights would be rounded in other places
        return {}
    return foldable_norms(sweep.bench.trace, sweep.bench.model)


def _may_round(sweep: Sweep) -> bool:
    layout = sweep.bench.layout
    return sweep.spec.precision == "auto" and layout.precision == "fp32" and multiplies_integers(sweep.bench.device)


def _scan(sweep: Sweep, responses: Responses, recorder: Recorder, keys: list[Key]) -> dict[Key, Sums]:
    """Return the sums over the images of each key that could be estimated on all of them."""
    stop = _num_images(sweep)
    # Drawn for all images at once, so that the cut into batches, which is timed, does not matter.
    generator = torch.Generator().manual_seed(sweep.spec.seed)
    signs = torch.randint(0, 2, (stop, sweep.bench.profile.num_classes), generator=generator) * 2 - 1
    sums: dict[Key, Sums] = {key: {} for key in keys}
    outputs = []
    num_batches = -(-stop // _graph_batch(sweep, recorder.norms))
    for low, high in micro_batches(0, stop, -(-stop // num_batches)):
        output, found = _scan_batch(sweep, responses, recorder, signs[low:high], low)
        outputs.append(output)
        sums = {key: _added(sums[key], found[key]) for key in sums if key in found}
    if not len(sweep.yardstick.baseline):  # what a quick run left to the scan
        sweep.yardstick.baseline = torch.cat(outputs)
    return {key: total for key, total in sums.items() if all(math.isfinite(v) for m in total.values() for v in m)}


def _added(earlier: Sums, later: Sums) -> Sums:
    return {name: add_moments(earlier[name], moments) for name, moments in later.items()} if earlier else later


def _num_images(sweep: Sweep) -> int:
    macs = sum(use.macs for use in sweep.bench.trace.uses.values()) / sweep.bench.trace.batch_size
    passes = 1 + _DIRECTIONS + len(sweep.spec.levels)
    affordable = int(_MOST_MACS / max(1, macs * passes))
    return min(len(sweep.bench.images), max(_LEAST_IMAGES, min(_MOST_IMAGES, affordable)))


def _graph_batch(sweep: Sweep, norms: Collection[str]) -> int:
    """Return how many images a pass may hold: it keeps each output, and gradients there of all directions but one."""
    trace = sweep.bench.trace
    kept = (c for c in trace.calls if c.after == c.index + 1 and not c.passes_on and not c.overwritten)
    held = sum(call.output_bytes for call in kept if call.module not in norms) // trace.batch_size
    most = _GRAPH_BYTES // max(1, _DIRECTIONS * held)
    return max(1, min(sweep.bench.layout.micro_batch * 2, most))


def _scan_batch(
    sweep: Sweep, responses: Responses, recorder: Recorder, signs: Tensor, low: int
) -> tuple[Tensor, dict[Key, Sums]]:
    """Return the uncompressed model's output, float32 (n, classes), and the sums of each key that was seen."""
    high = low + len(signs)
    labels = None if sweep.yardstick.labels is None else sweep.yardstick.labels[low:high]
    with precision_context(sweep.bench.layout.precision, sweep.bench.device):
        scores, calls = recorder.run(sweep.bench.model, torch.cat(sweep.bench.batches(low, high)))
    output = scores.detach().float().cpu()
    directions = choose_directions(output, labels, signs, _DIRECTIONS)

    def seen(name: str) -> None:
        with torch.inference_mode(), precision_context(sweep.bench.layout.precision, sweep.bench.device):
            responses.observe(name, calls[name], high - low, len(directions.vectors))

    recorder.pull(scores, [vector.to(scores.device) for vector in directions.vectors], calls, seen)
    loss = None if labels is None else float(F.cross_entropy(output.double(), labels, reduction="sum"))
    found: dict[Key, Sums] = {}
    for key, pulls in responses.collect().items():
        found[key] = {"kl": (len(signs), 0.0, *_powers(directions.divergence(pulls)))}
        if loss is not None:
            found[key]["loss"] = (len(signs), loss, *_powers(directions.loss_change(pulls)))
    return output, found


def _powers(values: Tensor) -> tuple[float, float, float]:
    """Return the sums of ``values``, of their squares and of their cubes, as means and intervals need them."""
    return float(values.sum()), float(values.square().sum()), float((values**3).sum())
