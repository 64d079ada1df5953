"""True passes over a few images for the largest estimates, which are those that are off.

An estimate follows the network's tangent at the uncompressed weights. Far from them units that were silent wake up
and others saturate, which no gradient there can tell, so large estimates are off by factors of five and more, layer by
layer. A pass from the layer on, over a few images, sees all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.measurer import MeasurementJob, Measurer
from senseapp.measure.plan import PlannedTarget, representative_positions
from senseapp.measure.quick.composite import composite, draw_sample
from senseapp.measure.quick.responses import Key
from senseapp.metrics import METRICS
from senseapp.metrics.predictions import Predictions, precise
from senseapp.records.measurement import LayerMeasurement

if TYPE_CHECKING:
    from senseapp.measure.sweep import Sweep


_LARGE_NATS, _NOTABLE_NATS = 0.03, 0.02  # other divergences are scaled so that what is notable is notable here
_SHARE = 0.15  # of the scan's own multiply-accumulates
_FREE_MACS = 2e10  # a second or so, however small the network
_FEWEST_IMAGES, _MOST_IMAGES = 3, 64
_PREPARATION = 0.01  # of a whole pass, to compress a layer


@dataclass(frozen=True, slots=True, kw_only=True)
class TruePasses:
    """The passes that are worth their time, by position, and how many images each is made over."""

    jobs: tuple[MeasurementJob, ...]
    num_images: int

    @classmethod
    def planned(
        cls, means: Mapping[Key, float], targets: list[PlannedTarget], num_images: int, budget: float
    ) -> TruePasses:
        """Take each layer's largest estimate first, from as many images as the budget has for these, then the others.

        ``means`` are in nats, or so scaled that 0.02 is notable; ``budget`` counts passes of one image through the
        network.
        """
        where = {item.target.layer: index for index, item in enumerate(targets)}
        large = sorted((key for key, mean in means.items() if mean >= _LARGE_NATS), key=lambda key: -means[key])
        costs = {key: targets[where[key[0]]].suffix + _PREPARATION for key in large}
        first = {key[0]: key for key in reversed(large)}.values()  # each layer's largest
        large.sort(key=lambda key: key not in first)
        count = min(num_images, _MOST_IMAGES, max(_FEWEST_IMAGES, int(budget / (1 + sum(costs[key] for key in first)))))
        left, taken = budget - count, []
        for key in large:
            if count * costs[key] <= left:
                left -= count * costs[key]
                taken.append(key)
        jobs = [MeasurementJob(index=where[layer], level=level, span=(0, count)) for layer, level in taken]
        return cls(jobs=tuple(sorted(jobs, key=lambda job: job.index)), num_images=count)


class _EachImage(BaselineOutputs):
    """Keeps the divergence of each image in place of sums over images."""

    def moments(self, output: Predictions, start: int, stop: int) -> dict[str, tuple[float, ...]]:
        before, (name,) = precise(self.outputs[start:stop]), self.metrics
        return {name: tuple(METRICS[name].terms(before, precise(output), None)[1].tolist())}


Correction = tuple[dict[Key, float], dict[Key, int]]
"""Factors for estimates, none where none is large, and on how many images each one with a pass was corrected."""


def correct_by_true_passes(sweep: Sweep, found: Mapping[Key, Tensor], scan_passes: float) -> Correction:
    """Pass a few images from the layers with large estimates on, and return how that corrects them.

    ``found`` holds the estimated divergence of each scanned image, (N,), float64; ``scan_passes`` are the passes of one
    image through the network that the scan has cost.
    """
    keys = list(found)
    if not keys:
        return {}, {}
    unit = METRICS[sweep.context.task.divergence].notable / _NOTABLE_NATS
    found = {key: values / unit for key, values in found.items()}
    means = {key: float(values.mean()) for key, values in found.items()}
    macs = sum(use.macs for use in sweep.context.trace.uses.values()) / sweep.context.trace.batch_size
    budget = max(_SHARE * scan_passes, _FREE_MACS / max(1, macs))
    num_images = len(found[keys[0]])
    passes = TruePasses.planned(means, _as_run(sweep), num_images, budget)
    if not passes.jobs:
        return {}, {}
    estimated = torch.stack([found[key] for key in keys])  # (keys, N)
    sample = draw_sample(estimated, passes.num_images)
    measured = {key: values / unit for key, values in _measured(sweep, sample.indices, passes).items()}
    if not measured:
        return {}, {}
    rows = torch.tensor([keys.index(key) for key in measured])
    better = composite(estimated.mean(dim=1), rows, torch.stack(list(measured.values())), sample, num_images)
    factors = {key: float(value) / means[key] for key, value in zip(keys, better, strict=True) if means[key] > 0}
    return factors, {key: len(values) for key, values in measured.items()}


def correction_note(estimates: Iterable[LayerMeasurement]) -> tuple[str, ...]:
    """Return a sentence on the true passes that corrected ``estimates``; none where there were none."""
    passed = [item for item in estimates if item.images_passed]
    if not passed:
        return ()
    layers, images = len({item.layer for item in passed}), max(item.images_passed for item in passed)
    return (
        f"Estimates of {layers} layer{'s' if layers != 1 else ''} were corrected by {len(passed)} true "
        f"pass{'es' if len(passed) != 1 else ''} over {images} images.",
    )


def _as_run(sweep: Sweep) -> list[PlannedTarget]:
    whole = bool(sweep.context.replay_obstacle)
    return [replace(item, suffix=1.0) if whole else item for item in sweep.planned]


def _measured(sweep: Sweep, indices: Tensor, passes: TruePasses) -> dict[Key, Tensor]:
    """Return the true divergence of each image of the sample, float64 (k,), where it is finite."""
    context = replace(sweep.context, layout=replace(sweep.context.layout, levels_per_pass=1))
    if sweep.spec.mode == "quick" and not sweep.context.replay_obstacle:  # exact runs have checked it before
        positions = representative_positions([sweep.planned[job.index] for job in passes.jobs])
        context.check_replay(positions)
        few = replace(context, images=context.images.subset(indices.tolist()))
        few.check_replay_over((0, len(indices)), positions, few.outputs(0, len(indices)))
        if obstacle := few.replay_obstacle:
            sweep.notes.append(f"The true passes of the quick scan ran through the whole model: {obstacle}.")
    else:
        few = replace(context, images=context.images.subset(indices.tolist()))
    measurer = Measurer(few, sweep.compressor, sweep.planned, [])
    found: dict[Key, Tensor] = {}
    name = sweep.context.task.divergence
    for result in measurer.measure(passes.jobs, _EachImage(sweep.baseline.outputs[indices], None, (name,))):
        values = torch.tensor(result.moments.get(name, ()), dtype=torch.float64)
        if len(values) and bool(values.isfinite().all()):
            found[sweep.planned[result.job.index].target.layer, result.job.level] = values
    return found
