"""Operations that multiply and accumulate: the parameters of their weights, and the layer graph that they form."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from senseapp.compat.torch_internals import (
    ATTENTIONS,
    COPIES,
    ENCODER_LAYER,
    MULTI_HEAD_ATTENTION,
    WEIGHT_NORM,
    aten,
    operation_of,
    storage_of,
)
from senseapp.records.profile import INPUT, FlowNode

_KEEPS_ZEROS = frozenset(
    {aten.mul, aten.div, aten.neg, aten.clone, aten.copy_, aten.cat, aten.stack, aten.index, aten.index_select}
    | {aten.flip, aten.repeat, aten.constant_pad_nd, aten.relu, WEIGHT_NORM, *COPIES}
)
"""Operations, besides views, after which a zero of the weight is still a zero; any other may move it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The share of a tensor's elements that comes from each parameter.

    ``keeps_zeros``: zeros of the parameter are zeros here; ``direct``: the tensor is a parameter or a view of one.
    """

    shares: dict[str, float]
    keeps_zeros: bool = True
    direct: bool = False


@dataclass(slots=True)
class Origins:
    """Follows parameters through the operations of one pass; the caller must hold the numbers of all storages."""

    # By storage, like the fields below: the first element of each parameter, the one after its last, and its name.
    _parameters: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    _computed: dict[int, Origin] = field(default_factory=dict)
    _from_input: set[int] = field(default_factory=set)

    def add_input(self, tensor: Tensor) -> None:
        """Treat all tensors that depend on ``tensor`` as activations."""
        self._from_input.add(storage_of(tensor))

    def add_parameter(self, name: str, parameter: Tensor) -> None:
        """Register ``parameter`` and its views; tied parameters have the first name."""
        start = int(parameter.storage_offset())
        self._parameters.setdefault(storage_of(parameter), []).append((start, start + parameter.numel(), name))

    def parameter_of(self, tensor: Tensor) -> str | None:
        """Return the name of the parameter that ``tensor`` is or views."""
        spans = self._parameters.get(storage_of(tensor), ())
        offset = tensor.storage_offset()
        return next((name for start, stop, name in spans if start <= offset < stop), None)

    def of(self, tensor: Tensor) -> Origin | None:
        """Return the parameters that ``tensor`` is computed from; None for activations, constants and products."""
        name = self.parameter_of(tensor)
        return Origin({name: 1.0}, direct=True) if name else self._computed.get(storage_of(tensor))

    def follow(self, func: Any, arguments: Sequence[Tensor], results: Sequence[Tensor], *, product: bool) -> None:
        """Register the origin of an operation's results; the result of a product is not a weight."""
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


@dataclass(frozen=True, slots=True)
class Product:
    """One convolution, matrix product or attention: multiply-accumulates for the whole batch.

    ``weights`` are the operands that may be a weight, the likeliest first; empty if two activations are multiplied.
    """

    macs: int
    weights: tuple[Tensor, ...] = ()


def products_of(func: Any, args: Sequence[Any], output: Any) -> tuple[Product, ...]:
    """Return the products in one ATen operation; empty for other operations.

    Products of a matrix and a single vector are not counted, as in ``torch.utils.flop_counter``.
    """
    count = _COUNTS.get(operation_of(func))
    return count(args, output) if count else ()


def _matrices(first: int) -> Callable[[Sequence[Any], Any], tuple[Product, ...]]:
    """Count (…, n, k) · (…, k, m), whose operands are the arguments ``first`` and ``first + 1``."""

    def count(args: Sequence[Any], output: Any) -> tuple[Product, ...]:
        left, right = args[first], args[first + 1]
        return (Product(left.numel() * right.shape[-1], (right, left)),)  # F.linear puts its weight on the right

    return count


def _convolution(args: Sequence[Any], output: Any) -> tuple[Product, ...]:
    """A transposed convolution multiplies once per input position, any other once per output position."""
    data, weight, transposed = args[0], args[1], bool(args[6])
    counted = data if transposed else output
    return (Product(counted.numel() // max(weight.shape[0], 1) * weight.numel(), (weight, data)),)


def _attention(args: Sequence[Any], output: Any) -> tuple[Product, ...]:
    """Count q·kᵀ and the product with v, of shapes (…, L, E), (…, S, E) and (…, S, F)."""
    query, key, value = args[:3]
    return (Product(query.numel() // max(query.shape[-1], 1) * key.shape[-2] * (query.shape[-1] + value.shape[-1])),)


def _encoder_layer(args: Sequence[Any], output: Any) -> tuple[Product, ...]:
    """The fused kernel of ``nn.TransformerEncoderLayer``."""
    tokens = args[0].numel() // max(args[0].shape[-1], 1)
    feedforward = (Product(tokens * weight.numel(), (weight,)) for weight in (args[14], args[16]))
    return (*_self_attention(args[0], joint=args[3], projection=args[5]), *feedforward)


def _self_attention(tokens: Tensor, *, joint: Tensor, projection: Tensor) -> tuple[Product, ...]:
    positions = tokens.numel() // max(tokens.shape[-1], 1)
    return (
        Product(positions * joint.numel(), (joint,)),
        Product(2 * tokens.numel() * tokens.shape[-2]),
        Product(positions * projection.numel(), (projection,)),
    )


def _recurrent_layer(args: Sequence[Any], output: Any) -> tuple[Product, ...]:
    """The fused kernel of one LSTM layer, over (L, N, E)."""
    positions = args[0].numel() // max(args[0].shape[-1], 1)
    return tuple(Product(positions * weight.numel(), (weight,)) for weight in args[1:3])


_COUNTS: dict[Any, Callable[[Sequence[Any], Any], tuple[Product, ...]]] = {
    aten.mm: _matrices(0),
    aten.bmm: _matrices(0),
    aten.addmm: _matrices(1),
    aten.baddbmm: _matrices(1),
    aten.convolution: _convolution,
    **dict.fromkeys(ATTENTIONS, _attention),
    # the fused kernel of nn.MultiheadAttention: self-attention of (N, L, E)
    MULTI_HEAD_ATTENTION: lambda args, _output: _self_attention(args[0], joint=args[5], projection=args[7]),
    ENCODER_LAYER: _encoder_layer,
    aten.mkldnn_rnn_layer: _recurrent_layer,
}


class DataFlow:
    """Follows activations through the operations of one pass; the caller must hold the numbers of all storages.

    Nodes are layers, and operations on the results of several nodes, such as the sum after a skip connection.
    Operations between them (norms, activations, reshapes) are not nodes: their results belong to the node before.
    """

    def __init__(self) -> None:
        self.nodes: list[FlowNode] = []
        self._sources: dict[int, int] = {}  # by storage: the node that computed its content

    def add_input(self, tensor: Tensor) -> None:
        """Add ``tensor``, an input of the network, as a node."""
        self._compute([tensor], FlowNode(name=INPUT, kind="input"))

    def follow(
        self, operation: str, layers: Iterable[str], arguments: Sequence[Tensor], results: Sequence[Tensor]
    ) -> None:
        """Add one operation, which multiplies by the weights of ``layers`` in turn; most operations have none."""
        found = (self._sources.get(storage_of(tensor)) for tensor in arguments)
        sources = tuple(dict.fromkeys(source for source in found if source is not None))
        for name in layers:
            self._compute(results, FlowNode(name=name, kind="layer", inputs=sources))
            sources = (len(self.nodes) - 1,)
        if len(sources) == 1:
            self._sources.update((storage_of(tensor), sources[0]) for tensor in results)
        elif sources:
            self._compute(results, FlowNode(name=operation.strip("_"), kind="join", inputs=sources))

    def _compute(self, results: Sequence[Tensor], node: FlowNode) -> None:
        self.nodes.append(node)
        self._sources.update((storage_of(tensor), len(self.nodes) - 1) for tensor in results)
