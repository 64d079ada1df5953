"""Each layer's share of the damage of a compressed model, measured while all others stay compressed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from torch import nn

from senseapp.errors import MeasurementFailed
from senseapp.metrics import change_of
from senseapp.results import LayerMeasurement, MetricChange, Schedule, Status
from senseapp.results.coupling import CoupledGroup
from senseapp.sensitivity.tally import Yardstick
from senseapp.sensitivity.workbench import Workbench
from senseapp.transforms import (
    ChannelCompressor,
    CompressionRequest,
    Compressor,
    Prepared,
    Target,
    WeightCompressor,
    build_compressor,
)
from senseapp.transforms.pruning_undo import restored
from senseapp.validation.bench import TestBench
from senseapp.validation.matching import Matching, Reference

_MOST_IMAGES = 256
_LEAST_IMAGES = 32
_TRIAL_IMAGES = 16
_MOST_SECONDS = 120.0  # of one round

Levels = Mapping[str, float]


class Around:
    """Measures layers one at a time while all others hold what a schedule gives them.

    Attributes:
        levels: what the schedule gives each layer, or first member of a group; without what cannot be carried out.
        couplings: which layers shrink together, where channels go.
    """

    def __init__(self, bench: TestBench, schedule: Schedule, dense: Workbench, *, repair: bool) -> None:
        self._metric, self._dense = schedule.metric, dense
        self._keys = [item.key for item in bench.result.shown if item.status is Status.MEASURED]
        compressor = _compressor(bench)
        self._targets = compressor.targets
        self._trial: _Trial = _Weights(cast(WeightCompressor, compressor))
        self.couplings: tuple[CoupledGroup, ...] = ()
        if isinstance(compressor, ChannelCompressor):
            self._trial, self.couplings = _Channels(compressor, dense.model), compressor.couplings()
        given = {entry.layer: entry.level for entry in schedule.entries if entry.compression != "none"}
        self.levels: Levels = {layer: level for layer, level in given.items() if self._trial.can(layer, level)}
        self._yardstick = Yardstick(dense.baseline(), dense.images.labels, (schedule.metric,))
        self._reference = bench.reference() if repair else None
        self._batches = _first_batches(self._reference, len(dense.images)) if self._reference else ()
        self._scale = bench.scales_per_channel

    @classmethod
    def open(cls, bench: TestBench, schedule: Schedule, *, repair: bool) -> Around | None:
        """Return None where a round would take too long.

        Args:
            bench: the model and the images.
            schedule: of the run's own compression.
            repair: whether to measure after repair.
        """
        curves = bench.images.curves
        trial = replace(bench.dense, images=curves.subset(range(min(_TRIAL_IMAGES, len(curves)))))
        trial.baseline()  # times the passes
        passes = len(schedule.entries) * (len(bench.result.levels) + 1) * (2 if repair else 1)
        affordable = int(_MOST_SECONDS / max(1e-9, passes * trial.seconds_per_image))
        count = min(affordable, _MOST_IMAGES, len(curves))
        if count < min(_LEAST_IMAGES, len(curves)):
            return None
        return cls(bench, schedule, replace(bench.dense, images=curves.subset(range(count))), repair=repair)

    def shares(self, progress: Callable[[str], None]) -> Iterator[LayerMeasurement]:
        """Yield each layer's share of the damage at each level that the run measured."""
        for target in self._targets:
            levels = [level for layer, level in self._keys if layer == target.layer]
            if not levels:
                continue
            progress(f"Measuring {target.layer} around the compressed model")
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
            compressed = stack.enter_context(self._trial.compressed(levels))
            if self._reference is not None:
                matching = Matching(
                    self._dense.model,
                    self._reference,
                    layers=compressed.layers,
                    kept=compressed.kept,
                    scale=self._scale,
                )
                stack.enter_context(matching.fitted(self._batches))
            output = self._dense.baseline()
        moments = self._yardstick.moments(output, 0, len(output))
        return change_of(self._metric, moments[self._metric])


def _first_batches(reference: Reference, count: int) -> tuple[int, ...]:
    """Return the positions of as many batches as hold ``count`` images, one at least."""
    sizes = [len(batch) for batch in reference.batches]
    return tuple(index for index in range(len(sizes)) if not index or sum(sizes[: index + 1]) <= count)


def _compressor(bench: TestBench) -> Compressor:
    spec = bench.result.spec.sensitivity
    measured = {member for item in bench.result.shown for member in (item.layer, *item.members)}
    request = CompressionRequest(
        model=bench.dense.model,
        layers=tuple(layer for layer in bench.profile.layers if layer.name in measured),
        calibration=tuple(bench.calibration()),
        seed=spec.seed,
    )
    return build_compressor(spec.compression, request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compressed:
    """Names of the layers that are compressed, and which channels stayed where some went."""

    layers: Collection[str]
    kept: Mapping[str, Sequence[int]] = field(default_factory=dict)


class _Trial(Protocol):
    """Compresses several layers of the private model for a while."""

    def can(self, layer: str, level: float) -> bool:
        """Return whether ``layer`` takes ``level``."""
        ...

    def compressed(self, levels: Levels) -> AbstractContextManager[_Compressed]:
        """Compress the layers inside.

        Raises:
            MeasurementFailed: a layer does not take its level.
        """
        ...


class _Weights:
    """Keeps the last compressed weight of each layer: most stay the same from trial to trial."""

    def __init__(self, compressor: WeightCompressor) -> None:
        self._compressor = compressor
        self._targets: dict[str, Target] = {target.layer: target for target in compressor.targets}
        self._kept: dict[str, tuple[float, Prepared]] = {}

    def can(self, layer: str, level: float) -> bool:
        try:
            return layer in self._targets and bool(self._prepared(layer, level))
        except MeasurementFailed:
            return False

    @contextmanager
    def compressed(self, levels: Levels) -> Iterator[_Compressed]:
        with ExitStack() as stack:
            for prepared in [self._prepared(layer, level) for layer, level in levels.items()]:
                stack.enter_context(prepared.active())
            yield _Compressed(layers={member for layer in levels for member in self._targets[layer].members})

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
    def compressed(self, levels: Levels) -> Iterator[_Compressed]:
        kept = self._compressor.kept_channels(levels)
        with restored(self._model.modules()):
            self._compressor.prune(levels)
            yield _Compressed(layers=kept.keys(), kept=kept)
