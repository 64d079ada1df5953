"""An uploaded file with other weights: field by field, and onnxruntime beside the changed module."""

import copy
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from senseapp.core.errors import InvalidSpec
from senseapp.networks.onnx import write
from senseapp.networks.onnx.check import first_unlike
from senseapp.networks.onnx.difference import difference
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.networks.onnx.open import OpenedOnnx, open_onnx
from senseapp.networks.onnx.write import network_in, with_weights
from tests.onnx_graphs import by_onnxruntime, file_of, model_of, node, weights

SAME = {"pads": [1, 1, 1, 1]}
IDENTICAL = "All else in the file is as it was uploaded."


def small_file(**more: object) -> bytes:
    nodes = [node("Conv", "x first.weight first.bias", "a", **SAME), node("Relu", "a", "r"),
             node("Conv", "r second.weight second.bias", "y", **SAME)]  # fmt: skip
    initializers = {
        "first.weight": weights(4, 3, 3, 3), "first.bias": weights(4, seed=1),
        "second.weight": weights(2, 4, 3, 3, seed=2), "second.bias": weights(2, seed=3),
    }  # fmt: skip
    model = model_of(nodes, initializers, **more)
    model.producer_name, model.doc_string = "a converter of their own", "what it is for"
    model.metadata_props.add(key="author", value="somebody")
    model.graph.node[1].doc_string = "not linear"
    return model.SerializeToString()


def halved(network: nn.Module, only: str = "") -> nn.Module:
    """Return a copy with the smaller half of each weight at zero."""
    changed = copy.deepcopy(network)
    with torch.no_grad():
        for name, each in changed.named_parameters():
            if each.dim() > 1 and only in name:
                each[each.abs() <= each.abs().median()] = 0
    return changed


def edited(opened: OpenedOnnx, changed: nn.Module, shape: tuple[int, ...] = (1, 3, 8, 8)) -> bytes:
    """Return the file with the weights of ``changed``, once onnxruntime computes the same from it."""
    found, images = with_weights(opened, changed), torch.rand(shape)
    np.testing.assert_allclose(by_onnxruntime(found, images)[0], changed(images).detach(), atol=1e-5)
    return found


def same_but_for(before: bytes, after: bytes, tensors: set[str]) -> None:
    """Compare two files field by field; tensors that changed keep all but their numbers."""
    old, new = onnx.load_from_string(before), onnx.load_from_string(after)
    for model in (old, new):
        for tensor in model.graph.initializer:
            if tensor.name in tensors:
                for name in ("raw_data", "float_data", "int32_data", "double_data"):
                    tensor.ClearField(name)
    assert [each.name for each in old.graph.initializer] == [each.name for each in new.graph.initializer]
    for descriptor in type(old).DESCRIPTOR.fields:
        assert getattr(old, descriptor.name) == getattr(new, descriptor.name), descriptor.name
    for descriptor in type(old.graph).DESCRIPTOR.fields:
        assert getattr(old.graph, descriptor.name) == getattr(new.graph, descriptor.name), descriptor.name


def test_an_unchanged_network_gives_the_uploaded_bytes() -> None:
    opened = open_onnx(small_file())
    found = with_weights(opened, copy.deepcopy(opened.network))
    assert found == opened.content
    assert difference(opened.content, found).sentences == ("The file is the uploaded one.",)


def test_a_network_that_amplifies_rounding_is_compared_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Conv", "x w", "c", **SAME), node("Mul", "c large", "m"), node("Sin", "m", "y")]
    stored = {"w": np.zeros((4, 3, 3, 3), np.float32), "large": np.array(1e8, np.float32)}
    opened = open_onnx(file_of(nodes, stored))
    changed = copy.deepcopy(opened.network)
    with torch.no_grad():
        changed.get_submodule("c").weight.normal_(generator=torch.Generator().manual_seed(0))
    found = with_weights(opened, changed)
    same_but_for(opened.content, found, {"w"})
    inputs = {"x": torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))}
    assert first_unlike(changed, OnnxGraph(found), inputs, batch=1, tolerance=1e-5) == ""
    assert first_unlike(changed, OnnxGraph(opened.content), inputs, batch=1, tolerance=1e-5) == "c"
    monkeypatch.setattr(write._Writing, "write", lambda _writing: None)
    with pytest.raises(InvalidSpec, match=r"cannot be edited: .* first at node “c”"):
        with_weights(opened, changed)


def test_one_changed_weight_changes_the_numbers_of_one_tensor() -> None:
    opened = open_onnx(small_file())
    found = with_weights(opened, halved(opened.network, "first"))
    same_but_for(opened.content, found, {"first.weight"})
    assert len(found) == len(opened.content)
    own = [place for place, (a, b) in enumerate(zip(opened.content, found, strict=True)) if a != b]
    start = opened.content.index(numpy_helper.from_array(weights(4, 3, 3, 3)).raw_data)
    assert start <= own[0]
    assert own[-1] < start + 4 * 108
    [tensor] = difference(opened.content, found).tensors
    assert (tensor.name, tensor.changed, tensor.size) == ("first.weight", 54, 108)
    assert difference(opened.content, found).sentences[-1] == IDENTICAL


def stored_as_floats(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).ravel().tolist()
        tensor.ClearField("raw_data")
        tensor.float_data.extend(values)


def in_constant_nodes(model: onnx.ModelProto) -> None:
    for tensor in reversed(model.graph.initializer):
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]


def listed_as_inputs(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def behind_identity(model: onnx.ModelProto) -> None:
    for step in model.graph.node[::2]:
        model.graph.node.insert(0, helper.make_node("Identity", [step.input[1]], [f"{step.input[1]} alias"]))
        step.input[1] = f"{step.input[1]} alias"


@pytest.mark.parametrize("form", [stored_as_floats, in_constant_nodes, listed_as_inputs, behind_identity])
def test_weights_are_written_back_in_the_form_that_they_are_stored_in(form: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load_from_string(small_file())
    form(model)
    opened = open_onnx(model.SerializeToString())
    found = edited(opened, halved(opened.network))
    assert {each.name for each in difference(opened.content, found).tensors} == {"first.weight", "second.weight"}
    assert difference(opened.content, found).otherwise_identical
    assert not difference(opened.content, found).added_tensors
    if form is not in_constant_nodes:
        same_but_for(opened.content, found, {"first.weight", "second.weight"})


@pytest.mark.parametrize("raw", [True, False])
def test_half_precision_stays_and_says_that_it_rounds(raw: bool) -> None:
    model = onnx.load_from_string(small_file(element_type=TensorProto.FLOAT16))
    for tensor in model.graph.initializer:
        half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(
            numpy_helper.from_array(half, tensor.name)
            if raw
            else helper.make_tensor(tensor.name, TensorProto.FLOAT16, half.shape, half.ravel().tolist())
        )
    opened = open_onnx(model.SerializeToString())
    changed = copy.deepcopy(opened.network)
    with torch.no_grad():
        changed.get_parameter("first.weight")[0] *= 0.77
    found = with_weights(opened, changed)
    same_but_for(opened.content, found, {"first.weight"})
    [tensor] = difference(opened.content, found).tensors
    assert tensor.half
    assert tensor.changed == 27
    assert "half precision" in " ".join(difference(opened.content, found).sentences)
    written_back = {each.name: each for each in onnx.load_from_string(found).graph.initializer}["first.weight"]
    expected = changed.get_parameter("first.weight").detach().numpy().astype(np.float16)
    np.testing.assert_array_equal(numpy_helper.to_array(written_back), expected)


def test_layers_that_share_a_bias_get_one_each_when_they_differ() -> None:
    nodes = [node("Conv", "x w b", "a", **SAME), node("Relu", "a", "r"), node("Conv", "r v b", "y", **SAME)]
    opened = open_onnx(file_of(nodes, {"w": weights(3, 3, 3, 3), "b": weights(3), "v": weights(3, 3, 3, 3, seed=1)}))
    changed = copy.deepcopy(opened.network)
    layers = [each for each in changed.modules() if isinstance(each, nn.Conv2d)]
    layers[1].bias = nn.Parameter(layers[1].bias.detach() + 1)
    found = edited(opened, changed)
    assert not difference(opened.content, found).tensors
    assert len(difference(opened.content, found).added_tensors) == 1
    assert difference(opened.content, found).changed_nodes == ("y",)
    assert difference(opened.content, found).otherwise_identical


def test_statistics_that_share_one_tensor_are_told_apart() -> None:
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    nodes = [node("Conv", "x w", "a", **SAME), node("BatchNormalization", "a ones zeros zeros ones", "y")]
    opened = open_onnx(file_of(nodes, {"w": weights(4, 3, 3, 3), "ones": ones, "zeros": zeros}))
    changed = copy.deepcopy(opened.network)
    [norm] = [each for each in changed.modules() if isinstance(each, nn.BatchNorm2d)]
    norm.running_var.mul_(2)
    norm.running_mean.add_(0.5)
    assert difference(opened.content, edited(opened, changed)).otherwise_identical


def test_matrix_products_are_written_back_turned() -> None:
    nodes = [node("MatMul", "x w", "a"), node("Add", "a b", "s"), node("Gemm", "s v c", "y", transB=1)]
    initializers = {"w": weights(6, 5), "b": weights(5), "v": weights(4, 5, seed=1), "c": weights(4)}
    opened = open_onnx(file_of(nodes, initializers, shape=(1, 6)))
    found = edited(opened, halved(opened.network), (1, 6))
    assert {each.name for each in difference(opened.content, found).tensors} == {"w", "v"}


def test_what_cannot_be_written_is_refused() -> None:
    nodes = [node("DequantizeLinear", "q s z", "w"), node("Conv", "x w", "y", **SAME)]
    stored = {"q": np.full((3, 3, 3, 3), 5, np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    opened = open_onnx(file_of(nodes, stored))
    with pytest.raises(InvalidSpec, match="stored as integers"):
        with_weights(opened, halved(opened.network))
    with pytest.raises(InvalidSpec, match="no file to edit"):
        network_in(nn.Linear(2, 2))


def test_a_weight_that_the_graph_computes_becomes_a_tensor_of_its_own() -> None:
    nodes = [node("Mul", "v g", "w"), node("Conv", "x w", "y", **SAME)]
    opened = open_onnx(file_of(nodes, {"v": weights(3, 3, 3, 3), "g": weights(3, 1, 1, 1)}))
    found = edited(opened, halved(opened.network))
    assert difference(opened.content, found).added_tensors
    assert difference(opened.content, found).changed_nodes == ("y",)


def test_what_differs_besides_is_said() -> None:
    model = onnx.load_from_string(small_file())
    model.graph.output[0].name = "other"
    found = difference(small_file(), model.SerializeToString())
    assert not found.otherwise_identical
    assert "Other parts" in found.sentences[-1]
