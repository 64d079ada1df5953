"""Which parameters a tensor is computed from, when it is computed from parameters alone.

A convolution may multiply a weight that no parameter holds: one that was standardised, normalised, reshaped or joined
from several. Its multiply-accumulates belong to the parameters that it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from senseapp.compat.torch_internals import COPIES, WEIGHT_NORM, aten, operation_of, storage_of

_KEEPS_ZEROS = frozenset(
    {aten.mul, aten.div, aten.neg, aten.clone, aten.copy_, aten.cat, aten.stack, aten.index, aten.index_select}
    | {aten.flip, aten.repeat, aten.constant_pad_nd, aten.relu, WEIGHT_NORM, *COPIES}
)
"""Operations after which a zero of the weight is still a zero, besides views; anything else may move it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor comes from.

    Attributes:
        shares: by name of a parameter, its share of the tensor's elements.
        keeps_zeros: whether a zero in the parameter is a zero here.
        direct: whether the tensor is a parameter or a view of one.
    """

    shares: dict[str, float]
    keeps_zeros: bool = True
    direct: bool = False


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a parameter lies in its storage, in elements; several may share one (flattened weights)."""

    start: int
    stop: int
    name: str


@dataclass(slots=True)
class Origins:
    """Follows parameters through the operations of one pass; whoever uses it keeps all tensors alive."""

    _parameters: dict[int, list[_Span]] = field(default_factory=dict)  # by storage, as all of these
    _computed: dict[int, Origin] = field(default_factory=dict)
    _from_input: set[int] = field(default_factory=set)

    def add_input(self, tensor: Tensor) -> None:
        """Take everything that depends on ``tensor`` for activations."""
        self._from_input.add(storage_of(tensor))

    def add_parameter(self, name: str, parameter: Tensor) -> None:
        """Recognise ``parameter`` and its views; of tied ones, the first name counts."""
        start = int(parameter.storage_offset())
        span = _Span(start, start + parameter.numel(), name)
        self._parameters.setdefault(storage_of(parameter), []).append(span)

    def parameter_of(self, tensor: Tensor) -> str | None:
        """Return the name of the parameter that ``tensor`` is, or is a view of."""
        spans = self._parameters.get(storage_of(tensor), ())
        offset = tensor.storage_offset()
        return next((span.name for span in spans if span.start <= offset < span.stop), None)

    def of(self, tensor: Tensor) -> Origin | None:
        """Return the parameters behind ``tensor``; None for activations, constants and products of parameters."""
        name = self.parameter_of(tensor)
        return Origin({name: 1.0}, direct=True) if name else self._computed.get(storage_of(tensor))

    def follow(self, func: Any, arguments: Sequence[Tensor], results: Sequence[Tensor], *, product: bool) -> None:
        """Note what the results of an operation are computed from; that of a product is a weight no more."""
        if any(storage_of(tensor) in self._from_input for tensor in arguments):
            self._from_input.update(storage_of(tensor) for tensor in results)
            return
        known = [(tensor, origin) for tensor in arguments if (origin := self.of(tensor)) is not None]
        if product or not known:
            return
        packet = operation_of(func)
        keeps_zeros = packet in _KEEPS_ZEROS
        joined = known if packet in (aten.cat, aten.stack) else [max(known, key=lambda pair: pair[0].numel())]
        origin = _joined(joined, keeps_zeros=keeps_zeros)
        for result in results:
            if storage_of(result) not in self._parameters:
                self._computed[storage_of(result)] = origin


def _joined(parts: Sequence[tuple[Tensor, Origin]], *, keeps_zeros: bool) -> Origin:
    total = sum(tensor.numel() for tensor, _ in parts) or 1
    shares: dict[str, float] = {}
    for tensor, origin in parts:
        for name, share in origin.shares.items():
            shares[name] = shares.get(name, 0.0) + share * tensor.numel() / total
    return Origin(shares, keeps_zeros=keeps_zeros and all(origin.keeps_zeros for _, origin in parts))
