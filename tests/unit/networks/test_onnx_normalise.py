"""Dirty files become an ordered graph with all constants in one place; hostile ones are refused."""

import numpy as np
import torch
from onnx import helper

from senseapp.networks.onnx.normalise import normalise
from senseapp.networks.onnx.open import open_onnx
from tests.onnx_graphs import file_of, model_of, node, weights

W = weights(4, 3, 3, 3)


def test_what_depends_on_constants_alone_is_computed() -> None:
    nodes = [node("Transpose", "w", "t"), node("Mul", "t half", "u"), node("MatMul", "x u", "y")]
    initializers = {"w": weights(5, 8), "half": np.float32(0.5) * np.ones((), np.float32)}
    graph, _ = normalise(file_of(nodes, initializers))
    assert [each.op for each in graph.nodes] == ["MatMul"]
    np.testing.assert_allclose(graph.constants["u"].value, initializers["w"].T / 2)
    assert not graph.constants["u"].weight  # of two tensors: none of the file's


def test_equal_computations_of_one_initializer_are_one_constant() -> None:
    nodes = [
        *(node("Transpose", "w", f"t{index}", perm=[1, 0]) for index in range(2)),
        node("MatMul", "x t0", "a"),
        node("MatMul", "a t1", "y"),
    ]
    graph, _ = normalise(file_of(nodes, {"w": weights(8, 8)}))
    assert {each.inputs[1] for each in graph.nodes} == {"t0"}


def test_a_name_used_twice_is_made_unique() -> None:
    nodes = [node("Relu", "x", "a", name="n"), node("Abs", "a", "b", name="n_1"), node("Neg", "b", "y", name="n")]
    assert [each.name for each in normalise(file_of(nodes, {}))[0].nodes] == ["n", "n_1", "n_2"]


def test_functions_are_written_out() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Add", ["s", "a"], ["r"])]
    function = helper.make_function("own", "F", ["a"], ["r"], body, [helper.make_opsetid("", 18)])
    model = model_of([helper.make_node("F", ["x"], ["y"], domain="own")], {}, functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    graph, _ = normalise(model.SerializeToString())
    assert [each.op for each in graph.nodes] == ["Mul", "Add"]


def test_domains_that_no_node_uses_do_not_matter() -> None:
    model = model_of([node("Conv", "x w", "y")], {"w": W})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert len(normalise(model.SerializeToString())[0].nodes) == 1


def test_a_file_quantized_by_channel_before_opset_13_has_its_opset_raised() -> None:
    nodes = [node("DequantizeLinear", "q s z", "w", axis=0), node("Conv", "x w", "y")]
    codes = (W * 50).round().clip(-127, 127).astype(np.int8)
    scales = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    opened = open_onnx(file_of(nodes, {"q": codes, "s": scales, "z": np.zeros(4, np.int8)}, opset=12))
    wanted = codes * scales[:, None, None, None]
    found = next(each for each in opened.network.modules() if isinstance(each, torch.nn.Conv2d))
    np.testing.assert_allclose(found.weight.detach(), wanted, rtol=1e-6)
    assert any("quantized" in note for note in opened.notes)
