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


_TINY = 1e-30
_KNEES = (1e-3, 1e-2, 1e-1, 1.0)  # nats from where on estimates may be off by a power
_LEAST_FITTED = 5
_SLOPES = (-0.8, 4.0)  # above -1, so that the trend never swaps two estimates
_MODEL_VARIANCE = 0.5  # of the log error of estimates far above a tenth of a nat
_LEAST_SCALE, _LEAST_NOISE = 0.02, 0.3


@dataclass(frozen=True, slots=True)
class Sample:
    """Images to make true passes over, ascending, (k,); ``weights`` let sums over them stand for sums over all images.

    ``noise`` is the variance of the weighted estimates of each row, relative to its mean squared, (rows,).
    """

    indices: Tensor
    weights: Tensor
    noise: Tensor


def draw_sample(divergences: Tensor, count: int) -> Sample:
    """Choose ``count`` images that represent all: evenly along the order of their damage, hard ones more often.

    Where few images take nearly all damage, a sample that misses them knows nothing. Nothing is random. ``divergences``
    are estimated, not negative, (rows, N).
    """
    means = divergences.mean(dim=1, keepdim=True)
    importance = _model_variance(means)
    shares = (divergences / means.clamp_min(_TINY) * importance).sum(dim=0) / importance.sum().clamp_min(_TINY)
    chances = _inclusion(shares.clamp_min(1e-6).sqrt(), count)
    order = shares.argsort(stable=True)
    ends = chances[order].cumsum(0)
    points = torch.arange(count, dtype=ends.dtype) + 0.5
    indices = order[torch.searchsorted(ends, points).clamp_max(len(order) - 1)].sort().values
    weights = 1 / chances
    spread = (chances / count * ((divergences - means) * weights * count / len(order)).square()).sum(dim=1)
    noise = (spread / means[:, 0].clamp_min(_TINY).square()).clamp_min(0.25)
    return Sample(indices, weights[indices], noise)


def _inclusion(sizes: Tensor, count: int) -> Tensor:
    """Return chances of at most 1 that sum to ``count``, proportional to ``sizes`` where they are below 1."""
    if count >= len(sizes):
        return torch.ones_like(sizes)
    chances = count * sizes / sizes.sum()
    while bool((chances > 1).any()):
        sure = chances >= 1
        left = count - int(sure.sum())
        chances = torch.where(sure, 1.0, left * sizes / sizes[~sure].sum())
    return chances


def composite(estimates: Tensor, rows: Tensor, measured: Tensor, sample: Sample, num_images: int) -> Tensor:
    """Return better estimates of the mean divergences over all ``num_images``, (rows,), never negative.

    ``estimates``, (rows,), are such means; ``measured``, (m, k), what true passes over the sample found for ``rows``,
    (m,).
    """
    share = sample.weights / sample.weights.sum()
    direct = (measured * share).sum(dim=1)
    rows, measured, direct = (each[direct > 0] for each in (rows, measured, direct))
    if not len(rows):
        return estimates
    count = len(sample.indices)
    missing = 1 - count / num_images  # of the images: a sample of all of them has no error
    seen = ((measured - direct[:, None]) * share).square().sum(dim=1) * count / max(1, count - 1) / direct.square()
    expected = sample.noise[rows] / count
    noise = torch.log1p(expected * missing * float((seen.sum() / expected.sum()).clamp(_LEAST_NOISE, 1.0)))
    model = _model_variance(estimates[rows])
    logs = estimates.clamp_min(_TINY).log()
    errors = direct.log() - logs[rows]
    trend = _trend(estimates, rows, errors, 1 / (model + noise))
    left = errors - trend[rows]
    pull = (model + noise).square().reciprocal() * model
    scale = float((((left.square() - noise) * pull).sum() / (pull * model).sum()).clamp(_LEAST_SCALE, 1.0))
    better = torch.where(estimates > 0, (logs + trend).exp(), 0.0)
    better[rows] = (logs[rows] + trend[rows] + scale * model / (scale * model + noise) * left).exp()
    return better


def _model_variance(estimates: Tensor) -> Tensor:
    """Return the expected variance of the log error of ``estimates``: small ones are second-order, and good."""
    return _MODEL_VARIANCE * estimates / (estimates + 0.1) + 1e-6


def _trend(estimates: Tensor, rows: Tensor, errors: Tensor, precision: Tensor) -> Tensor:
    """Return by how much the log of an estimate of this size is off, for all of ``estimates``: 0 for small ones."""
    best, found = float(precision @ errors.square()), torch.zeros_like(estimates)
    for knee in _KNEES if len(rows) >= _LEAST_FITTED else ():
        shape = torch.log1p(estimates / knee)
        here = shape[rows]
        slope = ((precision * here) @ errors / ((precision * here) @ here + 1)).clamp(*_SLOPES)
        loss = float(precision @ (errors - slope * here).square() + slope.square())
        if loss < best:
            best, found = loss, slope * shape
    return found
