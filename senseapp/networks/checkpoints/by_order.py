"""Match of weights with an architecture by order and shape, for checkpoints with unknown names.

This serves networks converted from another framework: signatures of (place, shape) are compared. Exchanged neighbours
of equal shape would not be detected, so such a match is a guess that the accuracy of the uncompressed network confirms
or refutes. Files of safetensors are sorted by name: there, numbers in names say the order, and words do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.fingerprint import (
    COMPUTED_SUFFIXES,
    OrderedWeights,
    Shape,
    Shapes,
    by_place,
    is_layer,
    signature_of,
    weights_only,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

BY_ORDER_NOTE = (
    "Names are unknown; order and shapes fit {title}. This is a guess: the accuracy of the uncompressed network on "
    "your images confirms or refutes it."
)
_NAMES_OF_ROLES = (  # in the order in which PyTorch's own layers hold them
    ("weight", "kernel", "gamma", "w"),
    ("bias", "beta", "b"),
    ("running_mean", "moving_mean", "mean"),
    ("running_variance", "running_var", "moving_variance", "moving_var", "variance", "var"),
)
_RANKS = {name: rank for rank, names in enumerate(_NAMES_OF_ROLES) for name in names}
_LONGEST_FIRST = sorted(_RANKS, key=len, reverse=True)  # running_mean ends in mean
_ROLE = re.compile(rf"^(?:(.*?)[._/])?({'|'.join(_LONGEST_FIRST)})$", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,18}|(?<![a-z\d])[a-d](?![a-z\d])", re.IGNORECASE)  # not q, k and v
_VARIANCE_SUFFIX = "running_var"


def ordered_weights(tensors: Mapping[str, Tensor]) -> tuple[OrderedWeights, ...]:
    """Return the weights in the orders to try: that of the file, and that of names with numbers ascending.

    Integer tensors (counters and tables of positions) are left out, whatever their names. Each order is also tried with
    the weights of each layer grouped (weight, bias, running mean, running variance), and without vectors and scalars of
    other names than these, such as the scales of observers. Files that are sorted by name (``.safetensors``) need the
    second order.
    """
    names = [name for name in weights_only(dict.fromkeys(tensors, ())) if tensors[name].is_floating_point()]
    if len(names) > 10_000:  # the largest architecture has 2,683
        return ()
    found: dict[tuple[str, ...], None] = {}
    for order in (names, sorted(names, key=_with_numbers)):
        layers = [name for name in order if _ROLE.match(name) or is_layer(tuple(tensors[name].shape))]
        found |= dict.fromkeys((_layer_by_layer(order), tuple(order), _layer_by_layer(layers), tuple(layers)))
    shapes = (tuple(tuple(tensors[name].shape) for name in order) for order in found)
    return tuple(
        OrderedWeights(order, own, signature_of(by_place(own))) for order, own in zip(found, shapes, strict=True)
    )


def _with_numbers(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts ``layer10`` after ``layer2``."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(bool(place % 2), int(part) if place % 2 else 0, part) for place, part in enumerate(parts)]


def weights_by_layer(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the weights of each layer in the order weight, bias, running mean, running variance."""
    layers: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        found = _ROLE.match(name)
        layer, rank = ((found[1] or ""), _RANKS[found[2].lower()]) if found else (name, -1)
        layers.setdefault(layer, []).append((rank, name))
    return {
        layer: tuple(name for _, name in sorted(ranked, key=lambda each: each[0])) for layer, ranked in layers.items()
    }


def _layer_by_layer(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(weights_by_layer(names).values()))


def exchangeable(layers: Mapping[str, Sequence[str]], shapes: Shapes) -> tuple[str, str] | None:
    """Return two siblings with equal shapes whose order no number determines; None if there are none.

    ``layers`` are the names of the weights by layer. Underscores separate parts of names too, as in files whose names
    have no dots.
    """
    below: dict[tuple[str, ...], Counter[Shape]] = {}
    for layer, names in layers.items():
        parts = tuple(re.split(r"[._/]", layer)) if layer else ()
        for depth in range(1, len(parts) + 1):
            below.setdefault(parts[:depth], Counter()).update(shapes[name] for name in names)
    alike: dict[tuple[tuple[str, ...], frozenset[tuple[Shape, int]]], tuple[str, ...]] = {}
    for path, held in below.items():
        other = alike.setdefault((path[:-1], frozenset(held.items())), path)
        if _NUMBER.sub("#", other[-1]) != _NUMBER.sub("#", path[-1]):
            return ".".join(other), ".".join(path)
    return None


def named_by_order(
    module: nn.Module, tensors: Mapping[str, Tensor], order: Sequence[str], *, file_name: str, title: str
) -> dict[str, Tensor]:
    """Return the weights under ``module``'s names for the same places in the order.

    ``order`` lists the names of ``tensors`` in the architecture's order, see :func:`ordered_weights`.

    Raises:
        InvalidCheckpoint: a variance would be negative, so the order is wrong.
    """
    own = [name for name in module.state_dict() if not name.endswith(COMPUTED_SUFFIXES)]
    for name, found in zip(own, order, strict=True):
        if name.endswith(_VARIANCE_SUFFIX) and bool((tensors[found] < 0).any()):
            raise InvalidCheckpoint(
                f"The shapes of {file_name} fit {title} in their order, but {found} would be a variance and holds "
                "negative numbers, so the order is another one. Save the weights under the names of the architecture."
            )
    return {name: tensors[found] for name, found in zip(own, order, strict=True)}
