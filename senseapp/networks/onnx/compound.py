"""Decomposition of compound nodes into nodes of one step each.

``Attention`` of opset 23, and what onnxruntime's optimisers save: a layer with its activation, a norm with the sum
before it, attention. Layers, norms and heads are then found as in any other file. Where a part reads weights, it knows
which input of the file's node that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from senseapp.networks.onnx.graph import Constant, Node, PartOf, UnreadNode

_VERSION = 18  # of the operators that take a compound's place
_CONTRIB = "com.microsoft::"


@dataclass(slots=True, kw_only=True)
class _Parts:
    """The nodes that take the place of ``node``, and constants that they need."""

    node: Node
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        what: str = "",
        *,
        reads: Sequence[int] = (),
        version: int = _VERSION,
        **attributes: Any,
    ) -> str:
        """Add a node, and return the value that it computes: the compound's own without ``what``.

        Args:
            op: operator.
            inputs: values.
            what: the value is for.
            reads: position among the inputs of the file's node of each of ``inputs``.
            version: of the operator.
            attributes: of the node.
        """
        return self.add_several(op, inputs, [what], reads=reads, version=version, **attributes)[0]

    def add_several(
        self,
        op: str,
        inputs: Sequence[str],
        whats: Sequence[str],
        *,
        reads: Sequence[int] = (),
        version: int = _VERSION,
        **attributes: Any,
    ) -> list[str]:
        """Add a node of several values; see :meth:`add`."""
        node = self.node
        outputs = [f"{node.outputs[0]} {what}" if what else node.outputs[0] for what in whats]
        positions = (*reads, *[PartOf.NOWHERE] * (len(inputs) - len(reads)))
        self.nodes.append(
            replace(
                node,
                name=f"{node.name} {whats[0]}" if whats[0] else node.name,
                op=op,
                version=version,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                attributes=attributes,
                part_of=PartOf(output=node.outputs[0], positions=positions),
            )
        )
        return outputs

    def constant(self, what: str, value: float | Sequence[int]) -> str:
        """Return the name of a constant: a number, or whole numbers."""
        name = f"{self.node.outputs[0]} {what}"
        self.constants[name] = Constant(value=torch.tensor(value))
        return name

    def input_at(self, position: int) -> str:
        """Return an input of the node; empty where it is absent."""
        return self.node.inputs[position] if position < len(self.node.inputs) else ""

    def at(self, name: str, default: Any) -> Any:
        """Return an attribute of the node."""
        return self.node.attributes.get(name, default)

    def refuse(self, what: str) -> UnreadNode:
        """Return the error for a form that is not read."""
        op = self.node.op.removeprefix(_CONTRIB)
        return UnreadNode(f"Node “{self.node.name}” ({op}) is not supported: {what}")


Writing = Callable[[_Parts], None]


def written_out(node: Node, *, in_runtime: bool) -> tuple[list[Node], dict[str, Constant]]:
    """Return the nodes that the compound ``node`` consists of and their constants; any other node unchanged.

    Raises UnreadNode where a form of it is not read; with ``in_runtime`` it stays for onnxruntime to compute.
    """
    writing = COMPOUND.get(node.op)
    if writing is None:
        return [node], {}
    parts = _Parts(node=replace(node, source=b""))
    try:
        writing(parts)
    except UnreadNode:
        if in_runtime:
            return [node], {}
        raise
    return parts.nodes, parts.constants


def _activated(parts: _Parts, x: str, kind: str, numbers: Sequence[float]) -> None:
    """Add the activation ``kind`` with its parameters, as fused layers name both."""
    match kind:
        case "Relu" | "Tanh" | "Sigmoid":
            parts.add(kind, [x])
        case "LeakyRelu":
            parts.add(kind, [x], alpha=numbers[0] if numbers else 0.01)
        case "HardSigmoid":
            alpha, beta = numbers if len(numbers) == 2 else (0.2, 0.5)
            parts.add(kind, [x], alpha=alpha, beta=beta)
        case "Clip" if len(numbers) == 2:
            parts.add(kind, [x, parts.constant("lower", float(numbers[0])), parts.constant("upper", float(numbers[1]))])
        case _:
            raise parts.refuse(f"its activation “{kind[:40]}” is not read. Bring the file before it was optimised.")


def _fused_conv(parts: _Parts) -> None:
    if parts.input_at(3):
        raise parts.refuse("it adds another tensor. Bring the file before it was optimised.")
    own = {"activation", "activation_params"}
    settings = {name: value for name, value in parts.node.attributes.items() if name not in own}
    result = parts.add("Conv", parts.node.inputs[:3], "convolved", reads=(0, 1, 2), **settings)
    _activated(parts, result, parts.at("activation", ""), parts.at("activation_params", []))


def _fused_gemm(parts: _Parts) -> None:
    settings = {name: value for name, value in parts.node.attributes.items() if not name.startswith("activation")}
    result = parts.add("Gemm", parts.node.inputs, "product", reads=(0, 1, 2), **settings)
    kind = parts.at("activation", "")
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    numbers = [float(parts.at(name, 0.0)) for name in names if name in parts.node.attributes]
    _activated(parts, result, kind, numbers)


def _fused_product(parts: _Parts) -> None:
    if parts.at("transBatchA", 0) or parts.at("transBatchB", 0):
        raise parts.refuse("it exchanges axes of the batch. Bring the file before it was optimised.")
    turned = {"a": parts.at("transA", 0), "b": parts.at("transB", 0)}
    sides = []
    for position, (side, turn) in enumerate(turned.items()):
        name = parts.input_at(position)
        sides.append(parts.add("SwapLast", [name], f"{side} turned") if turn else name)
    alpha = float(parts.at("alpha", 1.0))
    reads = (0, PartOf.NOWHERE if turned["b"] else 1)
    if alpha == 1:
        parts.add("MatMul", sides, reads=reads)
    else:
        result = parts.add("MatMul", sides, "product", reads=reads)
        parts.add("Mul", [result, parts.constant("factor", alpha)])


def _gelu(parts: _Parts) -> None:
    parts.add("Gelu", [parts.input_at(0)])


def _bias_gelu(parts: _Parts) -> None:
    parts.add("Gelu", [parts.add("Add", parts.node.inputs, "sum", reads=(0, 1))])


def _fast_gelu(parts: _Parts) -> None:
    x = parts.add("Add", parts.node.inputs[:2], "sum", reads=(0, 1)) if parts.input_at(1) else parts.input_at(0)
    parts.add("Gelu", [x], approximate="tanh")


def _quick_gelu(parts: _Parts) -> None:
    parts.add("Swish", [parts.input_at(0)], alpha=float(parts.at("alpha", 1.702)))


def _skip_norm(parts: _Parts) -> None:
    """Normalise the sum of the first two inputs and a bias; the sum is the fourth output."""
    plain = "Simplified" in parts.node.op
    bias_at = 3 if plain else 4
    outputs = parts.node.outputs
    if any(outputs[1:3]):
        raise parts.refuse("it returns its statistics. Bring the file before it was optimised.")
    result = parts.add("Add", [parts.input_at(0), parts.input_at(1)], "skip", reads=(0, 1))
    if parts.input_at(bias_at):
        result = parts.add("Add", [result, parts.input_at(bias_at)], "sum", reads=(PartOf.NOWHERE, bias_at))
    if len(outputs) > 3 and outputs[3]:
        parts.nodes[-1] = replace(parts.nodes[-1], outputs=(outputs[3],))
        result = outputs[3]
    eps = float(parts.at("epsilon", 1e-12))
    weights = [name for name in (parts.input_at(2), "" if plain else parts.input_at(3)) if name]
    parts.add(
        "RMSNormalization" if plain else "LayerNormalization",
        [result, *weights],
        reads=(PartOf.NOWHERE, 2, 3)[: 1 + len(weights)],
        axis=-1,
        epsilon=eps,
    )


def _simple_norm(parts: _Parts) -> None:
    if any(parts.node.outputs[1:]):
        raise parts.refuse("it returns its statistics. Bring the file before it was optimised.")
    parts.add(
        "RMSNormalization",
        parts.node.inputs,
        reads=(0, 1),
        axis=parts.at("axis", -1),
        epsilon=float(parts.at("epsilon", 1e-5)),
    )


_MASKING = "past and present keys, lengths of sequences and windows are not read. Export the network without a cache."


def _attention(parts: _Parts) -> None:
    windows = any(parts.at(name, -1) >= 0 for name in ("left_window_size", "right_window_size"))
    if any(parts.node.outputs[1:]) or any(parts.node.inputs[4:]) or windows:
        raise parts.refuse(f"only queries, keys, values and a mask are. {_MASKING}")
    projections = [parts.input_at(position) for position in range(3)]
    query_heads = parts.at("q_num_heads", 0)
    heads = (query_heads, parts.at("kv_num_heads", 0), parts.at("kv_num_heads", 0)) if query_heads else ()
    _attended(parts, projections, heads, parts.input_at(3))


def _attended(parts: _Parts, projections: Sequence[str], heads: Sequence[int], mask: str) -> None:
    """Add attention; ``heads`` is how many each of queries, keys and values has where they are (N, T, H D)."""
    sides = list(projections)
    if heads:
        sides = [
            _by_head(parts, name, count, what)
            for name, count, what in zip(projections, heads, ("queries", "keys", "values"), strict=True)
        ]
    settings = {name: parts.node.attributes[name] for name in ("softcap", "is_causal") if parts.at(name, 0)}
    if parts.at("scale", 0.0):
        settings["scale"] = parts.at("scale", 0.0)
    if parts.at("unidirectional", 0):
        settings["is_causal"] = 1
    result = parts.add("AttentionScores", sides[:2], "scores", **settings)
    if mask:
        result = parts.add("AttentionMask", [result, mask], "masked", reads=(PartOf.NOWHERE, _MASK_AT[parts.node.op]))
    result = parts.add("AttentionSoftmax" if mask else "Softmax", [result], "weights", axis=-1)
    if not heads:
        parts.add("AttentionValues", [result, sides[2]])
        return
    result = parts.add("AttentionValues", [result, sides[2]], f"result{_BY_HEAD}")
    result = parts.add("Transpose", [result], "result", perm=[0, 2, 1, 3])
    parts.add("Reshape", [result, parts.constant("result shape", [0, 0, -1])])


_BY_HEAD = " by head"
_COUNTED = {"q_num_heads": "queries", "num_heads": "queries", "kv_num_heads": "keys"}
# place of the mask among the inputs, as the operators' specifications number them
_MASK_AT = {"Attention": 3, f"{_CONTRIB}MultiHeadAttention": 5, f"{_CONTRIB}Attention": 5}


def _by_head(parts: _Parts, name: str, heads: int, what: str) -> str:
    if heads < 1:
        raise parts.refuse("it does not say how many heads it has.")
    cut = parts.add("Reshape", [name, parts.constant(f"{what} shape", [0, 0, heads, -1])], f"{what} apart")
    return parts.add("Transpose", [cut], f"{what}{_BY_HEAD}", perm=[0, 2, 1, 3])


def by_head(output: str, attribute: str) -> str:
    """Return the value (N, H, T, D) whose heads an ``attribute`` of the attention that computes ``output`` counts.

    Empty for attributes that count none.
    """
    what = _COUNTED.get(attribute)
    return f"{output} {what}{_BY_HEAD}" if what else ""


def _multi_head(parts: _Parts) -> None:
    """Of onnxruntime: queries, keys, values (N, T, H D), a bias of all three; no cache, no padding mask."""
    absent = [parts.input_at(4), *parts.node.inputs[6:]]
    if not (parts.input_at(1) and parts.input_at(2)) or any(absent) or any(parts.node.outputs[1:]):
        raise parts.refuse(f"only queries, keys and values apart, a bias and a mask to add are. {_MASKING}")
    projections = [parts.input_at(position) for position in range(3)]
    if parts.input_at(3):
        names = ["queries", "keys", "values"]
        biases = parts.add_several("Split", [parts.input_at(3)], [f"bias of {each}" for each in names], axis=0)
        projections = [
            parts.add("Add", pair, f"{what} sum")
            for pair, what in zip(zip(projections, biases, strict=True), names, strict=True)
        ]
    _attended(parts, projections, [parts.at("num_heads", 0)] * 3, parts.input_at(5))


def _packed_attention(parts: _Parts) -> None:
    """Of onnxruntime: one product makes queries, keys and values (N, T, H D)."""
    absent = [parts.input_at(3), parts.input_at(4), *parts.node.inputs[6:]]
    if any(absent) or any(parts.node.outputs[1:]) or parts.at("do_rotary", 0):
        raise parts.refuse(f"only a bias and a mask to add are. {_MASKING}")
    result = parts.add("MatMul", [parts.input_at(0), parts.input_at(1)], "product", reads=(0, 1))
    if parts.input_at(2):
        result = parts.add("Add", [result, parts.input_at(2)], "packed", reads=(PartOf.NOWHERE, 2))
    lengths = parts.at("qkv_hidden_sizes", [])
    inputs = [result, parts.constant("lengths", lengths)] if lengths else [result]
    projections = parts.add_several("Split", inputs, ["queries", "keys", "values"], axis=-1)
    _attended(parts, projections, [parts.at("num_heads", 0)] * 3, parts.input_at(5))


COMPOUND: dict[str, Writing] = {
    "Attention": _attention,
    "SimplifiedLayerNormalization": _simple_norm,  # onnxruntime saves it so, without a domain
    f"{_CONTRIB}Attention": _packed_attention,
    f"{_CONTRIB}BiasGelu": _bias_gelu,
    f"{_CONTRIB}FastGelu": _fast_gelu,
    f"{_CONTRIB}FusedConv": _fused_conv,
    f"{_CONTRIB}FusedGemm": _fused_gemm,
    f"{_CONTRIB}FusedMatMul": _fused_product,
    f"{_CONTRIB}Gelu": _gelu,
    f"{_CONTRIB}MultiHeadAttention": _multi_head,
    f"{_CONTRIB}QuickGelu": _quick_gelu,
    f"{_CONTRIB}SkipLayerNormalization": _skip_norm,
    f"{_CONTRIB}SkipSimplifiedLayerNormalization": _skip_norm,
}
"""How each compound is written out."""
