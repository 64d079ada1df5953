"""Estimates of the divergence and loss change that each compression causes, for all layers from one pass.

For a layer with input a, let r be the change of its output when its weights are compressed, and g the gradient, at
its output, of the inner product of the model's output with a direction v. Then r·g = v·δz to first order, for the
change δz of the model's output. A few directions per image, chosen by the task, give its divergence: for class scores
(see :mod:`senseapp.tasks.directions`) the KL, in nats, which for small changes is the Gauss-Newton
estimate ½ δzᵀ F δz, and for large ones saturates as the KL of the softmax does. Positions are summed before squaring.
Where an activation alone reads what a layer returns, r and g are taken after it: its nonlinearity is exact. Cost: one
forward, a backward pass for each direction, and one forward of each layer per level.

First-order estimates miss units that become active: large estimates are limited to the largest divergence possible on
these images, and replaced by true passes over a few of them (see :mod:`senseapp.measure.quick.true_passes`).

Source: Martens (2020), JMLR 21, sections 8 and 9 (generalized Gauss-Newton); Theis et al. (2018),
arXiv 1801.05787, equation 6, for pruning by Fisher information.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from senseapp.compressions.base import Applied, ChannelCompressor, WeightCompressor
from senseapp.core.errors import first_line_of
from senseapp.measure.accumulation import Key
from senseapp.measure.plan import memory_bytes, micro_batches, precision_context
from senseapp.measure.quick.recorder import Recorder
from senseapp.measure.quick.responses import ChannelResponses, Responses, WeightResponses, find_reach, inner_products
from senseapp.measure.quick.true_passes import true_divergences
from senseapp.measure.sweep import Sweep
from senseapp.metrics import METRICS
from senseapp.metrics.predictions import Gathered, Predictions, stored
from senseapp.networks.network import images_per_pass
from senseapp.records.inputs import MOST_SCANNED, num_previewed
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.tasks import Task
from senseapp.tasks.directions import PartedDirections, ScanDirections

DIRECTIONS = 2  # random signs at the output: each is one backward pass
_MOST_MACS = 4e12  # of a scan, between the fewest and the most images: some minutes on two cores at most
_DRAWN = 512  # directions in all, where images are few and cost little
_GRAPH_BYTES = 3 * 2**28  # on a processor: more is hardly faster, and the first use of memory is slow
Changes = dict[str, Tensor]
"""Per-image changes, (n,), float64, by metric."""
Scanned = tuple[dict[Key, Changes], bool]
Preview = Callable[[Sequence[LayerMeasurement]], None]
"""Takes the estimates of the first images, all at once."""


def quick_scan(sweep: Sweep, preview: Preview | None = None) -> Iterator[LayerMeasurement]:
    """Yield an estimate (``estimated=True``) of the metrics that the task's directions cover, per target and level.

    Targets that cannot be estimated are counted in ``sweep.notes``. If the images take several passes, ``preview``
    receives the estimates from the first one, before their correction by true passes; its time does not count.
    """
    started = time.perf_counter()
    if not sweep.context.task.divergence:
        sweep.note(f"There is no quick scan: {sweep.context.task.label} has no divergence to estimate.")
        return
    if (fixed := images_per_pass(sweep.context.model) or 1) > 1:
        sweep.note(f"There is no quick scan: the network is fixed to {fixed} images at a time.")
        return
    if lacking := sweep.context.abilities.gradients:
        sweep.note(lacking)
        return
    found: dict[Key, Changes] = {}
    prepared: dict[Key, Applied] = {}
    complete = False
    for found, complete in _until_it_fails(sweep, _scan(sweep, prepared)):
        if preview and not complete:
            shown = time.perf_counter()
            preview(tuple(_estimates(sweep, found, prepared)))
            started += time.perf_counter() - shown
    if not complete:
        return
    images_passed = _correct(sweep, found)
    unseen = len({key[0] for key in prepared.keys() - found.keys()})
    if unseen:
        sweep.note(f"The quick scan has no estimate for {unseen} of {len(sweep.planned)} targets.")
    each = (time.perf_counter() - started) / max(1, len(found))
    for estimate in _estimates(sweep, found, prepared):
        yield replace(estimate, images_passed=images_passed.get(estimate.key, 0), seconds=each)


# ---- how many images, draws of directions and passes: bounded by work and by memory, not by a clock


def num_images(sweep: Sweep) -> int:
    """Return how many images are scanned: fewer of a costly network where measurements replace the estimates."""
    images, macs, passes = len(sweep.context.images), _macs(sweep), _passes(sweep)
    if sweep.spec.mode != "quick":
        return num_previewed(images, macs, passes)
    affordable = int(_MOST_MACS / max(1, macs * passes))
    # Whatever they cost, and however little: the error of a mean falls with the root of their number.
    return min(images, max(64, min(MOST_SCANNED, affordable)))


def num_draws(sweep: Sweep, images: int, shape: Sequence[int]) -> int:
    """Return how often directions, of an output of ``shape``, are drawn for each of ``images``.

    The directions of pixels or boxes stand for thousands of numbers, so that one draw leaves the estimate of an image
    uncertain by about its own size: few images need several. Those of class scores are nearly complete, and estimates
    that measurements replace need no more.
    """
    if sweep.context.task.one_tensor or sweep.spec.mode != "quick":
        return 1
    # A number of the output costs as much as 4,000 multiplications, measured at 21 × 520 × 520 of them.
    cost = _macs(sweep) * _passes(sweep) + 4000 * math.prod(shape)
    affordable = int(1e12 / (cost * images))  # a quarter of what images may cost
    return max(1, min(-(-_DRAWN // images), affordable))


def graph_batch(sweep: Sweep) -> int:
    """Return the images per pass, which holds outputs, and the gradients of all directions but one."""
    context, trace = sweep.context, sweep.context.trace
    kept = [c for c in trace.calls if c.after == c.index + 1 and not c.passes_on and not c.overwritten]
    held = DIRECTIONS * sum(call.output_bytes for call in kept) // trace.batch_size
    # On an H200, a sixteenth of its memory was five times as fast as 3 · 2²⁸ bytes.
    allowed = _GRAPH_BYTES if context.device.type == "cpu" else memory_bytes(context.device) // 16
    most = allowed // max(1, held)
    return max(1, min(context.layout.micro_batch * 2, most, images_per_pass(context.model) or most))


def _passes(sweep: Sweep) -> int:
    """Return how many forward passes one draw for an image costs: forward, backward, and one for each level."""
    return 1 + DIRECTIONS + len(sweep.spec.levels)


def _macs(sweep: Sweep) -> float:
    return sweep.context.trace.macs / sweep.context.trace.batch_size


def _estimates(sweep: Sweep, found: dict[Key, Changes], prepared: Mapping[Key, Applied]) -> Iterator[LayerMeasurement]:
    stop, names = _num_scanned(found), next(iter(found.values()), {})
    seen = sweep.baseline.outputs[:stop]
    baselines = {name: sweep.baseline.moments_of(name, seen, 0, stop)[1] for name in names}
    for item in sweep.planned:
        for level in sweep.spec.levels:
            key = (item.target.layer, level)
            if key in found:
                changes = []
                for name, values in found[key].items():
                    sums = (float((values**power).sum()) for power in (1, 2, 3))
                    changes.append(METRICS[name].change((len(values), baselines[name], *sums)))
                yield item.measurement(level, Status.MEASURED, prepared[key], changes=tuple(changes), estimated=True)


def _until_it_fails(sweep: Sweep, scanning: Iterator[Scanned]) -> Iterator[Scanned]:
    try:
        yield from scanning
    except Exception as error:  # the scan is a preview: no error of the model under autograd ends the run
        sweep.note(f"There is no quick scan: {type(error).__name__}: {first_line_of(error, most=300)}")


def _responses(sweep: Sweep) -> Responses:
    context, compressor = sweep.context, sweep.compressor
    if isinstance(compressor, ChannelCompressor):
        return ChannelResponses(compressor, context.model, context.trace)
    return WeightResponses(cast(WeightCompressor, compressor), context.model, context.trace)


def _correct(sweep: Sweep, found: dict[Key, Changes]) -> Mapping[Key, int]:
    """Correct the divergences of ``found`` and return the images of each true pass; on failure, change nothing."""
    name = sweep.context.task.divergence
    divergences = {key: changes[name] for key, changes in found.items()}
    try:
        measured, num_images = true_divergences(sweep, divergences, _num_scanned(found) * _passes(sweep))
    except Exception as error:
        first = first_line_of(error, most=300)
        sweep.note(f"Estimates were not corrected by true passes: {type(error).__name__}: {first}")
        return {}
    for key, divergence in measured.items():
        found[key][name] *= divergence / float(divergences[key].mean())
    return dict.fromkeys(measured, num_images)


def _num_scanned(found: dict[Key, Changes]) -> int:
    return next((len(values) for changes in found.values() for values in changes.values()), 0)


def _scan(sweep: Sweep, prepared: dict[Key, Applied]) -> Iterator[Scanned]:
    """Yield changes by image after the first pass and at the end, and whether these are all of the images."""
    responses = _responses(sweep)
    prepared.update(responses.prepare([item.target for item in sweep.planned], sweep.spec.levels))
    recorder = Recorder(responses.watched, inputs=responses.at_inputs, after=responses.after)
    stop = num_images(sweep)
    task = sweep.context.task
    shape = task.output(sweep.context.trace.output).shape[1:]
    # Each draws image by image in order, so that the batch size, which depends on timing, has no effect.
    generators = _generators(sweep.spec.seed, num_draws(sweep, stop, shape))
    parts: dict[Key, list[Changes]] = {key: [] for key in prepared}
    outputs, reach = Gathered(stop), find_reach(sweep, responses, recorder)
    num_batches = -(-stop // graph_batch(sweep))
    for low, high in micro_batches(0, stop, -(-stop // num_batches)):
        drawn: list[dict[Key, Changes]] = []
        for generator in generators:
            signs = torch.randint(0, 2, (high - low, *shape), generator=generator, dtype=torch.int8) * 2 - 1
            output, changes = _scan_batch(sweep, responses, recorder, signs, low, reach)
            if not drawn:
                outputs.add(output)
            drawn.append(changes)
        found = {  # the mean of each image's changes over the draws
            key: {name: torch.stack([each[key][name] for each in drawn]).mean(0) for name in changes}
            for key, changes in drawn[0].items()
        }
        parts = {key: [*parts[key], found[key]] for key in parts if key in found}
        if low == 0 and high < stop and len(sweep.baseline.outputs):  # a quick run has no baseline to compare with yet
            yield _joined(task, parts, outputs.predictions), False
    if not len(sweep.baseline.outputs):  # the scan is also the baseline of a quick run
        sweep.baseline.outputs = outputs.predictions
        sweep.note(*sweep.prediction_notes())
    yield _joined(task, parts, outputs.predictions), True


def _joined(task: Task, parts: Mapping[Key, list[Changes]], outputs: Predictions) -> dict[Key, Changes]:
    """Return the finite changes of all batches joined, with divergences limited to the largest possible."""
    most = task.largest_divergence(outputs)
    whole = {key: {name: torch.cat([part[name] for part in each]) for name in each[0]} for key, each in parts.items()}
    for changes in whole.values():
        changes[task.divergence] = torch.minimum(changes[task.divergence], most)
    return {key: changes for key, changes in whole.items() if all(v.isfinite().all() for v in changes.values())}


def _generators(seed: int, count: int) -> list[torch.Generator]:
    """Return generators of independent numbers; the first is that of ``seed`` itself."""
    first = torch.Generator().manual_seed(seed)
    others = torch.randint(2**62, (count - 1,), generator=torch.Generator().manual_seed(seed))
    return [first, *(torch.Generator().manual_seed(int(other)) for other in others)]


def _scan_batch(
    sweep: Sweep, responses: Responses, recorder: Recorder, signs: Tensor, low: int, reach: Mapping[str, Tensor]
) -> tuple[Predictions, dict[Key, Changes]]:
    """Return the uncompressed model's predictions, and the changes of each key with observed calls, for one draw."""
    high = low + len(signs)
    task, targets = sweep.context.task, sweep.baseline.targets
    with precision_context(sweep.context.layout.precision, sweep.context.device):
        raw, calls = recorder.run(sweep.context.model, torch.cat(sweep.context.batches(low, high)))
    output = task.output(raw)
    truth = None if targets is None else targets[low:high]
    draw = task.directions(output.detach().float().cpu(), truth, signs, DIRECTIONS)
    products = inner_products(sweep, responses, recorder, output, calls, draw.vectors)
    changes = {key: dict(_within(draw, reach.get(key[0])).changes(each)) for key, each in products.items()}
    return stored(sweep.context.read(raw)), changes


def _within(draw: ScanDirections, places: Tensor | None) -> ScanDirections:
    """Return the directions of changes that reach only ``places``, where these are known."""
    return draw if places is None else cast(PartedDirections, draw).reaching(places)
