"""Find the weights inside what training programs save around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from senseapp.errors import InvalidCheckpoint
from senseapp.models.weights_file import RESAVE_ADVICE

_EMA_KEYS = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "params_ema", "model_ema_state_dict")
_WEIGHT_KEYS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "net",
    "network",
    "params",
    "weights",
    "module",
    "ema_model",
)
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "_forward_module.", "ema_model.")
_PREFIX_SHARE = 0.8  # of all numbers; the rest are losses and metrics that a training program keeps beside
_ARCHITECTURE_KEYS = ("arch", "architecture", "model_name", "model_arch", "model")
_SETTINGS_KEYS = ("args", "hyper_parameters", "config", "cfg", "hparams")
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwrapped:
    """Weights, and what was around them.

    Attributes:
        tensors: by parameter name, without prefixes.
        wrapping: keys and prefixes that were taken off, from the outside in.
        has_ema: whether the file holds averaged (EMA) weights beside the plain ones.
        used_ema: whether ``tensors`` are the averaged ones.
        arch_hint: the architecture's name as the training program wrote it; empty if it did not.
        dropped: names of tensors that do not belong to the network.
    """

    tensors: Mapping[str, Tensor]
    wrapping: tuple[str, ...]
    has_ema: bool
    used_ema: bool
    arch_hint: str
    dropped: tuple[str, ...] = ()


def unwrap(payload: Mapping[Any, Any], *, use_ema: bool, file_name: str) -> Unwrapped:
    """Take off dict levels and name prefixes until the weights are left.

    Raises:
        InvalidCheckpoint: no weights inside; averaged ones wanted and none there; or several networks.
    """
    has_ema = any(_holds_tensors(payload.get(key)) for key in _EMA_KEYS)
    if use_ema and not has_ema:
        raise InvalidCheckpoint(f"{file_name} holds no averaged (EMA) weights. Choose its plain weights.")
    path: list[str] = []
    level: Mapping[Any, Any] = payload
    while (key := _next_key(level, use_ema=use_ema, depth=len(path))) is not None:
        path.append(key)
        level = level[key]
    tensors = {name: value for name, value in level.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        raise _no_weights(payload, file_name)
    stripped, prefixes = _strip_prefixes(tensors)
    return Unwrapped(
        tensors=stripped,
        wrapping=(*path, *prefixes),
        has_ema=has_ema and any(_holds_tensors(payload.get(key)) for key in _WEIGHT_KEYS),
        used_ema=bool(path) and path[0] in _EMA_KEYS,
        arch_hint=_architecture_hint(payload),
        dropped=tuple(sorted(set(tensors) - {"".join(prefixes) + name for name in stripped})),
    )


def _next_key(level: Mapping[Any, Any], *, use_ema: bool, depth: int) -> str | None:
    """Return the key that the weights are under, or None if ``level`` itself holds them."""
    if depth >= _MAX_DEPTH:
        return None
    preferred = (*_EMA_KEYS, *_WEIGHT_KEYS) if use_ema else (*_WEIGHT_KEYS, *_EMA_KEYS)
    known = next((key for key in preferred if _holds_tensors(level.get(key))), None)
    if known is not None or any(isinstance(value, Tensor) for value in level.values()):
        return known
    nested = [key for key, value in level.items() if isinstance(key, str) and _has_tensor(value)]
    return nested[0] if len(nested) == 1 else None


def _holds_tensors(value: object, *, depth: int = _MAX_DEPTH) -> bool:
    """Return whether ``value`` is a dict with a tensor in it, at whatever level."""
    if not isinstance(value, Mapping) or depth == 0:
        return False
    return _has_tensor(value) or any(_holds_tensors(value.get(key), depth=depth - 1) for key in _WEIGHT_KEYS)


def _has_tensor(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(item, Tensor) for item in value.values())


def _no_weights(payload: Mapping[Any, Any], file_name: str) -> InvalidCheckpoint:
    keys = ", ".join(str(key)[:40] for key in list(payload)[:6]) or "nothing"
    return InvalidCheckpoint(f"{file_name} holds no weights by layer name; it holds {keys}. {RESAVE_ADVICE}")


def _strip_prefixes(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    prefixes: list[str] = []
    while (prefix := _common_prefix(tensors)) is not None:
        prefixes.append(prefix)
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return tensors, tuple(prefixes)


def _common_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    total = sum(tensor.numel() for tensor in tensors.values())
    for prefix in _PREFIXES:
        under = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith(prefix))
        if under and under >= _PREFIX_SHARE * total:
            return prefix
    return None


def _architecture_hint(payload: Mapping[Any, Any]) -> str:
    settings = [payload, *(payload.get(key) for key in _SETTINGS_KEYS)]
    for source in settings:
        values = source if isinstance(source, Mapping) else getattr(source, "__dict__", {})
        for key in _ARCHITECTURE_KEYS:
            if isinstance(values.get(key), str):
                return str(values[key])
    return ""
