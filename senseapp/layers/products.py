"""Which operations multiply and accumulate, how often, and which tensors they multiply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from senseapp.compat.torch_internals import ATTENTIONS, ENCODER_LAYER, MULTI_HEAD_ATTENTION, aten, operation_of


@dataclass(frozen=True, slots=True)
class Product:
    """One convolution, matrix product or attention.

    Attributes:
        macs: multiply-accumulates, for the whole batch.
        weights: operands that may be a weight, the likeliest first; empty where two activations are multiplied.
    """

    macs: int
    weights: tuple[Tensor, ...] = ()


def products_of(func: Any, args: Sequence[Any], output: Any) -> tuple[Product, ...]:
    """Return what one operation of ATen multiplies; nothing for operations that are not products.

    Products of a matrix and a single vector are not counted, as in ``torch.utils.flop_counter``.
    """
    count = _COUNTS.get(operation_of(func))
    return count(args, output) if count else ()


def _matrices(first: int) -> Callable[[Sequence[Any], Any], tuple[Product, ...]]:
    """Count (…, n, k) · (…, k, m), whose operands are the arguments ``first`` and the one after it."""

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


def _multihead_attention(args: Sequence[Any], output: Any) -> tuple[Product, ...]:
    """The fused kernel of ``nn.MultiheadAttention``: self-attention of (N, L, E)."""
    return _self_attention(args[0], joint=args[5], projection=args[7])


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
    MULTI_HEAD_ATTENTION: _multihead_attention,
    ENCODER_LAYER: _encoder_layer,
    aten.mkldnn_rnn_layer: _recurrent_layer,
}
