"""Somebody's weights file as named tensors, with what a person should know about it; code in it is never run."""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint, first_line_of
from senseapp.models.weights_file import INERT_NAMES, RESAVE_ADVICE, FileKind, Inert, check_weights_file, damaged

_MAX_BYTES_PER_FILE_BYTE = 4  # tied weights share bytes; an expanded tensor claims far more than it has
_ALLOW_LIST_LOCK = threading.Lock()  # torch's allow-list is one per process
_NAMED_AT_MOST = 3

_EMA_KEYS = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "params_ema", "model_ema_state_dict")
_WEIGHT_KEYS = (
    *("state_dict", "model_state_dict", "model_state", "model", "net"),
    *("network", "params", "weights", "module", "ema_model"),
)
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "_forward_module.", "ema_model.")
_PREFIX_SHARE = 0.8  # of all numbers; the rest are losses and metrics that a training program keeps beside
_ARCHITECTURE_KEYS = ("arch", "architecture", "model_name", "model_arch", "model")
_SETTINGS_KEYS = ("args", "hyper_parameters", "config", "cfg", "hparams")
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The weights of one network, as they are in the file.

    Attributes:
        file_name: of the file, without its folder.
        tensors: by parameter name, without wrappers' prefixes; mapped from the file where its form allows, and
            in its number format (they become float32 when they are copied into a network).
        wrapping: keys and prefixes that were taken off, from the outside in (``state_dict``, ``module.``).
        arch_hint: the architecture's name as the training program wrote it; empty if it did not.
        has_ema: whether the file holds averaged (EMA) weights beside the plain ones.
        notes: sentences a person should read.
    """

    file_name: str
    tensors: Mapping[str, Tensor]
    wrapping: tuple[str, ...] = ()
    arch_hint: str = ""
    has_ema: bool = False
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
    payload = _read_payload(path)
    has_ema = _holds_tensors(payload, keys=_EMA_KEYS)
    if use_ema and not has_ema:
        raise InvalidCheckpoint(f"{path.name} holds no averaged (EMA) weights. Choose its plain weights.")
    keys, found = _unwrap(payload, use_ema=use_ema)
    if not found:
        held = ", ".join(str(key)[:40] for key in list(payload)[:6]) or "nothing"
        raise InvalidCheckpoint(f"{path.name} holds no weights by layer name; it holds {held}. {RESAVE_ADVICE}")
    prefixes, tensors = _strip_prefixes(found)
    _require_plain(tensors, path.name)
    has_both = has_ema and _holds_tensors(payload, keys=_WEIGHT_KEYS)
    return Checkpoint(
        file_name=path.name,
        tensors=tensors,
        wrapping=(*keys, *prefixes),
        arch_hint=_architecture_hint(payload),
        has_ema=has_both,
        notes=(
            *(_ema_note(used=bool(keys) and keys[0] in _EMA_KEYS) if has_both else ()),
            *_dropped_note(sorted(set(found) - {"".join(prefixes) + name for name in tensors})),
            *_number_notes(tensors),
        ),
    )


def _read_payload(path: Path) -> Mapping[Any, Any]:
    """Return the dict in the file, with its tensors mapped from disk where the form allows."""
    kind = check_weights_file(path)
    if kind is FileKind.SAFETENSORS:
        return _read_safetensors(path)
    loaded = _load_plain(path, mapped=kind is FileKind.ZIP)
    if not isinstance(loaded, dict):
        raise InvalidCheckpoint(
            f"{path.name} holds a {type(loaded).__name__}, not a dict of weights by layer name. {RESAVE_ADVICE}"
        )
    plain = _Plain()
    payload: Mapping[Any, Any] = plain.value(loaded)
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in plain.tensors)
    if claimed > _MAX_BYTES_PER_FILE_BYTE * path.stat().st_size:  # a size with a stride of zero
        raise damaged(path, f"its tensors claim {claimed:,} bytes, far more than the file has")
    return payload


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, ValueError, RuntimeError, OSError, KeyError, AttributeError, TypeError) as error:
        raise damaged(path, first_line_of(error, most=160)) from error


def _load_plain(path: Path, *, mapped: bool) -> object:
    inert: list[Any] = [(Inert, name) for name in sorted(INERT_NAMES)]
    try:
        with _ALLOW_LIST_LOCK, torch.serialization.safe_globals([Namespace, *inert]):
            payload: object = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)
    # A malformed pickle can make the unpickler call an allowed function with any arguments, so that any
    # exception may come out; each means the same to the person who chose the file.
    except Exception as error:
        raise damaged(path, first_line_of(error, most=160)) from error
    return payload


class _Plain:
    """Copies of dicts, and tensors without attributes of their own: a file can give both any, methods included.

    Each object is copied once, wherever it is used, so that dicts which share each other take no time.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._known: dict[int, object] = {}

    def value(self, value: object, depth: int = 0) -> Any:
        """Return a plain copy of dicts and tensors down to the level that weights may be at; the rest as it is."""
        if id(value) in self._known:
            return self._known[id(value)]
        copied = value
        if isinstance(value, Tensor):
            copied = torch.Tensor.detach(value)
            self.tensors.append(copied)
        elif isinstance(value, dict) and depth <= _MAX_DEPTH:
            copied = {key: self.value(item, depth + 1) for key, item in dict.items(value)}
        self._known[id(value)] = copied
        return copied


def _unwrap(payload: Mapping[Any, Any], *, use_ema: bool) -> tuple[list[str], dict[str, Tensor]]:
    """Take off dict levels until the weights are left; return their keys from the outside in, and the weights."""
    keys: list[str] = []
    level = payload
    while (key := _next_key(level, use_ema=use_ema, depth=len(keys))) is not None:
        keys.append(key)
        level = level[key]
    return keys, {name: value for name, value in level.items() if _is_name(name) and isinstance(value, Tensor)}


def _is_name(key: object) -> bool:
    """Return whether a key can name a layer; half of a character cannot be written anywhere."""
    return isinstance(key, str) and not any("\ud800" <= character <= "\udfff" for character in key)


def _next_key(level: Mapping[Any, Any], *, use_ema: bool, depth: int) -> str | None:
    """Return the key that the weights are under, or None if ``level`` itself holds them."""
    if depth >= _MAX_DEPTH:
        return None
    preferred = (*_EMA_KEYS, *_WEIGHT_KEYS) if use_ema else (*_WEIGHT_KEYS, *_EMA_KEYS)
    known = next((key for key in preferred if _holds_tensors(level, keys=(key,))), None)
    if known is not None or _has_tensor(level):
        return known
    nested = [key for key, value in level.items() if isinstance(key, str) and _has_tensor(value)]
    return nested[0] if len(nested) == 1 else None


def _holds_tensors(value: Mapping[Any, Any], *, keys: Sequence[str], depth: int = _MAX_DEPTH) -> bool:
    """Return whether there is a tensor under one of ``keys``, at whatever level of usual keys below it."""
    inner = [value.get(key) for key in keys if depth > 0]
    return any(
        _has_tensor(item) or (isinstance(item, Mapping) and _holds_tensors(item, keys=_WEIGHT_KEYS, depth=depth - 1))
        for item in inner
    )


def _has_tensor(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(item, Tensor) for item in value.values())


def _strip_prefixes(tensors: dict[str, Tensor]) -> tuple[list[str], dict[str, Tensor]]:
    prefixes: list[str] = []
    while (prefix := _common_prefix(tensors)) is not None:
        prefixes.append(prefix)
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return prefixes, tensors


def _common_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    total = sum(tensor.numel() for tensor in tensors.values())
    for prefix in _PREFIXES:
        under = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith(prefix))
        if under and under >= _PREFIX_SHARE * total:
            return prefix
    return None


def _architecture_hint(payload: Mapping[Any, Any]) -> str:
    for source in (payload, *(payload.get(key) for key in _SETTINGS_KEYS)):
        values = source if isinstance(source, Mapping) else getattr(source, "__dict__", {})
        for key in _ARCHITECTURE_KEYS:
            if isinstance(values.get(key), str):
                return str(values[key])
    return ""


def _require_plain(tensors: Mapping[str, Tensor], file_name: str) -> None:
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_complex():
            raise InvalidCheckpoint(
                f"{name} in {file_name} is not a plain dense tensor. Save the weights of the float32 model."
            )


def _ema_note(*, used: bool) -> Iterator[str]:
    chosen, other = ("averaged (EMA)", "plain") if used else ("plain", "averaged (EMA)")
    yield f"The file holds two copies of the weights: the {chosen} ones are used, not the {other} ones."


def _dropped_note(names: Sequence[str]) -> Iterator[str]:
    if names:
        yield f"Left out, as they do not belong to the network: {_named(names)}."


def _number_notes(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    formats = {str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.is_floating_point()} - {"float32"}
    if formats:
        yield f"Weights kept as {', '.join(sorted(formats))} are read as float32."
    broken = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    if broken:
        yield f"These weights hold NaN or infinite numbers, so figures may mean nothing: {_named(broken)}."


def _is_finite(tensor: Tensor) -> bool:
    """Return whether every number is finite; the extremes tell, and finding them takes no memory."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    numbers = tensor.float() if tensor.element_size() == 1 else tensor  # 8-bit floats have no arithmetic
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(numbers))


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
