"""True passes over a few images for the largest estimates, which are the least accurate.

Estimates are first-order at the uncompressed weights. Far from them, inactive units become active and others saturate,
which no gradient there shows, so large estimates are off by factors of five and more, differently in each layer. A pass
from the layer on, over a few images, includes these effects.
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

_LARGE_NATS, _NOTABLE_NATS = 0.03, 0.02  # other divergences are scaled to the same notable value
_SHARE = 0.15  # of the scan's own multiply-accumulates
_FREE_MACS = 2e10  # a second or so, however small the network
# two leave one degree of freedom for their spread; more than 64 cost more than the correction gains
_FEWEST_IMAGES, _MOST_IMAGES = 3, 64
_PREPARATION = 0.01  # of a whole pass, to compress a layer


@dataclass(frozen=True, slots=True, kw_only=True)
class TruePasses:
    """Selected passes, by position, and the number of images that each runs on."""

    jobs: tuple[MeasurementJob, ...]
    num_images: int

    @classmethod
    def planned(
        cls, means: Mapping[Key, float], targets: list[PlannedTarget], num_images: int, budget: float
    ) -> TruePasses:
        """Select each layer's largest estimate first, on as many images as the budget allows for them, then others.

        ``means`` are in nats, or scaled so that 0.02 is notable; ``budget`` is in passes of one image through the
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
    """Returns the divergence of each image instead of sums over images."""

    def moments(self, output: Predictions, start: int, stop: int) -> dict[str, tuple[float, ...]]:
        before, (name,) = precise(self.outputs[start:stop]), self.metrics
        return {name: tuple(METRICS[name].terms(before, precise(output), None)[1].tolist())}


Correction = tuple[dict[Key, float], dict[Key, int]]
"""Factors for estimates, empty if none is large, and the number of images of each true pass."""


def correct_by_true_passes(sweep: Sweep, found: Mapping[Key, Tensor], scan_passes: float) -> Correction:
    """Run true passes over a few images for large estimates, and return the corrections.

    ``found`` holds the estimated divergence of each scanned image, (N,), float64; ``scan_passes`` is the cost of the
    scan in passes of one image through the network.
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
    """Return a sentence on the true passes that corrected ``estimates``; empty without such passes."""
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
    if sweep.spec.mode == "quick" and not sweep.context.replay_obstacle:  # exact runs have checked it already
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


_TINY = 1e-30  # no division by zero, no logarithm of it
_KNEES = (1e-3, 1e-2, 1e-1, 1.0)  # nats above which the error of estimates may follow a power law
_LEAST_FITTED = 5  # points for one slope, so that it is not the noise of two
_SLOPES = (-0.8, 4.0)  # above -1, so that the trend preserves the order of estimates
_MODEL_VARIANCE = 0.5  # of the log error of estimates far above a tenth of a nat
# neither factor of the expected variances falls lower, however well the sample happens to agree
_LEAST_SCALE, _LEAST_NOISE = 0.02, 0.3


@dataclass(frozen=True, slots=True)
class Sample:
    """Images for true passes, ascending, (k,); sums over them times ``weights`` estimate sums over all images.

    ``noise`` is the variance of the weighted estimates of each row, relative to its squared mean, (rows,).
    """

    indices: Tensor
    weights: Tensor
    noise: Tensor


def draw_sample(divergences: Tensor, count: int) -> Sample:
    """Choose ``count`` images that represent all: evenly spaced in the order of their damage, hard ones more often.

    If few images carry nearly all damage, a sample without them is uninformative. The choice is deterministic.
    ``divergences`` are estimates, not negative, (rows, N).
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
    """Return inclusion probabilities of at most 1 that sum to ``count``, proportional to ``sizes`` if below 1."""
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

    ``estimates``, (rows,), are the first-order means; ``measured``, (m, k), are the true divergences of the sample for
    ``rows``, (m,).
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
    weights = (model + noise).square().reciprocal() * model
    scale = float((((left.square() - noise) * weights).sum() / (weights * model).sum()).clamp(_LEAST_SCALE, 1.0))
    better = torch.where(estimates > 0, (logs + trend).exp(), 0.0)
    better[rows] = (logs[rows] + trend[rows] + scale * model / (scale * model + noise) * left).exp()
    return better


def _model_variance(estimates: Tensor) -> Tensor:
    """Return the expected variance of the log error of ``estimates``: second-order, so little for small ones."""
    return _MODEL_VARIANCE * estimates / (estimates + 0.1) + 1e-6


def _trend(estimates: Tensor, rows: Tensor, errors: Tensor, precision: Tensor) -> Tensor:
    """Return the fitted log error for the size of each of ``estimates``: 0 for small ones."""
    best, found = float(precision @ errors.square()), torch.zeros_like(estimates)
    for knee in _KNEES if len(rows) >= _LEAST_FITTED else ():
        shape = torch.log1p(estimates / knee)
        here = shape[rows]
        slope = ((precision * here) @ errors / ((precision * here) @ here + 1)).clamp(*_SLOPES)
        loss = float(precision @ (errors - slope * here).square() + slope.square())
        if loss < best:
            best, found = loss, slope * shape
    return found
