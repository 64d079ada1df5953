"""Files that newcomers bring: refused with the true cause and what to do, or read with onnxruntime's numbers."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from senseapp.core.errors import InvalidCheckpoint, UnsupportedModel
from senseapp.networks.onnx.open import open_onnx
from tests.onnx_files import exported, newly_exported
from tests.onnx_graphs import by_onnxruntime


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
