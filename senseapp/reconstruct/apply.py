"""Application of a whole schedule, permanently, to a private copy of the model, and what the model costs after it."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Self, cast

import torch
from torch import Tensor, nn

from senseapp.compressions import base
from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.core.errors import InvalidSchedule, MeasurementFailed
from senseapp.descriptions import DENSE_BITS, BudgetKind, CompressionConfig, Effect, all_descriptions, get
from senseapp.networks.profile import acting_zero_share, profile_model
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import ROUNDED_INPUTS, Schedule, ScheduleEntry, check_schedule
from senseapp.solve.curves import weight_bytes


def configs_for(*measured: CompressionConfig) -> dict[str, CompressionConfig]:
    """Return the configuration of each kind of compression: that of the runs, or the default of other kinds."""
    usual = (description.config() for description in all_descriptions())
    return {config.kind: config for config in (*usual, *measured)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedModel:
    """A compressed private copy of a model, in ``eval()`` mode, with the weights of the schedule.

    ``before`` and ``after`` profile the uncompressed model and the copy; shapes differ if channels were removed.
    ``reached`` are the entries that were applied, with the achieved level, and ``notes`` sentences on others, and on
    effects that a file of weights does not hold. ``kept_channels`` are, by layer or norm that lost output channels, the
    positions of the kept ones. ``rounded_inputs`` are contexts inside which layers round their inputs; weights are
    always rounded.

    By layer, ``constraints`` are other weights that are equally compressed, none for layers with removed channels, and
    ``grids`` the grid of its weight and the scale that the grid's numbers are multiplied by in it; exactly, so what
    changes such a weight changes its scale in place. See :attr:`integers`.
    """

    model: nn.Module
    before: ModelProfile
    after: ModelProfile
    reached: tuple[ScheduleEntry, ...]
    notes: tuple[str, ...] = ()
    kept_channels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rounded_inputs: tuple[Callable[[], AbstractContextManager[object]], ...] = ()
    constraints: Mapping[str, base.UpdateConstraint] = field(default_factory=dict)
    grids: Mapping[str, tuple[base.WeightGrid, Tensor]] = field(default_factory=dict)

    @property
    def integers(self) -> dict[str, IntegerWeight]:
        """The quantized weights as they are now, by layer; without those of float16."""
        weights = {name: self.model.get_parameter(self.after.layer(name).parameter) for name in self.grids}
        return {name: IntegerWeight.of(weights[name], scale, grid) for name, (grid, scale) in self.grids.items()}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Also round the inputs of layers inside the block, if the schedule's compression includes them."""
        with ExitStack() as stack:
            for rounding in self.rounded_inputs:
                stack.enter_context(rounding())
            yield

    def bits(self, layer: str) -> float:
        """Return the bits of each weight of ``layer``; 32 if it is not quantized."""
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

    Sparsity leaves zeros in the weights, quantization rounded values, pruning smaller tensors. ``configs`` configure
    each kind, see :func:`configs_for`; ``calibration`` are batches (N, C, H, W), at least one, for data-driven criteria
    and activation ranges.

    Raises InvalidSchedule if it belongs to another model, or a layer cannot be compressed in that way.
    """
    check_schedule(schedule, profile)
    private = copy.deepcopy(model).eval().requires_grad_(False)
    applied = AppliedModel(model=private, before=profile, after=profile, reached=())
    for kind in sorted({entry.compression for entry in schedule.entries} - {"none"}, key=lambda kind: get(kind).order):
        entries, config = [entry for entry in schedule.entries if entry.compression == kind], configs[kind]
        prunes, names = config.description.removes_channels, {entry.layer for entry in entries}
        layers = tuple(layer for layer in applied.after.layers if prunes or layer.name in names)  # groups have others
        request = base.CompressionRequest(model=private, layers=layers, calibration=tuple(calibration), seed=seed)
        compressor = base.build_compressor(config, request)
        if prunes:
            applied = _pruned(applied, entries, cast(base.ChannelCompressor, compressor), calibration[0][:1])
        else:
            applied = _with_weights(applied, entries, cast(base.WeightCompressor, compressor))
    return applied


def _pruned(
    applied: AppliedModel, entries: Sequence[ScheduleEntry], compressor: base.ChannelCompressor, image: Tensor
) -> AppliedModel:
    ratios = {entry.layer: entry.level for entry in entries}
    kept, done = compressor.kept_channels(ratios), compressor.prune(ratios)
    reached = [replace(each, level=done[each.layer].achieved_level) for each in entries if each.layer in done]
    left = [each for each in entries if each.layer not in done]
    notes = [f"{each.layer} keeps all channels: {100 * each.level:g} % is less than one." for each in left]
    old, smaller = applied.after, profile_model(applied.model, image)
    return replace(
        applied,
        after=replace(smaller, title=old.title, pretrained=old.pretrained, notes=old.notes),
        reached=(*applied.reached, *reached),
        notes=(*applied.notes, *notes),
        kept_channels=kept,
    )


def _with_weights(
    applied: AppliedModel, entries: Sequence[ScheduleEntry], compressor: base.WeightCompressor
) -> AppliedModel:
    reached, notes, inputs = list(applied.reached), list(applied.notes), list(applied.rounded_inputs)
    constraints, grids = dict(applied.constraints), dict(applied.grids)
    targets = {target.layer: target for target in compressor.targets}
    for entry in entries:
        if entry.layer not in targets:
            reason = compressor.not_applicable.get(entry.layer, "it is not among the layers that can be.")
            raise InvalidSchedule(f"{entry.layer} has a {entry.compression} level and cannot take one: {reason}")
        try:
            prepared = compressor.prepare(targets[entry.layer], entry.level)
        except MeasurementFailed as error:
            notes.append(f"{entry.layer} was left as it is. {error}")
            continue
        if prepared.scale is not None and (grid := prepared.constraint.grid) is not None:
            grids[entry.layer] = grid, prepared.scale.clone()
        prepared.parameter.data = prepared.weight()
        reached.append(replace(entry, level=prepared.applied.achieved_level))
        constraints[entry.layer] = constraints.get(entry.layer, base.UpdateConstraint()) | prepared.constraint
        if prepared.inputs is not None:
            inputs.append(prepared.inputs)
    if inputs:
        notes.append(ROUNDED_INPUTS)
    return replace(
        applied,
        reached=tuple(reached),
        notes=tuple(notes),
        rounded_inputs=tuple(inputs),
        constraints=constraints,
        grids=grids,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Costs of one model, each counted exactly.

    ``params`` are all parameters, biases and norms included; ``weights`` those of compressible layers, ``zeros`` of
    which are zero, with ``average_bits``. ``compact_bytes`` are what budgets of bytes count, which is not the size of a
    file: the compressible weights at their bits, dense or as one bit per position and the non-zero values, whichever is
    smaller for a layer; everything else as it was loaded, without scales. ``macs`` are of one image, less those of
    zeros in layers that were made sparse; weights that were zero before, or were rounded to zero, count in full, as in
    budgets.
    """

    params: float
    weights: float
    zeros: float
    compact_bytes: float
    macs: float
    average_bits: float

    def figure(self, kind: BudgetKind, before: Self) -> float:
        """Return the figure of a budget of ``kind``: the fraction removed relative to ``before``, or the average bits.

        As in budgets, weights that were zero before count as removed.
        """
        if kind == "bits":
            return self.average_bits
        if kind == "params":
            return 1 - (self.weights - self.zeros) / before.weights
        if kind == "bytes":
            return (before.compact_bytes - self.compact_bytes) / (4 * before.weights)
        return 1 - self.macs / before.macs if before.macs else 0.0


def sizes_of(applied: AppliedModel, dense: nn.Module) -> tuple[ModelSize, ModelSize]:
    """Return the costs of the model before, as it was loaded, and after."""
    untouched = AppliedModel(model=dense, before=applied.before, after=applied.before, reached=())
    return replace(_size(untouched), compact_bytes=applied.before.num_bytes), _size(applied)


def _size(applied: AppliedModel) -> ModelSize:
    weights = zeros = skipped_macs = stored = bits = 0.0
    sparse = {member for entry in applied.reached_by(Effect.ZEROS) for member in entry.members}
    seen: set[int] = set()
    for layer in applied.after.layers:
        parameter = applied.model.get_parameter(layer.parameter)
        if id(parameter) in seen:  # a tied weight is stored once
            continue
        seen.add(id(parameter))
        count, empty = parameter.numel(), parameter.numel() - int(parameter.count_nonzero())
        weights, zeros, bits = weights + count, zeros + empty, bits + count * applied.bits(layer.name)
        stored += weight_bytes(count, zeros=empty, bits=applied.bits(layer.name)) - 4 * count
        if layer.name in sparse:
            skipped_macs += layer.macs * acting_zero_share(applied.model, layer)
    return ModelSize(
        params=applied.after.num_params,
        weights=weights,
        zeros=zeros,
        compact_bytes=applied.after.num_bytes + stored,
        macs=applied.after.macs - skipped_macs,
        average_bits=bits / weights,
    )


def pass_seconds(models: Sequence[nn.Module], image: Tensor) -> list[list[float]]:
    """Return, for each model, the seconds of 21 passes of ``image``, (N, C, H, W).

    The models alternate, so that other work on the machine affects all alike.
    """
    seconds: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for turn in range(22):
            for model, spent in zip(models, seconds, strict=True):
                started = time.perf_counter()
                model(image)
                if image.is_cuda:
                    torch.cuda.synchronize(image.device)
                if turn:  # the first pass prepares kernels
                    spent.append(time.perf_counter() - started)
    return seconds
