"""Nodes that do several steps at once, as torch's exporter and onnxruntime's optimisers write them, are read as those.

Opening a file compares it with onnxruntime, to 1e-5 of its largest number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import nn

from senseapp.core.errors import SenseError
from senseapp.networks.onnx.edit import with_weights
from senseapp.networks.onnx.graph import UnreadNode
from senseapp.networks.onnx.open import open_onnx
from tests.onnx_files import exported
from tests.onnx_graphs import model_of, node, weights
from tests.unit.test_networks_onnx_attention import IMAGES, compressor_of, run

_CONTRIB = "com.microsoft"
TOKENS = (1, 6, 24)  # of three heads of eight


def microsoft(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    made = node(op, inputs, outputs, domain=_CONTRIB, **attributes)
    made.output[:] = ["" if each == "-" else each for each in made.output]
    return made


def file(
    nodes: list[onnx.NodeProto], stored: dict[str, np.ndarray], shape: tuple[int, ...] = (1, 4, 6, 8), **how: Any
) -> bytes:
    """Return a file for any number of images; its nodes read ``x`` and stored tensors."""
    model = model_of(nodes, stored, shape=("n", *shape[1:]), **{"opset": 18, **how})
    model.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
    return bytes(model.SerializeToString())


NUMBERS = {"k": weights(1, seed=1), "c": weights(8, seed=2), "d": weights(8, seed=3), "e": weights(8, seed=4)}
KERNEL = {"w": weights(5, 4, 3, 3), "b": weights(5)}
FUSED = {
    **{
        f"FusedConv with {kind}": ([microsoft("FusedConv", "x w b", activation=kind, **more)], KERNEL)
        for kind, more in {
            "Relu": {"pads": [1, 1, 1, 1]},
            "Tanh": {},
            "LeakyRelu": {"activation_params": [0.3]},
            "Clip": {"activation_params": [-0.5, 0.6]},
            "HardSigmoid": {"activation_params": [0.3, 0.4]},
        }.items()
    },
    "Gelu": ([microsoft("Gelu", "x")], {}),
    "BiasGelu": ([microsoft("BiasGelu", "x c")], NUMBERS),
    "FastGelu": ([microsoft("FastGelu", "x c")], NUMBERS),
    "FastGelu without bias": ([microsoft("FastGelu", "x")], {}),
    "QuickGelu": ([microsoft("QuickGelu", "x", alpha=1.5)], {}),
    "FusedMatMul": ([microsoft("FusedMatMul", "x x", transB=1, alpha=0.3)], {}),
    "FusedMatMul by a weight": ([microsoft("FusedMatMul", "x w", transB=1)], {"w": weights(5, 8)}),
    "FusedMatMul turned": ([microsoft("FusedMatMul", "x x", transA=1)], {}),
    "FusedGemm": (
        [
            node("Flatten", "x", "f"),
            microsoft("FusedGemm", "f w b", transB=1, activation="LeakyRelu", activation_alpha=0.2),
        ],
        {"w": weights(5, 192), "b": weights(5)},
    ),
    "SkipLayerNormalization": (
        [
            node("Mul", "x k", "m"),
            microsoft("SkipLayerNormalization", "x m c d e", "z - - s", epsilon=1e-3),
            node("Add", "z s", "y"),
        ],
        NUMBERS,
    ),
    "SkipLayerNormalization without bias": (
        [node("Mul", "x k", "m"), microsoft("SkipLayerNormalization", "x m c d", epsilon=1e-3)],
        NUMBERS,
    ),
    "SkipSimplifiedLayerNormalization": (
        [node("Mul", "x k", "m"), microsoft("SkipSimplifiedLayerNormalization", "x m c d", epsilon=1e-3)],
        NUMBERS,
    ),
    "SimplifiedLayerNormalization": ([node("SimplifiedLayerNormalization", "x c", "y", epsilon=1e-3)], NUMBERS),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_node_is_the_nodes_that_it_stands_for(name: str) -> None:
    nodes, stored = FUSED[name]
    used = {each for n in nodes for each in n.input}
    shape = (1, 6, 8) if "Skip" in name else (1, 4, 6, 8)
    opened = open_onnx(file(nodes, {key: each for key, each in stored.items() if key in used}, shape))
    assert opened.batch is None
    assert opened.in_runtime is False
    layers = [each for each in opened.network.modules() if isinstance(each, nn.Conv2d | nn.Linear | nn.LayerNorm)]
    assert len(layers) == (1 if any(part in name for part in ("Conv", "Gemm", "weight", "SkipLayer")) else 0)


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


OF_ONNXRUNTIME = {
    "three products": ([*_MADE, microsoft("MultiHeadAttention", "qm km vm", num_heads=3)], _APART),
    "a bias and a mask to add": (
        [*_MADE, microsoft("MultiHeadAttention", "qm km vm bias - mask", num_heads=3, scale=0.3)],
        {**_APART, "bias": weights(72), "mask": weights(1, 3, 6, 6)},
    ),
    "one product": (
        [microsoft("Attention", "x w bias", num_heads=3)],
        {"w": weights(24, 72), "bias": weights(72)},
    ),
    "one product of several lengths, causal": (
        [microsoft("Attention", "x w bias", num_heads=3, qkv_hidden_sizes=[24, 24, 12], unidirectional=1)],
        {"w": weights(24, 60), "bias": weights(60)},
    ),
}


@pytest.mark.parametrize("name", OF_ONNXRUNTIME)
def test_attention_of_onnxruntime_is_what_it_computes(name: str) -> None:
    opened = open_onnx(file(*OF_ONNXRUNTIME[name], TOKENS))
    assert opened.batch is None
    layers = [each for each in opened.network.modules() if isinstance(each, nn.Linear)]
    assert len(layers) == (3 if "q" in OF_ONNXRUNTIME[name][1] else 1)


NOT_READ = {
    "present keys are returned": node("Attention", "qm km vm", "y pk pv", q_num_heads=3, kv_num_heads=3),
    "past keys are given": node("Attention", "qm km vm - qm km", "y", q_num_heads=3, kv_num_heads=3),
    "queries are packed": microsoft("MultiHeadAttention", "qm", num_heads=3),
    "a tensor is added": microsoft("FusedConv", "qm w - z", activation="Relu"),
    "an unknown activation": microsoft("FusedConv", "qm w", activation="Softsign"),
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
        (_CONTRIB, "GroupQueryAttention", "as it was before it was optimised"),
    ],
)
def test_operators_of_other_domains_are_refused_with_what_they_are(domain: str, op: str, sentence: str) -> None:
    with pytest.raises(SenseError, match=sentence) as refused:
        open_onnx(file([node(op, "x", "y", domain=domain)], {}))
    assert str(refused.value).startswith(f"The node “y” ({op}) ")


def test_an_optimised_file_is_edited_in_its_fused_nodes(tmp_path: Any) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU()),
        *(nn.Conv2d(8, 6, 1), nn.Flatten()),
    )
    network[1].running_mean.uniform_(0.5, 2)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(exported(network), options, providers=["CPUExecutionProvider"])
    opened = open_onnx((tmp_path / "optimised.onnx").read_bytes())
    kinds = [each.op_type for each in onnx.load_from_string(opened.content).graph.node]
    assert kinds.count("FusedConv") == 2
    compressor = compressor_of(opened.network)
    assert [target.members for target in compressor.targets] == [("0", "3")]
    assert "folded batch norms into the weights of 1 layer." in " ".join(opened.notes)
    compressor.prune({"0": 0.5})
    edited = with_weights(opened, compressor._model)
    np.testing.assert_allclose(run(edited.content, IMAGES), compressor._model(IMAGES), atol=1e-5)
    fused = [each for each in onnx.load_from_string(edited.content).graph.node if each.op_type == "FusedConv"]
    assert [helper.get_node_attr_value(each, "group") for each in fused] == [1, 4]


def tokens_of_images(operator: onnx.NodeProto, stored: dict[str, np.ndarray]) -> bytes:
    """Return a file: patches of images, three products, ``operator`` on ``qm km vm`` to ``a``, a classifier."""
    before = [
        node("Conv", "x patches", "c", strides=[4, 4]),
        node("Reshape", "c flat", "f"),
        node("Transpose", "f", "t", perm=[0, 2, 1]),
        *(node("MatMul", f"t {name}", f"{name}m") for name in "qkv"),
    ]
    after = [node("MatMul", "a o", "p"), node("ReduceMean", "p axis", "y", keepdims=0)]
    more = {"patches": weights(24, 3, 4, 4), "flat": np.array([0, 24, 16]), "axis": np.array([1])}
    return file([*before, operator, *after], {**stored, **more}, (1, 3, 16, 16), opset=23)


HEADS_OF = {
    "of the standard": node("Attention", "qm km vm", "a", q_num_heads=3, kv_num_heads=3),
    "of the standard, a mask of each head": node("Attention", "qm km vm mask", "a", q_num_heads=3, kv_num_heads=3),
    "of onnxruntime": microsoft("MultiHeadAttention", "qm km vm", "a", num_heads=3),
}


@pytest.mark.parametrize("name", HEADS_OF)
def test_heads_of_attention_in_one_node_are_removed_and_the_file_says_how_many_are_left(name: str) -> None:
    stored = {**_APART, "o": weights(24, 5, seed=4)}
    stored |= {"mask": weights(3, 16, 16, seed=6)} if "mask" in name else {}
    opened = open_onnx(tokens_of_images(HEADS_OF[name], stored))
    compressor = compressor_of(opened.network)
    assert [target.members for target in compressor.targets] == [("c",), ("qm", "km", "vm")]
    compressor.prune({"qm": 0.34})
    edited = with_weights(opened, compressor._model)
    made = next(each for each in onnx.load_from_string(edited.content).graph.node if "Attention" in each.op_type)
    assert {each.i for each in made.attribute if "heads" in each.name} == {2}
    without = []
    for head in range(3):
        o = stored["o"].copy()
        o[8 * head : 8 * (head + 1)] = 0
        without.append(run(tokens_of_images(HEADS_OF[name], {**stored, "o": o}), IMAGES))
    found = run(edited.content, IMAGES)
    assert min(np.abs(found - each).max() for each in without) < 1e-4 * np.abs(found).max()
