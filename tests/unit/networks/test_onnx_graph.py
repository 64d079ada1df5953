"""The mutable graph of an ONNX file."""

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.onnx.graph import OnnxGraph
from tests.onnx_graphs import by_onnxruntime, file_of, model_of, node, weights

IMAGE = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def content() -> bytes:
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Abs", "a", "b"), node("Add", "r b", "y")]
    model = model_of(nodes, {"w": weights(2, 3, 3, 3)})
    model.doc_string, model.graph.node[1].doc_string = "what it is for", "not linear"
    model.metadata_props.add(key="author", value="somebody")
    model.graph.value_info.add(name="a").doc_string = "declared"
    return bytes(model.SerializeToString())


def run(graph: OnnxGraph) -> list[np.ndarray]:
    return by_onnxruntime(graph.content(), IMAGE)


def test_an_unchanged_graph_is_the_same_file() -> None:
    graph = OnnxGraph(content())
    assert graph.content() == content()
    assert OnnxGraph(graph.proto()).copy().content() == content()


def test_values_of_bodies_are_read_and_constants_are_stored() -> None:
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weights(3, 1, 1), "w"))
    body = helper.make_graph([node("Add", "x w", "s")], "body", [], [helper.make_tensor_value_info("s", 1, None)])
    branch = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    graph = OnnxGraph(file_of([constant, node("Identity", "w", "v"), branch], {"c": np.array(True)}))
    assert list(graph.readers("x")) == [graph.nodes[2]]
    assert list(graph.readers("w")) == graph.nodes[1:]
    assert set(graph.tensors()) == {"w", "c"}
    graph.store("w", weights(3, 1, 1, seed=1))
    np.testing.assert_array_equal(graph.array("v"), weights(3, 1, 1, seed=1))
    graph.prune()
    assert [each.op_type for each in graph.nodes] == ["Constant", "If"]


def test_nodes_are_inserted_rewired_and_removed() -> None:
    graph = OnnxGraph(content())
    before = run(graph)[0]
    conv, relu, _, add = graph.nodes
    graph.store("two", np.array(2, np.float32))
    graph.insert(node("Mul", "a two", "double"), after=conv)
    graph.read_instead(relu, 0, "double")
    assert [each.op_type for each in graph.nodes] == ["Conv", "Mul", "Relu", "Abs", "Add"]
    assert list(graph.readers("double")) == [relu]
    graph.read_instead(add, 1, "double")
    graph.prune()
    assert [each.op_type for each in graph.nodes] == ["Conv", "Mul", "Relu", "Add"]
    conv_alone = run(graph.part(["a"]))[0]
    np.testing.assert_allclose(run(graph)[0], np.maximum(2 * conv_alone, 0) + 2 * conv_alone, rtol=1e-5)
    graph.remove(add)
    graph.return_values(["r"])
    assert add not in graph.nodes
    assert graph.maker("y") is None
    np.testing.assert_allclose(run(graph)[0], np.maximum(2 * conv_alone, 0), rtol=1e-5)
    assert before.shape == conv_alone.shape


def test_nodes_are_sorted_near_their_own_order() -> None:
    graph = OnnxGraph(content())
    graph.nodes.reverse()
    graph.sort()
    assert [each.op_type for each in graph.nodes] == ["Conv", "Abs", "Relu", "Add"]
    assert run(graph)[0].shape == (1, 2, 6, 6)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([node("Add", "x b", "a"), node("Abs", "a", "b")], "circle"),
        ([node("Add", "x a", "a")], "circle"),
        ([node("Abs", "x", "y"), node("Relu", "x", "y")], "Two nodes"),
    ],
)
def test_what_has_no_order_is_refused(nodes: list[onnx.NodeProto], says: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=says):
        OnnxGraph(file_of(nodes, {})).sort()


def test_aliases_in_a_circle_are_no_numbers() -> None:
    graph = OnnxGraph(file_of([node("Identity", "a", "b"), node("Identity", "b", "a")], {}))
    assert graph.array("a") is None
