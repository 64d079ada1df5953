"""Diagnosis of a fragile layer: outliers in its weights and input, and the measured effect of remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from senseapp.compressions.base import find_weights
from senseapp.compressions.quantization.activations import observe_inputs
from senseapp.core.errors import MeasurementFailed
from senseapp.core.steps import OptionalSteps
from senseapp.metrics import change_of
from senseapp.networks.profile import CONVOLUTIONS, profile_model
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.repair_choice import crossed
from senseapp.reconstruct.repair import Repair
from senseapp.records.layer_findings import Diagnosis, Finding, Remedy
from senseapp.records.measurement import change_in
from senseapp.solve.curve_set import damage_metric
from senseapp.solve.problem import manual_schedule

_FAR = 8.0
"""Times the median of the other channels: further than channels of trained networks usually lie apart."""


def diagnose(evaluator: ScheduleEvaluator, layer: str, level: float) -> Diagnosis:
    """Look at ``layer``, and measure it alone at ``level`` as the run did and with each remedy.

    All are measured on the images that repairs are fitted to, with a fit that has not seen the image.

    Raises:
        MeasurementFailed: it cannot be measured at that level.
    """
    evaluator.progress(f"Looking at {layer}")
    spec = evaluator.result.spec.sensitivity
    findings = findings_of(evaluator.dense.model, evaluator.calibration(), layer)
    metric, images = damage_metric(evaluator.result), evaluator.repair_images
    schedule = manual_schedule(evaluator.result, {layer: level})
    evaluator.progress("Measuring what would help")
    applied = evaluator.apply(schedule)
    change = change_in(evaluator.judged(applied, images).changes, metric)
    if change is None:
        raise MeasurementFailed(f"{layer} has no figure of {metric} at this level.")
    remedies = []
    for label, config in spec.compression.variants:
        other = replace(evaluator, configs={**evaluator.configs, config.kind: config}).apply(schedule)
        remedies.append(Remedy(label=label, change=evaluator.judged(other, images).change(metric)))
    repairs: list[tuple[str, Repair | None]] = [("Repair without training", evaluator.matching(applied))]
    if not spec.adapted:
        repairs.append(("Adapted weights", evaluator.adaptation(applied)))
    for label, repair in repairs:
        sums = None if repair is None else crossed(evaluator, applied, repair, OptionalSteps(evaluator.progress))
        if sums is not None:
            remedies.append(Remedy(label=label, change=change_of(metric, sums[metric])))
    remedies.sort(key=lambda each: each.change.delta)
    return Diagnosis(layer=layer, level=level, findings=findings, change=change, remedies=tuple(remedies))


def findings_of(model: nn.Module, batches: Sequence[Tensor], layer: str) -> tuple[Finding, ...]:
    """Return outliers in the weights of ``layer`` and its inputs, the largest first."""
    profile = next(each for each in profile_model(model, batches[0]).layers if each.name == layer)
    weights, _ = find_weights(model, (profile,))
    if layer not in weights:
        return ()
    module = weights[layer].module
    weight = module.get_parameter(weights[layer].attribute).detach().float()
    found = [*_of_weight(_channels_first(module, weight)), *_of_input(model, module, batches)]
    return tuple(sorted(found, key=lambda each: -each.times))


def _channels_first(module: nn.Module, weight: Tensor) -> Tensor:
    """Return |weight| with output channels first and the rest in one, (O, n)."""
    axis = 1 if isinstance(module, CONVOLUTIONS) and module.transposed else 0
    return weight.abs().movedim(axis, 0).flatten(1)


def _times(peaks: Tensor) -> tuple[int, float]:
    """Return the channel of the largest of ``peaks``, (C,), and how many times the median of all it is."""
    alive = peaks[peaks > 0]
    channel = int(peaks.argmax())
    return channel, float(peaks[channel] / alive.median()) if len(alive) > 1 else 1.0


def _of_weight(weight: Tensor) -> Iterator[Finding]:
    peaks = weight.amax(1)
    channel, times = _times(peaks)
    if times <= _FAR:
        return
    rest = weight[channel].sort(descending=True).values[1:]
    if len(rest) and float(rest[0]) > float(peaks[channel]) / times * _FAR / 2:
        sentence = f"Output channel {channel} has weights {times:.0f} times as large as the median channel's."
        yield Finding(kind="scaled channel", sentence=sentence, times=times)
    else:
        sentence = (
            f"One weight of output channel {channel} is {times:.0f} times as large as the median channel's largest."
        )
        yield Finding(kind="outlier weight", sentence=sentence, times=times)


def _of_input(model: nn.Module, module: nn.Module, batches: Sequence[Tensor]) -> Iterator[Finding]:
    axis = 1 if isinstance(module, CONVOLUTIONS) else -1
    peaks: list[Tensor] = []

    def watch(inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].float().abs().movedim(axis, 0).flatten(1)  # (C, ...)
        peaks.append(values.amax(1))

    observe_inputs(model, [(module, watch)], batches)
    if not peaks:
        return
    channel, times = _times(torch.stack(peaks).amax(0))
    if times > _FAR:
        yield Finding(
            kind="outlier input",
            sentence=f"Channel {channel} of its input is {times:.0f} times as large as the median channel, so that one "
            "range for all leaves few steps for the others.",
            times=times,
        )
