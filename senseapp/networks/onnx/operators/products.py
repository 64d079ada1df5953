"""Products, attention, norms and recurrent networks of computed tensors.

Products and norms with constant weights become layers (``layers.py``). LSTM, GRU and RNN run through torch's own
kernels, with the gates in torch's order.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import FormNotRead, enter, operator
from senseapp.networks.onnx.torch_graph import Node

enter(
    {
        "MatMul": torch.matmul,
        "Det": torch.linalg.det,
        "Einsum": lambda *tensors, equation="": torch.einsum(equation.replace(" ", ""), *tensors),
    }
)


@operator("Gemm")
def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,  # noqa: N803  as the specification names it
    transB: bool = False,  # noqa: N803
) -> Tensor:
    product = alpha * torch.matmul(a.T if transA else a, b.T if transB else b)
    return product if c is None else product + beta * c


def _lacks_of_attention(node: Node) -> str:
    windows = any(node.attributes.get(name, -1) >= 0 for name in ("left_window_size", "right_window_size"))
    if not (any(node.outputs[1:]) or any(node.inputs[4:]) or windows):
        return ""
    return (
        "only queries, keys, values and a mask are. Past and present keys, lengths of sequences and windows are not "
        "read. Export the network without a cache."
    )


@operator("Attention", lacks=_lacks_of_attention)
def _attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 0.0,
    softcap: float = 0.0,
    is_causal: bool = False,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
) -> Tensor:
    """Heads are the second axis, or (N, T, H D) with their number given; each of K heads of keys serves H / K."""
    if q_num_heads:
        queries = torch.unflatten(queries, -1, (q_num_heads, -1)).transpose(1, 2)  # (N, H, Q, D)
        keys, values = (torch.unflatten(each, -1, (kv_num_heads, -1)).transpose(1, 2) for each in (keys, values))
    served = queries.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(served, 1) if served > 1 else each for each in (keys, values))
    scores = torch.matmul(queries * (scale or 1 / math.sqrt(queries.shape[-1])), keys.transpose(-2, -1))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    weights = torch.softmax(scores if mask is None else _masked(scores, mask), -1)
    if mask is not None:  # which may leave a row without keys
        weights = torch.where(weights.isnan(), 0, weights)
    result = torch.matmul(weights, values)
    return result.transpose(1, 2).flatten(2) if q_num_heads else result


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Add ``mask``, or leave what is True of it; keys behind its end are left out."""
    missing = scores.shape[-1] - mask.shape[-1] if mask.ndim and mask.shape[-1] > 1 else 0
    if mask.dtype == torch.bool:
        mask = F.pad(mask, (0, missing), value=False) if missing else mask
        return scores.masked_fill(torch.logical_not(mask), -math.inf)
    return scores + (F.pad(mask, (0, missing), value=-math.inf) if missing else mask)


@operator("BatchNormalization")
def _batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    training_mode: bool = False,
) -> Tensor:
    if training_mode:  # older exports standardise weights so: with the statistics of what is given
        return F.batch_norm(x, None, None, scale, bias, True, 0.0, epsilon)
    # Statistics that the graph computes from stored ones are parameters, and torch has no gradient for them here.
    return F.batch_norm(x, mean.detach(), variance.detach(), scale, bias, False, 0.0, epsilon)


@operator("LayerNormalization")
def _layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5
) -> Tensor:
    normalised = F.layer_norm(x, x.shape[axis:], None, None, epsilon) * scale
    return normalised if bias is None else normalised + bias


@operator("GroupNormalization")
def _group_norm(x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int = 1, epsilon: float = 1e-5) -> Tensor:
    channels = x.shape[1]
    return F.group_norm(x, num_groups, by_channel(scale, channels), by_channel(bias, channels), epsilon)


def by_channel(weights: Tensor, channels: int) -> Tensor:
    """Return one weight per channel: before opset 21 there is one per group."""
    return weights if len(weights) == channels else weights.repeat_interleave(channels // len(weights))


enter(
    {
        # A group for each channel is also defined for one element a channel, where torch's instance norm is not.
        "InstanceNormalization": lambda x, scale, bias, *, epsilon=1e-5: F.group_norm(
            x, x.shape[1], scale, bias, epsilon
        ),
        # Of an even number of channels torch takes one more before, ONNX one more behind.
        "LRN": lambda x, *, size=1, alpha=1e-4, beta=0.75, bias=1.0: F.local_response_norm(
            x.flip(1), size, alpha, beta, bias
        ).flip(1),
        "RMSNormalization": lambda x, scale, *, axis=-1, epsilon=1e-5: (
            F.rms_norm(x, x.shape[axis:], None, epsilon) * scale
        ),
        "LpNormalization": lambda x, *, axis=-1, p=2: x / torch.linalg.vector_norm(x, p, axis, keepdim=True),
    }
)


_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # torch's order, as positions in ONNX's
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _lacks_of_recurrent(node: Node) -> str:
    at = node.attributes
    usual = _ACTIVATIONS[node.op] * (2 if at.get("direction") == "bidirectional" else 1)
    if at.get("activations", usual) != usual or "clip" in at or at.get("input_forget"):
        return "it has activations of its own, or clips."
    if any(node.inputs[7:]):
        return "it has peepholes."
    if node.op == "GRU" and not at.get("linear_before_reset"):
        return (
            "it applies its reset gate before the product with its own states, which torch does not. Export it with "
            "the gate after that (linear_before_reset=1; reset_after=True in Keras)."
        )
    return "it has its batch first, which onnxruntime does not compute either." if at.get("layout") else ""


def _recurrent(
    kind: str,
    x: Tensor,
    weights: Tensor,
    recurrent: Tensor,
    bias: Tensor | None = None,
    lengths: Sequence[int] | None = None,
    *states: Tensor | None,
    direction: str = "forward",
) -> tuple[Tensor, ...]:
    """Return Y (T, directions, N, H) and the last states (directions, N, H)."""
    if lengths and any(each != x.shape[0] for each in lengths):
        raise FormNotRead("it has sequences of several lengths.")
    x = x.flip(0) if direction == "reverse" else x
    ways, _, size = recurrent.shape
    given = (*states, None, None)[: 2 if kind == "LSTM" else 1]
    zeros = x.new_zeros(ways, 1, size)
    start = [(zeros if each is None else each).expand(ways, x.shape[1], size).contiguous() for each in given]
    flat = [part for way in range(len(weights)) for part in _parameters(kind, way, weights, recurrent, bias)]
    settings = (bias is not None, 1, 0.0, False, len(weights) > 1, False)
    if kind == "LSTM":
        y, *last = torch.lstm(x, start, flat, *settings)
    else:
        y, *last = (torch.gru if kind == "GRU" else torch.rnn_tanh)(x, start[0], flat, *settings)
    y = y.flip(0) if direction == "reverse" else y
    return (torch.unflatten(y, -1, (len(weights), -1)).transpose(1, 2), *last)


def _parameters(kind: str, way: int, weights: Tensor, recurrent: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Return the weights and biases of one direction, with gates in torch's order."""
    stacked = [weights[way], recurrent[way], *(() if bias is None else bias[way].chunk(2))]
    by_gate = (each.chunk(len(_GATES[kind])) for each in stacked)
    return [torch.cat([gates[position] for position in _GATES[kind]]) for gates in by_gate]


for _kind in _GATES:
    operator(_kind, numbers=(4,), lacks=_lacks_of_recurrent)(partial(_recurrent, _kind))
