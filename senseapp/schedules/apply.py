"""Compress all layers of a schedule at once, for good, on a private copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

from torch import Tensor, nn

from senseapp.compressions import DENSE_BITS, CompressionConfig, Effect, all_descriptions, get
from senseapp.compressions.base import ChannelCompressor, CompressionRequest, WeightCompressor, build_compressor
from senseapp.core.errors import InvalidSchedule, MeasurementFailed
from senseapp.layers.profile import profile_model
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.schedules.export.base import check_schedule


def configs_for(*measured: CompressionConfig) -> dict[str, CompressionConfig]:
    """Return how each kind of compression is carried out: as runs measured it, by default what they did not."""
    usual = (description.config() for description in all_descriptions())
    return {config.kind: config for config in (*usual, *measured)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedModel:
    """A compressed model; its weights hold what the schedule says.

    Attributes:
        model: the private copy, in ``eval()`` mode, without gradients.
        before: the model as it was.
        after: as it is; differs in shapes where channels were removed.
        reached: the entries that were carried out, with the level truly reached.
        notes: sentences on entries that could not be carried out, and on what a file of weights does not hold.
        kept_channels: by layer or norm that lost output channels, the positions of those that stayed.
        rounded_inputs: contexts inside which layers round their inputs; weights alone are always rounded.
    """

    model: nn.Module
    before: ModelProfile
    after: ModelProfile
    reached: tuple[ScheduleEntry, ...]
    notes: tuple[str, ...] = ()
    kept_channels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rounded_inputs: tuple[Callable[[], AbstractContextManager[object]], ...] = ()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Round the inputs of layers as well inside, where the schedule's compression includes them."""
        with ExitStack() as stack:
            for rounding in self.rounded_inputs:
                stack.enter_context(rounding())
            yield

    def bits(self, layer: str) -> float:
        """Return the bits of each weight of ``layer``; 32 where none were taken away."""
        return next((entry.level for entry in self.reached_by(Effect.BITS) if layer in entry.members), DENSE_BITS)

    def reached_by(self, effect: Effect) -> tuple[ScheduleEntry, ...]:
        """Return the entries of :attr:`reached` whose compression has ``effect`` on weights."""
        return tuple(entry for entry in self.reached if get(entry.compression).effect is effect)


def apply_schedule(
    model: nn.Module,
    schedule: Schedule,
    *,
    profile: ModelProfile,
    configs: Mapping[str, CompressionConfig],
    calibration: Sequence[Tensor],
    seed: int = 0,
) -> AppliedModel:
    """Return a copy of ``model`` with every layer of ``schedule`` compressed as it was measured.

    Sparsity leaves zeros in the weights, quantization leaves the rounded values, pruning leaves smaller tensors.

    Args:
        model: the network; never touched.
        schedule: what to do.
        profile: of ``model``.
        configs: how each kind of compression is carried out, see :func:`configs_for`.
        calibration: batches (N, C, H, W) for data-driven criteria and activation ranges; at least one.
        seed: of the run.

    Raises:
        InvalidSchedule: it belongs to another model, or a layer cannot be compressed in that way.
    """
    check_schedule(schedule, profile)
    applying = _Applying(copy.deepcopy(model).eval().requires_grad_(False), profile, tuple(calibration), seed)
    for kind in sorted({entry.compression for entry in schedule.entries} - {"none"}, key=lambda kind: get(kind).order):
        applying.apply([entry for entry in schedule.entries if entry.compression == kind], configs[kind])
    return applying.applied(profile)


class _Applying:
    """The copy while it is being compressed."""

    def __init__(self, model: nn.Module, profile: ModelProfile, calibration: tuple[Tensor, ...], seed: int) -> None:
        self._model, self._profile = model, profile
        self._calibration, self._seed = calibration, seed
        self._reached: list[ScheduleEntry] = []
        self._notes: list[str] = []
        self._kept: dict[str, tuple[int, ...]] = {}
        self._rounded_inputs: list[Callable[[], AbstractContextManager[object]]] = []

    def applied(self, before: ModelProfile) -> AppliedModel:
        """Return what was done."""
        return AppliedModel(
            model=self._model,
            before=before,
            after=self._profile,
            reached=tuple(self._reached),
            notes=tuple(self._notes),
            kept_channels=self._kept,
            rounded_inputs=tuple(self._rounded_inputs),
        )

    def apply(self, entries: Sequence[ScheduleEntry], config: CompressionConfig) -> None:
        """Carry out the entries of one kind."""
        if config.description.removes_channels:
            self._prune(entries, config)
        else:
            self._change_weights(entries, config)

    def _request(self, names: set[str]) -> CompressionRequest:
        layers = tuple(layer for layer in self._profile.layers if layer.name in names)
        return CompressionRequest(model=self._model, layers=layers, calibration=self._calibration, seed=self._seed)

    def _prune(self, entries: Sequence[ScheduleEntry], config: CompressionConfig) -> None:
        ratios = {entry.layer: entry.level for entry in entries}
        request = self._request({layer.name for layer in self._profile.layers})
        compressor = cast(ChannelCompressor, build_compressor(config, request))
        self._kept = compressor.kept_channels(ratios)
        done = compressor.prune(ratios)
        for entry in entries:
            if entry.layer in done:
                self._reached.append(replace(entry, level=done[entry.layer].achieved_level))
            else:
                self._notes.append(f"{entry.layer} keeps all channels: {100 * entry.level:g} % is less than one.")
        smaller = profile_model(self._model, self._calibration[0][:1])
        self._profile = replace(
            smaller, title=self._profile.title, pretrained=self._profile.pretrained, notes=self._profile.notes
        )

    def _change_weights(self, entries: Sequence[ScheduleEntry], config: CompressionConfig) -> None:
        compressor = cast(WeightCompressor, build_compressor(config, self._request({e.layer for e in entries})))
        targets = {target.layer: target for target in compressor.targets}
        for entry in entries:
            if entry.layer not in targets:
                reason = compressor.not_applicable.get(entry.layer, "it is not among the layers that can be.")
                raise InvalidSchedule(f"{entry.layer} has a {entry.compression} level and cannot take one: {reason}")
            try:
                prepared = compressor.prepare(targets[entry.layer], entry.level)
            except MeasurementFailed as error:
                self._notes.append(f"{entry.layer} was left as it is. {error}")
                continue
            parameter = self._model.get_parameter(self._profile.layer(entry.layer).parameter)
            with prepared.active():
                compressed = parameter.data
            parameter.data = compressed
            self._reached.append(replace(entry, level=prepared.applied.achieved_level))
            if prepared.weight is None:
                self._rounded_inputs.append(prepared.active)
        if self._rounded_inputs:
            self._notes.append("Inputs of layers are rounded while measuring; a file of weights does not hold that.")
