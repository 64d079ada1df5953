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
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_KNOWN = (".original", ".original0", ".original1", ".0._u", ".0._v", ".0.base", ".1._u", ".1.base")
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


def _composed(tensors: Named, name: str) -> tuple[str, str, Tensor, list[str]] | None:
    """Return the weight that ``name`` is the main part of: its name, what it is of, itself, and its other parts."""
    for main, others, compose, source in _RULES:
        stem, parts = name.removesuffix(main), [name.removesuffix(main) + other for other in others]
        if not name.endswith(main) or not all(part in tensors for part in parts):
            continue
        is_known = main in _KNOWN
        if is_known and sum(f"{stem}{part}" in tensors for part in _KNOWN) != 1 + len(others):
            continue
        weight = compose(tensors[name], *(tensors[part] for part in parts))
        if weight is not None:
            return stem.replace("parametrizations.", "") if is_known else stem, source, weight, parts
    return None


def _masked(weight: Tensor, mask: Tensor) -> Tensor | None:
    """Return ``weight`` times a mask of 0 and 1; None for another."""
    if mask.shape != weight.shape or not bool(((mask == 0) | (mask == 1)).all()):
        return None
    return weight * mask.to(weight.dtype)


def _with_norm(direction: Tensor, norm: Tensor) -> Tensor | None:
    """Return ``g · v / ‖v‖``, with the norm over the axes where ``g`` has length 1."""
    if direction.dim() == 0 or norm.dim() not in (0, direction.dim()):
        return None
    if any(length not in (1, whole) for length, whole in zip(norm.shape, direction.shape, strict=False)):
        return None
    axes = [axis for axis in range(direction.dim()) if norm.dim() == 0 or norm.shape[axis] == 1]
    if not axes:
        return None
    length: Tensor = torch.linalg.vector_norm(direction.float(), dim=axes, keepdim=True)
    return norm.float() * direction.float() / length


def _by_spectral_norm(weight: Tensor, left: Tensor, right: Tensor) -> Tensor | None:
    """Return ``weight / uᵀ W v``, with W the weight as a matrix whose first axis is that of ``u``."""
    if left.dim() != 1 or right.dim() != 1 or weight.dim() < 2:
        return None
    axes = [axis for axis, length in enumerate(weight.shape[:2]) if length == left.numel()]
    if not axes or left.numel() * right.numel() != weight.numel():
        return None
    matrix = weight.float().movedim(axes[0], 0).flatten(1)
    return weight.float() / torch.dot(left.float(), torch.mv(matrix, right.float()))


_BY_PARAMETRIZATION = "parametrizations, with torch's own functions at their defaults"
_BY_MASK = "weights and masks of pruning"
_RULES: tuple[tuple[str, tuple[str, ...], Callable[..., Tensor | None], str], ...] = (
    (".original1", (".original0",), _with_norm, _BY_PARAMETRIZATION),
    (".original", (".0._u", ".0._v"), _by_spectral_norm, _BY_PARAMETRIZATION),
    ("_v", ("_g",), _with_norm, "norms and directions (weight_norm)"),
    ("_orig", ("_mask",), _masked, _BY_MASK),
    ("", ("_mask",), _masked, _BY_MASK),
    ("_orig", ("_u", "_v"), _by_spectral_norm, "weights and their largest singular values (spectral_norm)"),
)
"""Ends of the names of the main part and of the others, what composes them, and what they are of."""
