"""Measure each layer's share of a compressed model's damage, all others compressed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import cast

from torch import nn

from senseapp.compat.torch_internals import restored
from senseapp.compressions.base import (
    ChannelCompressor,
    CompressionRequest,
    Compressor,
    Prepared,
    WeightCompressor,
)
from senseapp.core.errors import MeasurementFailed
from senseapp.measure.adapted import compressor_for
from senseapp.measure.context import MeasurementContext
from senseapp.metrics import MetricChange
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.reconstruct.repair import Matching
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import Schedule

_MOST_IMAGES = 256  # the error falls with the root of their number, the time of a round grows with it
_LEAST_IMAGES = 32  # shares of fewer are too noisy to change a schedule by
_TRIAL_IMAGES = 16  # whose passes are timed first
_MOST_SECONDS = 120.0  # of one round

Levels = Mapping[str, float]
_Touched = tuple[Collection[str], Mapping[str, Sequence[int]]]
"""Names of the layers that are compressed, and which channels stayed where some went."""


class ConditionalSensitivity:
    """Sensitivity of single layers while all others are compressed by a schedule.

    Attributes:
        levels: what the schedule gives each layer, or first member of a group; without what cannot be carried out.
        couplings: which layers shrink together, where channels go.
    """

    def __init__(
        self, evaluator: ScheduleEvaluator, schedule: Schedule, dense: MeasurementContext, *, repair: bool
    ) -> None:
        self._evaluator, self._metric, self._dense = evaluator, schedule.metric, dense
        compressor = _compressor(evaluator)
        self._targets = compressor.targets
        self._trial: _Weights | _Channels
        self.couplings: tuple[CoupledGroup, ...] = ()
        if isinstance(compressor, ChannelCompressor):
            self._trial, self.couplings = _Channels(compressor, dense.model), compressor.couplings()
        else:
            self._trial = _Weights(cast(WeightCompressor, compressor))
        compressed = {entry.layer: entry.level for entry in schedule.entries if entry.compression != "none"}
        self.levels: Levels = {layer: level for layer, level in compressed.items() if self._trial.can(layer, level)}
        images = JudgingImages.of_set(dense.images, dense)
        outputs = evaluator.profile.num_classes
        self._judge = Judge(dense.task, images, dense, num_outputs=outputs, metrics=(schedule.metric,))
        self._reference = evaluator.reconstruction.reference if repair else None
        sizes = [len(batch) for batch in self._reference.batches] if self._reference else []
        self._batches = [
            index for index in range(len(sizes)) if not index or sum(sizes[: index + 1]) <= len(dense.images)
        ]  # as many as hold these images, one at least

    @classmethod
    def open(cls, evaluator: ScheduleEvaluator, schedule: Schedule, *, repair: bool) -> ConditionalSensitivity | None:
        """Return None where a round would take too long; ``repair`` measures after repair."""
        curves = evaluator.images.curves
        trial = replace(evaluator.dense, images=curves.subset(range(min(_TRIAL_IMAGES, len(curves)))))
        trial.baseline()  # times the passes
        passes = len(schedule.entries) * (len(evaluator.result.levels) + 1) * (2 if repair else 1)
        affordable = int(_MOST_SECONDS / max(1e-9, passes * trial.seconds_per_image))
        count = min(affordable, _MOST_IMAGES, len(curves))
        if count < min(_LEAST_IMAGES, len(curves)):
            return None
        return cls(evaluator, schedule, replace(evaluator.dense, images=curves.subset(range(count))), repair=repair)

    def shares(self) -> Iterator[LayerMeasurement]:
        """Yield each layer's share of the damage at each level that the run measured."""
        keys = [item.key for item in self._evaluator.result.shown if item.status is Status.MEASURED]
        for target in self._targets:
            levels = [level for layer, level in keys if layer == target.layer]
            if not levels:
                continue
            self._evaluator.progress(f"Measuring {target.layer} around the compressed model")
            others = {layer: level for layer, level in self.levels.items() if layer != target.layer}
            without = self._change(others)
            for level in levels:
                yield self._share(target.layer, level, others, without)

    def _share(self, layer: str, level: float, others: Levels, without: MetricChange) -> LayerMeasurement:
        try:
            change = self._change({**others, layer: level})
        except MeasurementFailed as error:
            return LayerMeasurement(layer=layer, level=level, status=Status.FAILED, reason=str(error))
        share = change.delta - without.delta
        own = replace(change, delta=share if math.isfinite(share) else math.inf)
        return LayerMeasurement(layer=layer, level=level, status=Status.MEASURED, changes=(own,))

    def _change(self, levels: Levels) -> MetricChange:
        with ExitStack() as stack:
            layers, kept = stack.enter_context(self._trial.compressed(levels))
            if self._reference is not None:
                scale = self._evaluator.reconstruction.scales_per_channel
                matching = Matching(self._dense.model, self._reference, layers=layers, kept=kept, scale=scale)
                stack.enter_context(matching.fitted(self._batches))
            found = self._judge.judged(self._dense)
        return found.change(self._metric)


def _compressor(evaluator: ScheduleEvaluator) -> Compressor:
    spec = evaluator.result.spec.sensitivity
    measured = {member for item in evaluator.result.shown for member in (item.layer, *item.members)}
    request = CompressionRequest(
        model=evaluator.dense.model,
        layers=tuple(layer for layer in evaluator.profile.layers if layer.name in measured),
        calibration=tuple(evaluator.reconstruction.calibration()),
        seed=spec.seed,
    )
    return compressor_for(spec, request)


class _Weights:
    """Compresses weights of several layers for a while, and keeps the last of each: most stay the same."""

    def __init__(self, compressor: WeightCompressor) -> None:
        self._compressor = compressor
        self._targets = {target.layer: target for target in compressor.targets}
        self._kept: dict[str, tuple[float, Prepared]] = {}

    def can(self, layer: str, level: float) -> bool:
        try:
            return layer in self._targets and bool(self._prepared(layer, level))
        except MeasurementFailed:
            return False

    @contextmanager
    def compressed(self, levels: Levels) -> Iterator[_Touched]:
        with ExitStack() as stack:
            for prepared in [self._prepared(layer, level) for layer, level in levels.items()]:
                stack.enter_context(prepared.active())
            yield {member for layer in levels for member in self._targets[layer].members}, {}

    def _prepared(self, layer: str, level: float) -> Prepared:
        if layer not in self._kept or self._kept[layer][0] != level:
            self._kept[layer] = level, self._compressor.prepare(self._targets[layer], level)
        return self._kept[layer][1]


class _Channels:
    """Takes channels away and puts them back; what is coupled is found once."""

    def __init__(self, compressor: ChannelCompressor, model: nn.Module) -> None:
        self._compressor, self._model = compressor, model

    def can(self, layer: str, level: float) -> bool:
        return any(target.layer == layer for target in self._compressor.targets)

    @contextmanager
    def compressed(self, levels: Levels) -> Iterator[_Touched]:
        kept = self._compressor.kept_channels(levels)
        with restored(self._model.modules()):
            self._compressor.prune(levels)
            yield kept.keys(), kept
