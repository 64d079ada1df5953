"""Decomposition of ``Attention`` (opset 23) into nodes of one step each, which are then read as in any other file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from senseapp.networks.onnx.torch_graph import Constant, Node, UnreadNode


def split_attention(node: Node, *, in_runtime: bool) -> tuple[list[Node], dict[str, Constant]]:
    """Return the nodes that an ``Attention`` consists of and their constants; any other node unchanged.

    Raises UnreadNode where a form of it is not read; with ``in_runtime`` it stays for onnxruntime to compute.
    """
    if node.op != "Attention":
        return [node], {}
    windows = any(node.attributes.get(name, -1) >= 0 for name in ("left_window_size", "right_window_size"))
    if any(node.outputs[1:]) or any(node.inputs[4:]) or windows:
        if in_runtime:
            return [node], {}
        raise UnreadNode(
            f"Node {node.title} is not supported: only queries, keys, values and a mask are. Past and "
            "present keys, lengths of sequences and windows are not read. Export the network without a cache."
        )
    parts = _Parts(node=replace(node, source=b""))
    parts.write()
    return parts.nodes, parts.constants


@dataclass(slots=True, kw_only=True)
class _Parts:
    """The nodes that take the place of ``node``, and constants that they need."""

    node: Node
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)

    def write(self) -> None:
        """Add all nodes; queries, keys and values are split into heads where they are (N, T, H D)."""
        at = self.node.attributes
        sides, mask = list(self.node.inputs[:3]), "".join(self.node.inputs[3:4])
        heads = [at.get("q_num_heads", 0), *[at.get("kv_num_heads", 0)] * 2]
        if heads[0]:
            named = zip(sides, heads, ("queries", "keys", "values"), strict=True)
            sides = [self._by_head(name, count, what) for name, count, what in named]
        settings = {name: at[name] for name in ("scale", "softcap", "is_causal") if at.get(name)}
        result = self._add("AttentionScores", sides[:2], "scores", **settings)
        if mask:
            result = self._add("AttentionMask", [result, mask], "masked")
        result = self._add("AttentionSoftmax" if mask else "Softmax", [result], "weights", axis=-1)
        if not heads[0]:
            self._add("AttentionValues", [result, sides[2]])
            return
        result = self._add("AttentionValues", [result, sides[2]], "result by head")
        result = self._add("Transpose", [result], "result", perm=[0, 2, 1, 3])
        self._add("Reshape", [result, self._constant("result shape", [0, 0, -1])])

    def _by_head(self, name: str, heads: int, what: str) -> str:
        cut = self._add("Reshape", [name, self._constant(f"{what} shape", [0, 0, heads, -1])], f"{what} apart")
        return self._add("Transpose", [cut], f"{what} by head", perm=[0, 2, 1, 3])

    def _add(self, op: str, inputs: Sequence[str], what: str = "", **attributes: Any) -> str:
        """Add a node, and return the value that it computes: that of the whole node without ``what``."""
        output = f"{self.node.outputs[0]} {what}".rstrip()
        name = f"{self.node.name} {what}".rstrip()
        own = {"name": name, "op": op, "version": 18, "inputs": tuple(inputs), "outputs": (output,)}
        self.nodes.append(replace(self.node, attributes=attributes, **own))  # type: ignore[arg-type]
        return output

    def _constant(self, what: str, value: Sequence[int]) -> str:
        name = f"{self.node.outputs[0]} {what}"
        self.constants[name] = Constant(value=torch.tensor(value))
        return name
