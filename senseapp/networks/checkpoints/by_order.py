"""Match of weights with an architecture by order and shape, for checkpoints with unknown names.

This serves networks converted from another framework: signatures of (place, shape) are compared. Exchanged neighbours
of equal shape would not be detected, so such a match is a guess that the accuracy of the uncompressed network confirms
or refutes. Only files that ``torch.save`` wrote are matched: writers of safetensors sort weights by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.fingerprint import (
    COMPUTED_SUFFIXES,
    OrderedWeights,
    by_place,
    signature_of,
    weights_only,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

BY_ORDER_NOTE = (
    "Names are unknown; order and shapes fit {title}. This is a guess: the accuracy of the uncompressed network on "
    "your images confirms or refutes it."
)
PARAMETRIZED = re.compile(r"(?:^|\.)parametrizations\.|weight_(?:orig|[guv])$")
"""Names of what torch's parametrizations (weight_norm, spectral_norm) compute weights from, perhaps of equal shape."""
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


def ordered_weights(tensors: Mapping[str, Tensor]) -> tuple[OrderedWeights, ...]:
    """Return the weights in the orders to try: as in the file, and grouped by layer.

    A layer's weights are its weight, bias, running mean and running variance. Integer tensors (counters and tables of
    positions) are left out, whatever their names. None where weights are computed from others.
    """
    names = [name for name in weights_only(dict.fromkeys(tensors, ())) if tensors[name].is_floating_point()]
    if len(names) > 10_000 or any(map(PARAMETRIZED.search, names)):  # the largest architecture has 2,683
        return ()
    orders = dict.fromkeys((_layer_by_layer(names), tuple(names)))
    shapes = (tuple(tuple(tensors[name].shape) for name in order) for order in orders)
    return tuple(
        OrderedWeights(order, own, signature_of(by_place(own))) for order, own in zip(orders, shapes, strict=True)
    )


def _layer_by_layer(names: Iterable[str]) -> tuple[str, ...]:
    layers: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        found = _ROLE.match(name)
        layer, rank = ((found[1] or ""), _RANKS[found[2].lower()]) if found else (name, -1)
        layers.setdefault(layer, []).append((rank, name))
    return tuple(name for held in layers.values() for _, name in sorted(held, key=lambda each: each[0]))


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
