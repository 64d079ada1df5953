"""Costs of a model before and after compression, and its compressed weights in a small file with integers.

Repair may have scaled whole channels after rounding, so integers and scales are derived again from the current weights,
and the weights restored from the file are compared with them before anything is written.
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import safetensors.torch
import torch
from torch import Tensor, nn

from senseapp.compressions.quantization.grid import GRIDS
from senseapp.descriptions import BudgetKind, Effect
from senseapp.networks.profile import acting_zero_share
from senseapp.reconstruct.apply import AppliedModel
from senseapp.records.deployment import INTEGERS, SPARSE
from senseapp.solve.curves import weight_bytes

_PASSES = 21
_GZIP_LEVEL = 6  # of gzip; 9 takes five times as long for half a percent
_TOLERANCE = 2.0**-22  # relative, two binary digits of float32: scaling a rounded weight rounds again
_PEAKS = 6  # below the largest integer, of which one is that of some row; all of 4 bits
_NUDGES = (0, 1, -1, 2, -2)  # of a scale, in units of its last place: the largest weight determines it up to rounding
_FLOAT8_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Costs of one model, each counted exactly.

    Attributes:
        params: all parameters, biases and norms included.
        weights: numbers in the weights of compressible layers, ``zeros`` of which are zero.
        compact_bytes: the size that budgets of bytes count, which is not that of a file: the compressible weights at
            their bits, stored dense or as one bit per position and the non-zero values, whichever is smaller for a
            layer; everything else as it was loaded. Scales of quantized weights are not counted.
        macs: multiply-accumulates of one image through the whole model, less those of zeros in layers that were made
            sparse; weights that were zero before, or were rounded to zero, count in full, as in budgets.
        average_bits: of the compressible weights.
    """

    params: float
    weights: float
    zeros: float
    compact_bytes: float
    macs: float
    average_bits: float

    def figure(self, kind: BudgetKind, before: ModelSize) -> float:
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


def latency(seconds: Sequence[float]) -> float:
    """Return the lower quartile of the seconds of several passes, since other work can only slow a pass down."""
    return statistics.quantiles(seconds, n=4, method="inclusive")[0]


def pass_seconds(models: Sequence[nn.Module], image: Tensor, *, passes: int = _PASSES) -> list[list[float]]:
    """Return, for each model, the seconds of ``passes`` passes of ``image``, (N, C, H, W).

    The models alternate, so that other work on the machine affects all alike.
    """
    seconds: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for turn in range(passes + 1):
            for model, spent in zip(models, seconds, strict=True):
                started = time.perf_counter()
                model(image)
                if image.is_cuda:
                    torch.cuda.synchronize(image.device)
                if turn:  # the first pass prepares kernels
                    spent.append(time.perf_counter() - started)
    return seconds


def separate_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the state dict in which no tensors share memory, in the default memory order."""
    return {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }


def plain_state(applied: AppliedModel) -> tuple[dict[str, Tensor], dict[str, IntegerWeight], tuple[str, ...]]:
    """Return the state dict, its quantized weights as integers, and a sentence if some are on no grid.

    The quantized weights of the state dict are those restored from the integers, so that every file holds the same
    numbers: those that were measured, or, where repair scaled a channel, the same up to the last digits of float32.
    """
    state, integers, off_grid = separate_state(applied.model), {}, []
    for name, bits, channel_axis in _quantized(applied):
        found = as_integers(state[name], bits=bits, channel_axis=channel_axis)
        if found is None:
            off_grid.append(name)
        else:
            integers[name], state[name] = found, found.dequantized()
    if not off_grid:
        return state, integers, ()
    note = (
        f"{len(off_grid)} quantized weights are no multiples of one scale per channel, so files hold them as float32 "
        f"(first: {off_grid[0]})."
    )
    return state, integers, (note,)


def _quantized(applied: AppliedModel) -> Iterator[tuple[str, int, int]]:
    """Yield name in the state dict, bits and channel axis of each quantized weight; tied ones under each name."""
    named = list(applied.model.named_parameters(remove_duplicate=False))
    bits = {member: int(entry.level) for entry in applied.reached_by(Effect.BITS) for member in entry.members}
    done: set[str] = set()
    for layer in applied.after.layers:
        if layer.name in bits:
            weight = applied.model.get_parameter(layer.parameter)
            for name in (name for name, parameter in named if parameter is weight and name not in done):
                done.add(name)
                yield name, bits[layer.name], layer.channel_axis


def small_file(
    applied: AppliedModel, state: Mapping[str, Tensor], integers: Mapping[str, IntegerWeight], *, plain_bytes: int
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the small file by its suffix, or a sentence if it would not be below ``plain_bytes``, the plain one.

    A network that is neither sparse nor quantized has none. ``integers`` are the quantized weights, by name in the
    plain ``state`` dict.
    """
    if not integers and not applied.reached_by(Effect.ZEROS):
        return {}, ()
    form = INTEGERS if integers else SPARSE
    stored = {name: value for name, value in state.items() if name not in integers}
    for name, weight in integers.items():
        parts = {name: weight.values, f"{name}.scale": weight.scale, f"{name}.zero_point": weight.zero_point}
        stored |= {part: value.contiguous() for part, value in parts.items()}
    levels: dict[str, dict[str, float]] = {}
    for entry in applied.reached:
        levels.setdefault(entry.compression, {}).update(dict.fromkeys(entry.members, entry.level))
    about = {"holds": form.title, "levels": levels, "reading": form.reader(f"FILE{form.suffix}")}
    metadata = {"senseapp": json.dumps(about)}  # one entry: safetensors writes several in any order
    content = gzip.compress(safetensors.torch.save(stored, metadata), _GZIP_LEVEL, mtime=0)
    if len(content) >= plain_bytes:
        return {}, (f"There is no file of {form.title}: it would be larger than the plain one.",)
    return {form.suffix: content}, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerWeight:
    """A weight equal to ``(values - zero_point) * scale`` in float32.

    Attributes:
        values: int8, or float8_e4m3fn for weights in that format; the weight's shape.
        scale: float32; the weight's shape with 1 in place of each axis that a scale spans.
        zero_point: int8 (); weights are quantized symmetrically about 0.
    """

    values: Tensor
    scale: Tensor
    zero_point: Tensor

    def dequantized(self) -> Tensor:
        """Return the weight as a reader of the file restores it."""
        return (self.values.float() - self.zero_point) * self.scale


def as_integers(weight: Tensor, *, bits: int, channel_axis: int) -> IntegerWeight | None:
    """Return ``weight`` as integers with one scale if possible, else one per channel; None if it is on no grid."""
    if weight.dtype is not torch.float32 or not weight.numel():
        return None
    wanted = weight.detach().cpu().contiguous()
    channels = wanted.movedim(channel_axis, 0).flatten(1)  # (channels, weights of each)
    for number_format in ("int", "fp8_e4m3") if bits == _FLOAT8_BITS else ("int",):
        grid = GRIDS[number_format](bits)
        peaks = range(int(grid.largest), 0, -1) if number_format == "int" else (grid.largest,)
        dtype = torch.int8 if number_format == "int" else torch.float8_e4m3fn
        for rows in (channels.reshape(1, -1), channels):
            scales = _scales(rows, grid.nearest, peaks if len(rows) > 1 else peaks[:1])
            if scales is None:
                continue
            shape = [-1 if axis == channel_axis else 1 for axis in range(wanted.dim())]
            scale = scales.reshape(shape if len(scales) > 1 else [1] * wanted.dim())
            return IntegerWeight(
                values=grid.nearest(wanted / scale).to(dtype), scale=scale, zero_point=torch.zeros((), dtype=torch.int8)
            )
    return None


def _scales(rows: Tensor, nearest: Callable[[Tensor], Tensor], peaks: range | tuple[float, ...]) -> Tensor | None:
    """Return scales (rows,) of which rows are multiples, trying ``peaks`` for their largest; None if a row has none."""
    largest = rows.abs().amax(1)
    best, error = torch.ones_like(largest), torch.full_like(largest, torch.inf)
    for peak in peaks:
        for nudge in _NUDGES:
            left = (error > 0).nonzero().flatten() if peak == peaks[0] else (error > _TOLERANCE).nonzero().flatten()
            if not len(left):
                return best
            scale = _nudged((largest[left] / peak).clamp_min(torch.finfo(torch.float32).tiny), nudge)
            found = _error(rows[left], scale, nearest)
            better = found < error[left]
            best[left[better]], error[left[better]] = scale[better], found[better]
        if peak <= peaks[0] - _PEAKS and not bool((error <= _TOLERANCE).any()):  # no row is on a grid
            return None
    return best if bool((error <= _TOLERANCE).all()) else None


def _nudged(scale: Tensor, steps: int) -> Tensor:
    towards = torch.full_like(scale, torch.inf if steps > 0 else 0.0)
    for _ in range(abs(steps)):
        scale = torch.nextafter(scale, towards)
    return scale


def _error(rows: Tensor, scale: Tensor, nearest: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the largest relative difference of each row from its nearest multiples; (rows,)."""
    got = nearest(rows / scale[:, None]) * scale[:, None]
    difference = (got - rows).abs() / rows.abs()
    return torch.where(rows == 0, torch.where(got == 0, 0.0, torch.inf), difference).amax(1)
