"""Somebody's weights file as named tensors, with what a person should know about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from senseapp.errors import InvalidCheckpoint
from senseapp.models.checkpoint_payload import read_payload
from senseapp.models.unwrapping import Unwrapped, unwrap

_NAMED_AT_MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The weights of one network, as they are in the file.

    Attributes:
        file_name: of the file, without its folder.
        tensors: by parameter name, without wrappers' prefixes; mapped from the file where its form allows, and
            in its number format (they become float32 when they are copied into a network).
        wrapping: keys and prefixes that were taken off, from the outside in (``state_dict``, ``module.``).
        arch_hint: the architecture's name as the training program wrote it; empty if it did not.
        has_ema: whether the file holds averaged (EMA) weights beside the plain ones; ``used_ema`` whether these
            are the averaged ones.
        notes: sentences a person should read.
    """

    file_name: str
    tensors: Mapping[str, Tensor]
    wrapping: tuple[str, ...] = ()
    arch_hint: str = ""
    has_ema: bool = False
    used_ema: bool = False
    notes: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}


def read_checkpoint(path: str | Path, *, use_ema: bool = False) -> Checkpoint:
    """Read a ``.pth .pt .bin .ckpt .tar`` or ``.safetensors`` file; code in it is never run.

    Args:
        path: the file.
        use_ema: take the averaged (EMA) weights, where the file has both.

    Raises:
        InvalidCheckpoint: missing, damaged, of another form, with code, or without weights.
    """
    path = Path(path)
    unwrapped = unwrap(read_payload(path), use_ema=use_ema, file_name=path.name)
    _require_plain(unwrapped.tensors, path.name)
    return Checkpoint(
        file_name=path.name,
        tensors=unwrapped.tensors,
        wrapping=unwrapped.wrapping,
        arch_hint=unwrapped.arch_hint,
        has_ema=unwrapped.has_ema,
        used_ema=unwrapped.used_ema,
        notes=(*_wrapping_notes(unwrapped), *_number_notes(unwrapped.tensors)),
    )


def _require_plain(tensors: Mapping[str, Tensor], file_name: str) -> None:
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_complex():
            raise InvalidCheckpoint(
                f"{name} in {file_name} is not a plain dense tensor. Save the weights of the float32 model."
            )


def _wrapping_notes(unwrapped: Unwrapped) -> list[str]:
    notes = []
    if unwrapped.has_ema:
        chosen, other = ("averaged (EMA)", "plain") if unwrapped.used_ema else ("plain", "averaged (EMA)")
        notes.append(f"The file holds two copies of the weights: the {chosen} ones are used, not the {other} ones.")
    if unwrapped.dropped:
        notes.append(f"Left out, as they do not belong to the network: {_named(unwrapped.dropped)}.")
    return notes


def _number_notes(tensors: Mapping[str, Tensor]) -> list[str]:
    notes = []
    formats = {str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.is_floating_point()}
    if formats - {"float32"}:
        notes.append(f"Weights kept as {', '.join(sorted(formats - {'float32'}))} are read as float32.")
    broken = tuple(name for name, tensor in tensors.items() if not _is_finite(tensor))
    if broken:
        notes.append(f"These weights hold NaN or infinite numbers, so figures may mean nothing: {_named(broken)}.")
    return notes


def _is_finite(tensor: Tensor) -> bool:
    """Return whether every number is finite; the extremes tell, and finding them takes no memory."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    numbers = tensor.float() if tensor.element_size() == 1 else tensor  # 8-bit floats have no arithmetic
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(numbers))


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
