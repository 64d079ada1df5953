"""True passes over a few images, which replace the largest estimates, the least accurate ones.

Estimates are first-order at the uncompressed weights. Far from them, inactive units become active and others saturate,
which no gradient there shows, so large estimates are off by factors of five and more, differently in each layer. A pass
from the layer on, over a few images, includes these effects.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from senseapp.core.texts import plural
from senseapp.measure.accumulation import BaselineOutputs, Key
from senseapp.measure.measurer import MeasurementJob, Measurer
from senseapp.measure.plan import representative_positions
from senseapp.measure.sweep import Sweep
from senseapp.metrics import METRICS
from senseapp.records.measurement import LayerMeasurement

_LARGE = 1.5  # times the notable divergence: estimates from here on are checked
_PREPARATION = 0.01  # of a whole pass, to compress a layer


def true_divergences(sweep: Sweep, found: Mapping[Key, Tensor], scan_passes: float) -> tuple[dict[Key, float], int]:
    """Return the divergences by true passes that replace large estimates, and the number of images of each pass.

    ``found`` holds the estimated divergence of each scanned image, (N,), float64; ``scan_passes`` is the cost of the
    scan in passes of one image through the network.
    """
    macs = sweep.context.trace.macs / sweep.context.trace.batch_size
    budget = max(0.15 * scan_passes, 2e10 / max(1, macs))  # about a second at least, however small the network
    keys, num_images = checked_estimates(sweep, found, budget)
    if not keys:
        return {}, 0
    images = (torch.arange(num_images) + 0.5) * len(found[keys[0]]) / num_images  # at even distances
    return _measured(sweep, keys, images.long()), num_images


def checked_estimates(sweep: Sweep, found: Mapping[Key, Tensor], budget: float) -> tuple[list[Key], int]:
    """Return the estimates to check and the number of images: each layer's largest first, then others.

    ``budget`` is in passes of one image through the network.
    """
    means = {key: float(values.mean()) for key, values in found.items()}
    least = _LARGE * METRICS[sweep.context.task.divergence].notable
    whole = bool(sweep.context.replay_obstacle)
    shares = {item.target.layer: 1.0 if whole else item.suffix for item in sweep.planned}
    large = sorted((key for key, mean in means.items() if mean >= least), key=lambda key: -means[key])
    first = {key[0]: key for key in reversed(large)}.values()  # each layer's largest
    large.sort(key=lambda key: key not in first)
    needed = 1 + sum(shares[layer] + _PREPARATION for layer, _ in first)
    num_images = min(max(map(len, found.values()), default=0), 64, max(3, int(budget / needed)))
    left, taken = budget - num_images, []
    for key in large:
        cost = num_images * (shares[key[0]] + _PREPARATION)
        if cost <= left:
            left -= cost
            taken.append(key)
    return taken, num_images


def _measured(sweep: Sweep, keys: Iterable[Key], images: Tensor) -> dict[Key, float]:
    """Return the true divergence over ``images``, (k,), of each key for which it is finite."""
    context = replace(sweep.context, images=sweep.context.images.subset(images.tolist()))
    name, span = context.task.divergence, (0, len(images))
    where = {item.target.layer: index for index, item in enumerate(sweep.planned)}
    jobs = sorted(
        (MeasurementJob(index=where[layer], level=level, span=span) for layer, level in keys), key=lambda job: job.index
    )
    checked = sweep.spec.mode != "quick" or bool(context.replay_obstacle)  # exact runs have checked all their images
    if not checked:
        positions = representative_positions([sweep.planned[job.index] for job in jobs])
        context.check_replay(span, positions, context.outputs(*span))
        if context.replay_obstacle:
            sweep.notes.append(
                f"The true passes of the quick scan ran through the whole model: {context.replay_obstacle}."
            )
    baseline = BaselineOutputs(sweep.baseline.outputs[images], None, (name,))
    found: dict[Key, float] = {}
    for result in Measurer(context, sweep.compressor, sweep.planned, []).measure(jobs, baseline):
        if not result.reason:
            found[sweep.planned[result.job.index].target.layer, result.job.level] = (
                METRICS[name].change(result.moments[name]).delta
            )
    return {key: value for key, value in found.items() if math.isfinite(value)}


def correction_note(estimates: Iterable[LayerMeasurement]) -> tuple[str, ...]:
    """Return a sentence on the true passes that replaced ``estimates``; empty without such passes."""
    passed = [item for item in estimates if item.images_passed]
    if not passed:
        return ()
    layers, images = len({item.layer for item in passed}), max(item.images_passed for item in passed)
    return (f"Large estimates of {plural(layers, 'layer')} were replaced by measurements on {images} images.",)
