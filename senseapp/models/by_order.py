"""Checkpoints whose weights have other names than the architecture's: matched by the order and shapes of the weights.

A network converted from another framework, or written anew by somebody, holds the same weights in the same order
under names of its own. What is compared is the sequence of shapes: the *order signature* is the sum (modulo 2^64) of
one hash per (place, shape), so that the places whose shape depends on the number of classes, the input channels or
the image size can be left out. Neighbours of equal shape could be exchanged unseen, so a match is a guess that the
accuracy of the uncompressed network confirms or refutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from senseapp.errors import InvalidCheckpoint
from senseapp.models.free_dimensions import FreeDimensions
from senseapp.models.signature import COMPUTED_SUFFIXES, OrderSignature, entry_hash, weights_only

BY_ORDER_NOTE = (
    "Names are unknown; order and shapes fit {title}. This is a guess: the accuracy of the uncompressed network on "
    "your images confirms or refutes it."
)
_MODULUS = 1 << 64
_ROLES = (  # longest first: running_mean ends in mean
    ("running_mean", 2),
    ("moving_mean", 2),
    ("running_variance", 3),
    ("running_var", 3),
    ("moving_variance", 3),
    ("moving_var", 3),
    ("variance", 3),
    ("weight", 0),
    ("kernel", 0),
    ("gamma", 0),
    ("mean", 2),
    ("bias", 1),
    ("beta", 1),
    ("var", 3),
    ("w", 0),
    ("b", 1),
)
_ROLE = re.compile(rf"^(?:(.*?)[._/])?({'|'.join(name for name, _ in _ROLES)})$", re.IGNORECASE)
_RANKS = dict(_ROLES)
_VARIANCE_SUFFIX = "running_var"


@dataclass(frozen=True, slots=True)
class OrderedWeights:
    """The weights of a checkpoint in one order in which an architecture may hold them.

    Attributes:
        names: as the checkpoint has them.
        shapes: one per name.
        signature: the sum of the hashes of (place, shape).
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    signature: int

    def free_shapes(self, known: OrderSignature, free: FreeDimensions) -> dict[str, tuple[int, ...]] | None:
        """Return the shapes that follow from classes, channels and image size, by the architecture's names for them.

        None where the other weights are not those of the architecture, in its order.
        """
        if len(self.shapes) != known.count:
            return None
        left = sum(entry_hash(str(place), self.shapes[place]) for place in known.places)
        if (self.signature - left) % _MODULUS != known.fixed:
            return None
        found = {name: self.shapes[place] for name, place in zip(free.patterns, known.places, strict=True)}
        return found if free.fit(found) else None


def ordered_weights(tensors: Mapping[str, Tensor]) -> tuple[OrderedWeights, ...]:
    """Return the weights in the orders to try: as PyTorch's own layers hold theirs, then as they are in the file.

    Whole numbers (counters and tables of positions) are left out, whatever their names. In the first order the
    weights of one layer stand together: weight, bias, running mean, running variance.
    """
    names = [name for name in weights_only(dict.fromkeys(tensors, ())) if tensors[name].is_floating_point()]
    return tuple(_ordered(order, tensors) for order in dict.fromkeys((_layer_by_layer(names), tuple(names))))


def _ordered(names: tuple[str, ...], tensors: Mapping[str, Tensor]) -> OrderedWeights:
    shapes = tuple(tuple(tensors[name].shape) for name in names)
    signature = sum(entry_hash(str(place), shape) for place, shape in enumerate(shapes)) % _MODULUS
    return OrderedWeights(names, shapes, signature)


def _layer_by_layer(names: Iterable[str]) -> tuple[str, ...]:
    layers: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        found = _ROLE.match(name)
        layer, rank = ((found[1] or ""), _RANKS[found[2].lower()]) if found else (f"{name}.", 0)
        layers.setdefault(layer, []).append((rank, name))
    return tuple(name for layer in layers.values() for _, name in sorted(layer, key=lambda item: item[0]))


def named_by_order(
    module: nn.Module, tensors: Mapping[str, Tensor], order: Sequence[str], *, file_name: str, title: str
) -> dict[str, Tensor]:
    """Return the weights under the names that ``module`` has for those at the same places.

    Args:
        module: the architecture.
        tensors: of the checkpoint, by its own names.
        order: those names in the architecture's order, see :attr:`OrderedWeights.names`.
        file_name: of the checkpoint.
        title: of the architecture.

    Raises:
        InvalidCheckpoint: a weight would become a variance and is negative, so the order is another one.
    """
    own = [name for name in module.state_dict() if not name.endswith(COMPUTED_SUFFIXES)]
    named = {name: tensors[found] for name, found in zip(own, order, strict=True)}
    negative = [
        found
        for name, found in zip(own, order, strict=True)
        if name.endswith(_VARIANCE_SUFFIX) and tensors[found].numel() and bool((tensors[found] < 0).any())
    ]
    if negative:
        raise InvalidCheckpoint(
            f"The shapes of {file_name} fit {title} in their order, but {negative[0]} would be a variance and holds "
            "negative numbers, so the order is another one. Save the weights under the names of the architecture."
        )
    return named
