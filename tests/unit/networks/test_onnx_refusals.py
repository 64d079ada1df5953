"""Files that are refused with the true cause and what to do, or read with the numbers of onnxruntime.

Those that newcomers bring, with attention as one node or nodes of other domains, and hostile ones (``soak.onnx`` is
longer). Opening a file compares it with onnxruntime, to 1e-5 of its largest number.
"""

import io
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from senseapp.core.errors import InvalidCheckpoint, SenseError, UnsupportedModel
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.onnx.torch_graph import UnreadNode
from tests.cases import seldom
from tests.hostile_onnx import BY_HAND, RUN
from tests.onnx_files import exported, newly_exported
from tests.onnx_graphs import by_onnxruntime, model_of, node, weights


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()


def _weights() -> bytes:
    file = io.BytesIO()
    torch.save(_network().state_dict(), file)
    return file.getvalue()


_OTHER_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", r"is empty \(0 bytes\)"),
    "cut short": (lambda: exported(_network())[:-300], "was cut short"),
    "weights": (_weights, "Choose weights as a checkpoint"),
    "a web page": (lambda: b"<!DOCTYPE html><html>404</html>", "is text"),
    "a pointer": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n", "git lfs pull"),
    "a graph as text": (lambda: str(onnx.load_from_string(exported(_network()))).encode(), "is text"),
    "TensorFlow Lite": (lambda: b"\x1c\0\0\0TFL3" + bytes(64), "tf2onnx"),
    "compressed": (lambda: b"\x1f\x8b\x08" + bytes(64), "unpack it first"),
    "noise": (lambda: b"\xff" * 100, "its bytes cannot be read as one. Export"),
}


@pytest.mark.parametrize("what", _OTHER_FILES)
def test_a_file_that_is_no_model_is_called_what_it_is(what: str) -> None:
    make, says = _OTHER_FILES[what]
    with pytest.raises(InvalidCheckpoint, match=says):
        open_onnx(make())


def test_a_newer_form_of_file_is_refused_with_the_one_that_is_read() -> None:
    model = onnx.load_from_string(exported(_network()))
    model.ir_version = 99
    with pytest.raises(InvalidCheckpoint, match=r"IR version 99, and onnxruntime .* reads up to (\d+)") as refused:
        open_onnx(model.SerializeToString())
    model.ir_version = int(str(refused.value).partition("model.ir_version = ")[2].partition(" ")[0])
    assert open_onnx(model.SerializeToString()).difference < 1e-5


def _of_type(element_type: int, dtype: torch.dtype) -> bytes:
    """Return a convolution whose input, weight and output are of one type."""
    weight = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
        "g",
        [helper.make_tensor_value_info("x", element_type, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", element_type, ["n", 4, 6, 6])],
        [helper.make_tensor("w", element_type, weight.shape, weight.ravel())],
    )
    assert numpy_helper.to_array(graph.initializer[0]).dtype.itemsize == dtype.itemsize
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10).SerializeToString()


def test_float64_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidCheckpoint, match=r"it computes in float64. Export the network in float32"):
        open_onnx(_of_type(TensorProto.DOUBLE, torch.float64))


@pytest.mark.parametrize(
    ("element_type", "dtype", "notes"),
    [(TensorProto.FLOAT16, torch.float16, 1), (TensorProto.BFLOAT16, torch.bfloat16, 2)],
)
def test_the_narrow_type_of_a_file_is_named(element_type: int, dtype: torch.dtype, notes: int) -> None:
    opened = open_onnx(_of_type(element_type, dtype))
    assert len(opened.notes) == notes
    assert opened.notes[0] == f"The file computes in {str(dtype)[6:]}; it is read and measured in float32."
    assert "export the network in float32" in " ".join(opened.notes) or notes == 1


def test_norms_in_training_mode_are_refused_for_images_change_each_other() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = onnx.load_from_string(exported(network))
    norm = next(node for node in model.graph.node if node.op_type == "BatchNormalization")
    del norm.attribute[:]
    norm.attribute.append(helper.make_attribute("training_mode", 1))
    norm.output.extend(["mean", "variance"])
    with pytest.raises(UnsupportedModel, match=r"is in training mode.*after model.eval\(\)"):
        open_onnx(model.SerializeToString())


def test_instance_norms_with_kept_statistics_take_any_number_of_images() -> None:
    """Torch writes them as a batch norm over channels of all images, with the statistics repeated for each image."""
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    content, images = newly_exported(network, free=True, optimize=False), torch.rand(5, 3, 16, 16)
    opened = open_onnx(content)
    [known] = by_onnxruntime(content, images)
    assert opened.batch is None
    scores = opened.network(images)
    np.testing.assert_allclose(scores.detach(), known, atol=1e-5 * np.abs(known).max())
    scores.sum().backward()
    assert opened.network.get_submodule("0").weight.grad is not None


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


@pytest.mark.parametrize("why", [seldom(why) if why == "10^12 by scales" else why for why in BY_HAND])
def test_a_hostile_file_is_refused_at_once(why: str) -> None:
    make, says = BY_HAND[why]
    content, before = make(), time.process_time()
    with pytest.raises((InvalidCheckpoint, UnsupportedModel), match=says) as refusal:
        open_onnx(content)
    assert time.process_time() - before < 20
    assert len(str(refusal.value)) < 1000
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", RUN)
def test_a_file_that_only_looks_hostile_is_a_network(name: str) -> None:
    before = time.process_time()
    assert open_onnx(RUN[name]()).difference < 1e-5
    assert time.process_time() - before < 20


@pytest.mark.wide
def test_changed_files_are_refused_or_opened_within_bounds_and_write_nothing() -> None:
    command = [sys.executable, "-m", "soak.onnx", "--files", "20", "--after", "1000000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout
    assert "opened" in done.stdout
