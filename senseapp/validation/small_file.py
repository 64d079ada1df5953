"""The compressed weights in a small file: a safetensors under gzip, quantized weights as integers with their scales.

gzip is measured to be as small as one bit per position and the non-zero values, and integers under it smaller than
packed bits; docs/adr/0010 has the figures.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping

import safetensors.torch
import torch
from torch import Tensor, nn

from senseapp.compressions import Effect
from senseapp.results.model_files import INTEGERS, SPARSE
from senseapp.validation.apply import AppliedModel
from senseapp.validation.integer_weights import IntegerWeight, as_integers

_LEVEL = 6  # of gzip; 9 takes five times as long for half a percent


def separate_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the state dict of which no tensors share memory, in the default memory order."""
    return {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }


def plain_state(applied: AppliedModel) -> tuple[dict[str, Tensor], dict[str, IntegerWeight], tuple[str, ...]]:
    """Return the state dict, its quantized weights as integers, and a sentence where some lie on no grid.

    In the state dict, quantized weights are what the integers give back, so that every file holds the same numbers:
    those that were measured, or, where repair multiplied a channel, the same but for the last digits of float32.
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
    """Yield name in the state dict, bits and channel axis of each quantized weight; tied ones under every name."""
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
    """Return the small file by its suffix, none for a network that was neither made sparse nor quantized.

    Args:
        applied: the compressed model.
        state: its plain state dict.
        integers: its quantized weights, by name in the state dict.
        plain_bytes: size of the plain file, which a small one must stay below.

    Returns:
        At most one file, and a sentence where it would not be small.
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
    content = gzip.compress(safetensors.torch.save(stored, metadata), _LEVEL, mtime=0)
    if len(content) >= plain_bytes:
        return {}, (f"There is no file of {form.title}: it would be larger than the plain one.",)
    return {form.suffix: content}, ()
