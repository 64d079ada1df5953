"""Gauss-Newton estimate of the KL divergence that each compression causes, for all layers at once.

For a layer with input a, let r be the change of its output when its weights are compressed, and g the gradient
at its output of a random pull v on the logits with E[v vᵀ] equal to the softmax's Fisher matrix F. Then
(r·g) = v·δz for the change δz of the logits to first order, and ½ E[(r·g)²] = ½ δzᵀ F δz, the second-order term
of the KL divergence, in nats. Positions are summed before squaring. With the true labels' loss gradient instead
of v, r·g is the first-order change of the loss. Cost: one forward, one or two backward passes, and one forward
of each layer per level.

Source: Martens (2020), JMLR 21, sections 8 and 9 (generalized Gauss-Newton); Theis et al. (2018),
arXiv 1801.05787, equation 6, for pruning by Fisher information.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from senseapp.evaluate import add_moments, change_of
from senseapp.results import LayerMeasurement, Status
from senseapp.sensitivity.layout import micro_batches
from senseapp.sensitivity.quick.probes import fisher_probe, loss_gradient
from senseapp.sensitivity.quick.recorder import Recorder
from senseapp.sensitivity.quick.responses import Pull, Responses, responses_of
from senseapp.transforms import Applied

if TYPE_CHECKING:
    from senseapp.sensitivity.sweep import Sweep

__all__ = ["quick_scan"]

_MOST_IMAGES = 256
_GRAPH_BYTES = 2 * 2**30

Key = tuple[str, float]


def quick_scan(sweep: Sweep) -> Iterator[LayerMeasurement]:
    """Yield an estimate (``estimated=True``) of KL, and of the loss with labels, for each target and level.

    Targets that the scan cannot see (weights read without a call of their layer) get none.
    """
    started = time.perf_counter()
    responses = responses_of(sweep.compressor, sweep.bench.model)
    prepared = responses.prepare([item.target for item in sweep.planned], sweep.spec.levels)
    sums: dict[Key, dict[str, tuple[float, ...]]] = {}
    stop = min(_MOST_IMAGES, len(sweep.bench.images))
    for low, high in micro_batches(0, stop, _graph_batch(sweep)):
        for key, moments in _scan_batch(sweep, responses, prepared, low, high).items():
            earlier = sums.get(key)
            sums[key] = {n: add_moments(earlier[n], m) for n, m in moments.items()} if earlier else moments
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


def _graph_batch(sweep: Sweep) -> int:
    """Return how many images a differentiable pass may hold: it keeps every call's output."""
    trace = sweep.bench.trace
    held = sum(call.output_bytes for call in trace.calls if call.after == call.index + 1) // trace.batch_size
    return max(1, min(sweep.bench.layout.micro_batch * 2, _GRAPH_BYTES // max(1, 2 * held)))


def _scan_batch(
    sweep: Sweep, responses: Responses, prepared: dict[Key, Applied], low: int, high: int
) -> dict[Key, dict[str, tuple[float, ...]]]:
    batch = torch.cat(sweep.bench.batches(low, high))
    recorder = Recorder(responses.watched, inputs=responses.at_inputs)
    output = recorder.run(sweep.bench.model, batch)
    generator = torch.Generator().manual_seed(sweep.spec.seed + low)
    directions = [fisher_probe(output.cpu(), generator).to(output.device)]
    labels = sweep.yardstick.labels
    if labels is not None:
        directions.append(loss_gradient(output, labels[low:high].to(output.device)))
    recorder.pull(output, directions)
    found: dict[Key, dict[str, tuple[float, ...]]] = {}
    with torch.inference_mode():
        for key in prepared:
            pulls = responses.pulls(recorder.calls, key, high - low, len(directions))
            if pulls is not None:
                found[key] = _moments(pulls, sweep, low, high)
    return found


def _moments(pulls: Pull, sweep: Sweep, low: int, high: int) -> dict[str, tuple[float, ...]]:
    """Return the sums of the per-image KL (and loss) that the inner products stand for."""
    count = float(high - low)
    kl = pulls[0].double().square() / 2  # (n,)
    moments: dict[str, tuple[float, ...]] = {"kl": (count, 0.0, *_powers(kl))}
    labels = sweep.yardstick.labels
    if labels is not None:
        baseline = torch.nn.functional.cross_entropy(
            sweep.yardstick.baseline[low:high].double(), labels[low:high], reduction="sum"
        )
        moments["loss"] = (count, float(baseline), *_powers(pulls[1].double()))
    return moments


def _powers(values: torch.Tensor) -> tuple[float, float, float]:
    return float(values.sum()), float(values.square().sum()), float((values**3).sum())
