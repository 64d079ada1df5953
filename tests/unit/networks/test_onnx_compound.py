"""Attention that is one node is read as the steps it stands for; nodes of other domains are refused.

Opening a file compares it with onnxruntime, to 1e-5 of its largest number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from torch import nn

from senseapp.core.errors import SenseError
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.onnx.torch_graph import UnreadNode
from tests.onnx_graphs import model_of, node, weights

_CONTRIB = "com.microsoft"
TOKENS = (1, 6, 24)  # of three heads of eight


def file(
    nodes: list[onnx.NodeProto], stored: dict[str, np.ndarray], shape: tuple[int, ...] = (1, 4, 6, 8), **how: Any
) -> bytes:
    """Return a file for any number of images; its nodes read ``x`` and stored tensors."""
    model = model_of(nodes, stored, shape=("n", *shape[1:]), **{"opset": 18, **how})
    model.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
    return bytes(model.SerializeToString())


_APART = {"q": weights(24, 24, seed=1), "k": weights(24, 24, seed=2), "v": weights(24, 24, seed=3)}
_MADE = [node("MatMul", f"x {name}", f"{name}m") for name in "qkv"]
_MASK = weights(6, 6, seed=5)
ATTENTION = {
    "plain": ("qm km vm", {}, {}),
    "causal, with a scale and a cap": ("qm km vm", {"is_causal": 1, "scale": 0.2, "softcap": 1.5}, {}),
    "a mask to add": ("qm km vm mask", {}, {"mask": _MASK}),
    "a mask to add of each head, and a cap": ("qm km vm mask", {"softcap": 2.0}, {"mask": weights(3, 6, 6)}),
    "a mask of what counts": ("qm km vm mask", {}, {"mask": _MASK > 0}),
    "a row without keys, causal": ("qm km vm mask", {"is_causal": 1}, {"mask": np.arange(6)[:, None] > np.ones(6)}),
}


def attention(inputs: str, settings: dict[str, Any], stored: dict[str, np.ndarray], *, by_head: bool) -> bytes:
    """Return a file with Attention of opset 23 on tokens (N, T, C), or on heads (N, H, T, D)."""
    if not by_head:
        nodes = [*_MADE, node("Attention", inputs, "y", q_num_heads=3, kv_num_heads=3, **settings)]
        return file(nodes, {**_APART, **stored}, TOKENS, opset=23)
    nodes = [*_MADE]
    for name in "qkv":
        nodes.append(node("Reshape", f"{name}m heads", f"{name}r"))
        nodes.append(node("Transpose", f"{name}r", f"{name}h", perm=[0, 2, 1, 3]))
    nodes.append(node("Attention", inputs.replace("m ", "h ").replace("vm", "vh"), "y", **settings))
    return file(nodes, {**_APART, **stored, "heads": np.array([0, 6, 3, 8])}, TOKENS, opset=23)


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_the_standard_is_what_onnxruntime_computes(name: str, *, by_head: bool) -> None:
    opened = open_onnx(attention(*ATTENTION[name], by_head=by_head))
    assert opened.batch is None
    assert len([each for each in opened.network.modules() if isinstance(each, nn.Linear)]) == 3


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_that_share_keys_are_read(heads: int) -> None:
    apart = {"q": weights(24, 32), "k": weights(24, 8 * heads, seed=1), "v": weights(24, 8 * heads, seed=2)}
    nodes = [*_MADE, node("Attention", "qm km vm", "y", q_num_heads=4, kv_num_heads=heads)]
    assert open_onnx(file(nodes, apart, TOKENS, opset=23)).batch is None


NOT_READ = {
    "present keys are returned": node("Attention", "qm km vm", "y pk pv", q_num_heads=3, kv_num_heads=3),
    "past keys are given": node("Attention", "qm km vm - qm km", "y", q_num_heads=3, kv_num_heads=3),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_forms_that_are_not_read_are_refused_by_node(name: str) -> None:
    content = file([*_MADE, NOT_READ[name]], {**_APART, "w": weights(3, 24, 1)}, TOKENS, opset=23)
    with pytest.raises(UnreadNode, match=rf"^Node “y” \({NOT_READ[name].op_type}\) is not supported: ") as refused:
        open_onnx(content)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("domain", "op", "sentence"),
    [
        ("ai.onnx.ml", "TreeEnsembleClassifier", "models of tables"),
        ("com.microsoft.nchwc", "Conv", "laid out for one kind of processor"),
        ("ai.onnx.contrib", "DecodeImage", "Export the network without that part"),
        ("TRT", "EfficientNMS_TRT", "the domain “TRT”, which only its own runtime can compute"),
        (_CONTRIB, "QLinearAdd", "Bring the float file"),
        (_CONTRIB, "MatMulNBits", "weights in a few bits"),
        *((_CONTRIB, op, "as it was before it was optimised") for op in ("FusedConv", "Gelu", "MultiHeadAttention")),
    ],
)
def test_operators_of_other_domains_are_refused_with_what_they_are(domain: str, op: str, sentence: str) -> None:
    with pytest.raises(SenseError, match=sentence) as refused:
        open_onnx(file([node(op, "x", "y", domain=domain)], {}))
    assert str(refused.value).startswith(f"The node “y” ({op}) ")
