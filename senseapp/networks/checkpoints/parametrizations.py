"""Composition of weights that a checkpoint stores in parts, as the layer's forward does in ``eval()`` mode.

====================================  ==================================  ===========================================
parts (``w`` is the weight's name)    from                                weight
====================================  ==================================  ===========================================
``w_orig``, ``w_mask``                ``torch.nn.utils.prune``            orig · mask
``w``, ``w_mask`` or ``mask``         layers that mask in their forward   w · mask, where the mask holds 0 and 1 only
``w_g``, ``w_v``                      ``torch.nn.utils.weight_norm``      g · v / ‖v‖, over the axes where g has one
``w_orig``, ``w_u``, ``w_v``          ``torch.nn.utils.spectral_norm``    orig / uᵀ·orig·v
``parametrizations.w.original0, 1``   ``parametrizations.weight_norm``    as g and v
``….original``, ``….0._u``, ``._v``   ``parametrizations.spectral_norm``  as above
====================================  ==================================  ===========================================

Source: Salimans and Kingma, "Weight normalization" (2016), equation 2; Miyato et al., "Spectral normalization for
generative adversarial networks" (2018), equation 8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_Composed = tuple[str, Tensor, set[str]]
PARAMETRIZED = "parametrizations."
"""Part of the names of weights that a parametrization computes."""


def plain_weights(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return ``tensors`` with composed weights in place of their parts, and a sentence on each kind of composition.

    Parts whose shapes do not match are left unchanged.
    """
    replaced: dict[str, tuple[str, Tensor]] = {}
    used: set[str] = set()
    counted: Counter[str] = Counter()
    for name in tensors:
        for ending, source, compose in _RULES:
            if name not in replaced and name.endswith(ending) and (found := compose(tensors, name)) is not None:
                weight_name, weight, parts = found
                replaced[name] = (weight_name, weight)
                used |= parts
                counted[source] += 1
    whole = dict(replaced.get(name, (name, tensor)) for name, tensor in tensors.items() if name not in used)
    return whole, tuple(f"Put together from {source}: {count} weights." for source, count in counted.items())


def _masked(tensors: Mapping[str, Tensor], name: str) -> _Composed | None:
    base, weight = name.removesuffix("_orig"), tensors[name]
    mask = tensors.get(f"{base}_mask")
    if mask is None or mask.shape != weight.shape:
        return None
    return base, weight * mask.to(weight.dtype), {f"{base}_mask"}


def _masked_beside(tensors: Mapping[str, Tensor], name: str) -> _Composed | None:
    weight = tensors[name]
    for mask_name in (f"{name}_mask", f"{name.removesuffix('weight')}mask"):
        mask = tensors.get(mask_name)
        if mask is None or mask.shape != weight.shape or not bool(((mask == 0) | (mask == 1)).all()):
            continue
        kept = mask == 1
        if bool(kept.any()) and not bool(weight[kept].any()):
            kept = ~kept  # it marks pruned weights, which are zero already
        return name, weight * kept.to(weight.dtype), {mask_name}
    return None


def _normed(tensors: Mapping[str, Tensor], name: str) -> _Composed | None:
    base = name.removesuffix("_v")
    weight = _with_norm(tensors.get(f"{base}_g"), tensors[name])
    return None if weight is None else (base, weight, {f"{base}_g"})


def _with_norm(norm: Tensor | None, direction: Tensor) -> Tensor | None:
    """Return ``g · v / ‖v‖``, with the norm over the axes where ``g`` has length 1."""
    if norm is None or direction.dim() == 0 or norm.dim() not in (0, direction.dim()):
        return None
    if any(length not in (1, whole) for length, whole in zip(norm.shape, direction.shape, strict=False)):
        return None
    axes = [axis for axis in range(direction.dim()) if norm.dim() == 0 or norm.shape[axis] == 1]
    if not axes:
        return None
    length: Tensor = torch.linalg.vector_norm(direction.float(), dim=axes, keepdim=True)
    return norm.float() * direction.float() / length


def _spectral(tensors: Mapping[str, Tensor], name: str) -> _Composed | None:
    base = name.removesuffix("_orig")
    weight = _by_spectral_norm(tensors[name], tensors.get(f"{base}_u"), tensors.get(f"{base}_v"))
    return None if weight is None else (base, weight, {f"{base}_u", f"{base}_v"})


def _by_spectral_norm(weight: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """Return ``weight / uᵀ W v``, with W the weight as a matrix whose first axis is that of ``u``."""
    if left is None or right is None or left.dim() != 1 or right.dim() != 1 or weight.dim() < 2:
        return None
    axes = [axis for axis, length in enumerate(weight.shape[:2]) if length == left.numel()]
    if not axes or left.numel() * right.numel() != weight.numel():
        return None
    matrix = weight.float().movedim(axes[0], 0).flatten(1)
    return weight.float() / torch.dot(left.float(), torch.mv(matrix, right.float()))


def _parametrized(tensors: Mapping[str, Tensor], name: str) -> _Composed | None:
    """Compose a weight of ``torch.nn.utils.parametrize``; of several parametrizations in a row only one is known."""
    layer, _, inside = name.rpartition(PARAMETRIZED)
    weight_name, _, _ = inside.rpartition(".")
    stem = name.rpartition(".")[0]
    parts = {part for part in _PARTS if f"{stem}.{part}" in tensors}
    at = {part: tensors[f"{stem}.{part}"] for part in parts}
    if parts == {"original0", "original1"}:
        weight = _with_norm(at["original0"], at["original1"])
    elif parts == {"original", "0._u", "0._v"}:
        weight = _by_spectral_norm(at["original"], at["0._u"], at["0._v"])
    else:
        weight = None
    return None if weight is None else (f"{layer}{weight_name}", weight, {f"{stem}.{part}" for part in parts} - {name})


_PARTS = ("original", "original0", "original1", "0._u", "0._v", "0.base", "1._u", "1.base")
_RULES: tuple[tuple[str, str, Callable[[Mapping[str, Tensor], str], _Composed | None]], ...] = (
    ("_orig", "weights and masks of pruning", _masked),
    ("weight", "weights and masks of pruning", _masked_beside),
    ("_v", "norms and directions (weight_norm)", _normed),
    ("_orig", "weights and their largest singular values (spectral_norm)", _spectral),
    (".original", "parametrizations, with torch's own functions at their defaults", _parametrized),
    (".original1", "parametrizations, with torch's own functions at their defaults", _parametrized),
)
