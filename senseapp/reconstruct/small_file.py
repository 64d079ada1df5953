"""Compressed weights in a plain state dict, and in a small file: zeros compressed, rounded weights as integers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.files import storage_errors
from senseapp.descriptions import Effect
from senseapp.reconstruct.apply import AppliedModel
from senseapp.records.deployment import INTEGERS, SPARSE
from senseapp.records.profile import ModelProfile

_SCALE, _ZERO_POINT = ".scale", ".zero_point"


def separate_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the state dict in which no tensors share memory, in the default memory order."""
    return {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }


def small_file(
    applied: AppliedModel, state: Mapping[str, Tensor], *, plain_bytes: int
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the small file by its suffix, and sentences on what it does not hold, or why there is none.

    ``state`` is the plain state dict, whose file has ``plain_bytes``. A network that is neither sparse nor quantized
    has no small file.
    """
    integers, names = applied.integers, dict(_rounded(applied))
    by_name = {name: integers[layer] for name, layer in names.items() if layer in integers}
    notes = _not_held([name for name in names if name not in by_name])
    if not by_name and not applied.reached_by(Effect.ZEROS):
        return {}, notes
    form = INTEGERS if by_name else SPARSE
    stored = {name: value for name, value in state.items() if name not in by_name}
    for name, weight in by_name.items():
        parts = {name: weight.values, name + _SCALE: weight.scale, name + _ZERO_POINT: weight.zero_point}
        stored |= {part: value.clone() for part, value in parts.items()}  # those of tied weights may share no memory
    levels: dict[str, dict[str, float]] = {}
    for entry in applied.reached:
        levels.setdefault(entry.compression, {}).update(dict.fromkeys(entry.members, entry.level))
    about = {"holds": form.title, "levels": levels, "reading": form.reader(f"FILE{form.suffix}")}
    metadata = {"senseapp": json.dumps(about)}  # one entry: safetensors writes several in any order
    # Level 9 takes five times as long for half a percent.
    content = gzip.compress(safetensors.torch.save(stored, metadata), compresslevel=6, mtime=0)
    if len(content) >= plain_bytes:
        return {}, (*notes, f"There is no file of {form.title}: it would be larger than the plain one.")
    return {form.suffix: content}, notes


def _not_held(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    return (
        f"{len(names)} quantized weights are no multiples of one scale per channel, so files hold them as float32 "
        f"(first: {names[0]}).",
    )


def stored_integers(weights: Path, profile: ModelProfile) -> dict[str, IntegerWeight]:
    """Return, by layer of ``profile``, the integers in the small file beside the state dict ``weights``; {} without.

    Raises:
        StorageFailed: the file cannot be read.
    """
    path = weights.with_suffix(INTEGERS.suffix)
    if not path.is_file():
        return {}
    with storage_errors(path.name):
        stored = safetensors.torch.load(gzip.decompress(path.read_bytes()))
    return {
        layer.name: IntegerWeight(
            values=stored[layer.parameter],
            scale=stored[layer.parameter + _SCALE],
            zero_point=stored[layer.parameter + _ZERO_POINT],
        )
        for layer in profile.layers
        if layer.parameter + _SCALE in stored
    }


def _rounded(applied: AppliedModel) -> Iterator[tuple[str, str]]:
    """Yield the name in the state dict and the layer of each quantized weight; tied ones under each name."""
    named = list(applied.model.named_parameters(remove_duplicate=False))
    members = {member for entry in applied.reached_by(Effect.BITS) for member in entry.members}
    done: set[str] = set()
    for layer in applied.after.layers:
        if layer.name in members:
            weight = applied.model.get_parameter(layer.parameter)
            for name in (name for name, parameter in named if parameter is weight and name not in done):
                done.add(name)
                yield name, layer.name
