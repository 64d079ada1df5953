"""Match of weights with an architecture by order and shape, for checkpoints with unknown names.

This serves networks converted from another framework: signatures of (place, shape) are compared. Exchanged neighbours
of equal shape would not be detected, so such a match is a guess that the accuracy of the uncompressed network confirms
or refutes. Files of safetensors are sorted by name: there, numbers in names say the order, and words do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
MOST_WEIGHTS = 10_000  # the largest architecture has 2,683


def ordered_weights(tensors: Mapping[str, Tensor]) -> tuple[OrderedWeights, ...]:
    """Return the weights in the orders to try: that of the file, and that of names with numbers ascending.

    Integer tensors (counters and tables of positions) are left out, whatever their names. Each order is also tried with
    the weights of each layer grouped (weight, bias, running mean, running variance), and without vectors and scalars of
    other names than these, such as the scales of observers. Files that are sorted by name (``.safetensors``) need the
    second order.
    """
    names = [name for name in weights_only(dict.fromkeys(tensors, ())) if tensors[name].is_floating_point()]
    if len(names) > MOST_WEIGHTS:
        return ()
    found: dict[tuple[str, ...], None] = {}
    for order in (names, sorted(names, key=_with_numbers)):
        layers = [name for name in order if _ROLE.match(name) or is_layer(tuple(tensors[name].shape))]
        found |= dict.fromkeys((_layer_by_layer(order), tuple(order), _layer_by_layer(layers), tuple(layers)))
    return tuple(in_order(order, tensors) for order in found)


def in_order(names: tuple[str, ...], tensors: Mapping[str, Tensor]) -> OrderedWeights:
    """Return names, shapes and signature of the weights in this order."""
    shapes = tuple(tuple(tensors[name].shape) for name in names)
    return OrderedWeights(names, shapes, signature_of(by_place(shapes)))


def _with_numbers(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts ``layer10`` after ``layer2``."""
    parts = re.split(r"(\d{1,18})", name)
    return [
        (part.isascii() and part.isdigit(), int(part) if part.isascii() and part.isdigit() else 0, part)
        for part in parts
    ]


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


@dataclass(slots=True)
class _Node:
    """Content below one prefix: the weights of a layer, and child nodes by name."""

    weights: Sequence[str] = ()
    parts: dict[str, _Node] = field(default_factory=dict)

    def all_weights(self) -> Iterator[str]:
        yield from self.weights
        for part in self.parts.values():
            yield from part.all_weights()


def exchangeable(layers: Mapping[str, Sequence[str]], shapes: Shapes) -> tuple[str, str] | None:
    """Return two siblings with equal shapes whose order no number determines; None if there are none.

    ``layers`` are the names of the weights by layer. Underscores separate parts of names too, as in files whose names
    have no dots.
    """
    root = _Node()
    for layer, names in layers.items():
        node = root
        for part in re.split(r"[._/]", layer) if layer else ():
            node = node.parts.setdefault(part, _Node())
        node.weights = (*node.weights, *names)
    pending = [("", root)]
    while pending:
        prefix, node = pending.pop()
        alike: dict[frozenset[tuple[Shape, int]], str] = {}
        for part, below in node.parts.items():
            other = alike.setdefault(frozenset(Counter(shapes[name] for name in below.all_weights()).items()), part)
            if _NUMBER.sub("#", other) != _NUMBER.sub("#", part):
                return f"{prefix}{other}", f"{prefix}{part}"
            pending.append((f"{prefix}{part}.", below))
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
