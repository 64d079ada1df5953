"""Checkpoints whose weights have other names than the architecture's: matched by the order and shapes of the weights.

A network converted from another framework, or written anew by somebody, holds the same weights in the same order
under names of its own. What is compared is the sequence of shapes, by the signature of (place, shape), so that the
places whose shape depends on the number of classes, the input channels or the image size can be left out. Neighbours
of equal shape could be exchanged unseen, so a match is a guess that the accuracy of the uncompressed network confirms
or refutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from senseapp.errors import InvalidCheckpoint
from senseapp.models.fingerprint import COMPUTED_SUFFIXES, Shape, by_place, signature_of, weights_only

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
_VARIANCE_SUFFIX = "running_var"


class OrderedWeights(NamedTuple):
    """Names and shapes of a checkpoint's weights in one order, and the signature of the shapes by place."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    signature: int


def ordered_weights(tensors: Mapping[str, Tensor]) -> tuple[OrderedWeights, ...]:
    """Return the weights in the orders to try: as PyTorch's own layers hold theirs, then as they are in the file.

    Whole numbers (counters and tables of positions) are left out, whatever their names. In the first order the
    weights of one layer stand together: weight, bias, running mean, running variance.
    """
    names = tuple(name for name in weights_only(dict.fromkeys(tensors, ())) if tensors[name].is_floating_point())
    found = []
    for order in dict.fromkeys((_layer_by_layer(names), names)):
        shapes = tuple(tuple(tensors[name].shape) for name in order)
        found.append(OrderedWeights(order, shapes, signature_of(by_place(shapes))))
    return tuple(found)


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
        order: those names in the architecture's order, see :func:`ordered_weights`.
        file_name: of the checkpoint.
        title: of the architecture.

    Raises:
        InvalidCheckpoint: a weight would become a variance and is negative, so the order is another one.
    """
    own = [name for name in module.state_dict() if not name.endswith(COMPUTED_SUFFIXES)]
    for name, found in zip(own, order, strict=True):
        if name.endswith(_VARIANCE_SUFFIX) and bool((tensors[found] < 0).any()):
            raise InvalidCheckpoint(
                f"The shapes of {file_name} fit {title} in their order, but {found} would be a variance and holds "
                "negative numbers, so the order is another one. Save the weights under the names of the architecture."
            )
    return {name: tensors[found] for name, found in zip(own, order, strict=True)}
