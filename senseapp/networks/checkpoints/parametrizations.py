"""Composition of weights that a checkpoint stores in parts, as the layer's forward does in ``eval()`` mode.

====================================  ==================================  ===========================================
parts (``w`` is the weight's name)    from                                weight
====================================  ==================================  ===========================================
``w_orig``, ``w_mask``                ``torch.nn.utils.prune``            orig · mask
``w``, ``w_mask``                     layers that mask in their forward   w · mask, where the mask holds 0 and 1 only
``w_g``, ``w_v``                      ``torch.nn.utils.weight_norm``      g · v / ‖v‖, over the axes where g has one
``w_orig``, ``w_u``, ``w_v``          ``torch.nn.utils.spectral_norm``    orig / uᵀ·orig·v
``parametrizations.w.original0, 1``   ``parametrizations.weight_norm``    as g and v
``….original``, ``….0._u``, ``._v``   ``parametrizations.spectral_norm``  as above
====================================  ==================================  ===========================================

Source: Salimans and Kingma, "Weight normalization" (2016), equation 2; Miyato et al., "Spectral normalization for
generative adversarial networks" (2018), equation 8.
"""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

_PARAMETRIZED = "parametrizations."
_BY_PARAMETRIZATION = "parametrizations, with torch's own functions at their defaults"
_PARTS = ("original", "original0", "original1", "0._u", "0._v", "0.base", "1._u", "1.base")
"""Of the parametrizations of torch; of several in a row only one is known."""
Named = Mapping[str, Tensor]


def plain_weights(tensors: Named) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return ``tensors`` with composed weights in place of their parts, and a sentence on each kind of composition.

    Parts whose shapes do not match are left unchanged.
    """
    composed = {name: found for name in tensors if (found := _composed(tensors, name)) is not None}
    counted = Counter(source for _, source, _, _ in composed.values())
    used = {part for *_, parts in composed.values() for part in parts}
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name in composed:
            own, _, weight, _ = composed[name]
            whole[own] = weight
        elif name not in used:
            whole[name] = tensor
    return whole, tuple(f"Put together from {source}: {count} weights." for source, count in counted.items())


def _composed(tensors: Named, name: str) -> tuple[str, str, Tensor, set[str]] | None:
    """Return the weight that ``name`` is the main part of: its name, what it is of, itself, and its other parts."""
    stem, _, ending = name.rpartition(".")
    layer, _, inside = stem.rpartition(_PARAMETRIZED)
    weight: Tensor | None = None
    if ending in ("original", "original1") and _PARAMETRIZED in name:
        at = {part: tensors[f"{stem}.{part}"] for part in _PARTS if f"{stem}.{part}" in tensors}
        if at.keys() == {"original0", "original1"}:
            weight = _with_norm(at["original0"], at["original1"])
        elif at.keys() == {"original", "0._u", "0._v"}:
            weight = _by_spectral_norm(at["original"], at["0._u"], at["0._v"])
        others = {f"{stem}.{part}" for part in at} - {name}
        return None if weight is None else (f"{layer}{inside}", _BY_PARAMETRIZATION, weight, others)
    if name.endswith("_v") and (weight := _with_norm(tensors.get(f"{name[:-2]}_g"), tensors[name])) is not None:
        return name[:-2], "norms and directions (weight_norm)", weight, {f"{name[:-2]}_g"}
    base = name.removesuffix("_orig")
    if (weight := _masked(tensors[name], tensors.get(f"{base}_mask"))) is not None:
        return base, "weights and masks of pruning", weight, {f"{base}_mask"}
    if base != name:
        parts = {f"{base}_u", f"{base}_v"}
        weight = _by_spectral_norm(tensors[name], tensors.get(f"{base}_u"), tensors.get(f"{base}_v"))
        if weight is not None:
            return base, "weights and their largest singular values (spectral_norm)", weight, parts
    return None


def _masked(weight: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return ``weight`` times a mask of 0 and 1; None without one."""
    if mask is None or mask.shape != weight.shape or not bool(((mask == 0) | (mask == 1)).all()):
        return None
    return weight * mask.to(weight.dtype)


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


def _by_spectral_norm(weight: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """Return ``weight / uᵀ W v``, with W the weight as a matrix whose first axis is that of ``u``."""
    if left is None or right is None or left.dim() != 1 or right.dim() != 1 or weight.dim() < 2:
        return None
    axes = [axis for axis, length in enumerate(weight.shape[:2]) if length == left.numel()]
    if not axes or left.numel() * right.numel() != weight.numel():
        return None
    matrix = weight.float().movedim(axes[0], 0).flatten(1)
    return weight.float() / torch.dot(left.float(), torch.mv(matrix, right.float()))
