"""LSTM, GRU and RNN through torch's own kernels, with the gates in torch's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import Attributes, FormNotRead, operator

_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # torch's order, as positions in ONNX's
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    kind: str
    backwards: bool
    both_ways: bool
    batch_first: bool
    reset_first: bool = False

    def __call__(
        self,
        x: Tensor,
        weights: Tensor,
        recurrent: Tensor,
        bias: Tensor | None = None,
        lengths: Sequence[int] | None = None,
        hidden: Tensor | None = None,
        cell: Tensor | None = None,
        peepholes: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return Y (T, directions, N, H) and the last states (directions, N, H)."""
        if self.batch_first:
            raise FormNotRead("it has its batch first, which onnxruntime does not compute either.")
        if peepholes is not None or (lengths and any(each != x.shape[0] for each in lengths)):
            raise FormNotRead("it has peepholes, or sequences of several lengths.")
        x = x.flip(0) if self.backwards else x
        states = [self._state(each, x, recurrent) for each in ((hidden, cell) if self.kind == "LSTM" else (hidden,))]
        flat = [part for way in range(weights.shape[0]) for part in self._parameters(way, weights, recurrent, bias)]
        y, *last = self._run(x, states, flat, has_bias=bias is not None)
        y = y.flip(0) if self.backwards else y
        steps, batch = y.shape[:2]
        return (y.reshape(steps, batch, weights.shape[0], -1).transpose(1, 2), *last)

    def _run(self, x: Tensor, states: list[Tensor], flat: list[Tensor], *, has_bias: bool) -> Any:
        if self.reset_first:
            return self._reset_first(x, states[0], flat)
        settings = (has_bias, 1, 0.0, False, self.both_ways, False)
        if self.kind == "LSTM":
            return torch.lstm(x, states, flat, *settings)
        return (torch.gru if self.kind == "GRU" else torch.rnn_tanh)(x, states[0], flat, *settings)

    def _reset_first(self, x: Tensor, state: Tensor, flat: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Run a GRU that applies its reset gate before the product with the recurrent weights; torch has none."""
        per_way = len(flat) // len(state)
        runs = [self._one_way(x, state[way], flat[way * per_way :][:per_way], way) for way in range(len(state))]
        return torch.cat([y for y, _ in runs], -1), torch.stack([last for _, last in runs])

    def _one_way(self, x: Tensor, state: Tensor, parameters: list[Tensor], way: int) -> tuple[Tensor, Tensor]:
        weights, recurrent, *biases = parameters
        projected = F.linear(x.flip(0) if way else x, weights, torch.stack(biases).sum(0) if biases else None)
        size = state.shape[-1]
        gates, candidate = recurrent[: 2 * size], recurrent[2 * size :]
        steps = []
        for each in projected:
            of_gates, of_candidate = each[:, : 2 * size], each[:, 2 * size :]
            reset, update = torch.sigmoid(of_gates + state @ gates.T).chunk(2, -1)
            new = torch.tanh(of_candidate + (reset * state) @ candidate.T)
            state = update * state + (1 - update) * new
            steps.append(state)
        y = torch.stack(steps)
        return y.flip(0) if way else y, state

    def _state(self, state: Tensor | None, x: Tensor, recurrent: Tensor) -> Tensor:
        ways, _, size = recurrent.shape
        start = x.new_zeros(ways, 1, size) if state is None else state
        return start.expand(ways, x.shape[1], size).contiguous()

    def _parameters(self, way: int, weights: Tensor, recurrent: Tensor, bias: Tensor | None) -> list[Tensor]:
        found = [self._ordered(weights[way]), self._ordered(recurrent[way])]
        if bias is not None:
            found += [self._ordered(half) for half in bias[way].chunk(2)]
        return found

    def _ordered(self, stacked: Tensor) -> Tensor:
        gates = stacked.chunk(len(_GATES[self.kind]))
        return torch.cat([gates[position] for position in _GATES[self.kind]])


@operator("LSTM", "GRU", "RNN", numbers=(4,))
def _recurrent(*inputs: Any, op: str = "", at: Attributes) -> tuple[Tensor, ...]:
    direction = at.text("direction", "forward")
    usual = _ACTIVATIONS[op] * (2 if direction == "bidirectional" else 1)
    if at.values.get("activations", usual) != usual or "clip" in at.values or at.whole("input_forget", 0):
        raise FormNotRead("it has activations of its own, or clips.")
    cell = _Cell(
        kind=op,
        backwards=direction == "reverse",
        both_ways=direction == "bidirectional",
        batch_first=bool(at.whole("layout", 0)),
        reset_first=op == "GRU" and not at.whole("linear_before_reset", 0),
    )
    return cell(*inputs)
