"""LSTM, GRU and RNN through torch's own kernels, with the gates in torch's order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from senseapp.networks.onnx.operators.registry import FormNotRead, operator
from senseapp.networks.onnx.torch_graph import Node

_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # torch's order, as positions in ONNX's
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _lacks(node: Node) -> str:
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
    start = [_state(each, x, recurrent) for each in (*states, None, None)[: 2 if kind == "LSTM" else 1]]
    flat = [part for way in range(len(weights)) for part in _parameters(kind, way, weights, recurrent, bias)]
    settings = (bias is not None, 1, 0.0, False, len(weights) > 1, False)
    if kind == "LSTM":
        y, *last = torch.lstm(x, start, flat, *settings)
    else:
        y, *last = (torch.gru if kind == "GRU" else torch.rnn_tanh)(x, start[0], flat, *settings)
    y = y.flip(0) if direction == "reverse" else y
    return (torch.unflatten(y, -1, (len(weights), -1)).transpose(1, 2), *last)


def _state(state: Tensor | None, x: Tensor, recurrent: Tensor) -> Tensor:
    ways, _, size = recurrent.shape
    start = x.new_zeros(ways, 1, size) if state is None else state
    return start.expand(ways, x.shape[1], size).contiguous()


def _parameters(kind: str, way: int, weights: Tensor, recurrent: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Return the weights and biases of one direction, with gates in torch's order."""
    stacked = [weights[way], recurrent[way], *(() if bias is None else bias[way].chunk(2))]
    by_gate = (each.chunk(len(_GATES[kind])) for each in stacked)
    return [torch.cat([gates[position] for position in _GATES[kind]]) for gates in by_gate]


for _kind in _GATES:
    operator(_kind, numbers=(4,), lacks=_lacks)(partial(_recurrent, _kind))
