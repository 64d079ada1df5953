"""Graphs become networks: layers, shared weights, names, any number of images, cuts, and the comparison."""

import copy

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from senseapp.core.errors import UnsupportedModel
from senseapp.measure.replay import find_replay_obstacle
from senseapp.networks.onnx.build import StoredAs
from senseapp.networks.onnx.check import Differs, check
from senseapp.networks.onnx.names import module_path
from senseapp.networks.onnx.normalise import normalise
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.trace import trace_calls
from tests.onnx_graphs import file_of, model_of, node, weights

W = weights(3, 3, 3, 3)
SAME = {"pads": [1, 1, 1, 1]}


def _layers(network: nn.Module, *kinds: type[nn.Module]) -> dict[str, nn.Module]:
    return {name: each for name, each in network.named_modules() if isinstance(each, kinds or (nn.Conv2d, nn.Linear))}


def test_one_weight_of_several_nodes_is_one_module_called_several_times() -> None:
    nodes = [node("Conv", "x head.weight", "a", **SAME), node("MaxPool", "x", "p", kernel_shape=[2, 2]),
             node("Conv", "p head.weight", "b", **SAME)]  # fmt: skip
    opened = open_onnx(file_of(nodes, {"head.weight": W}, outputs=["a", "b"]))
    assert list(_layers(opened.network)) == ["head"]
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        opened.network.head.weight.zero_()
        assert all(each.abs().max() == 0 for each in opened.network(images))


@pytest.mark.parametrize(("first", "second", "count"), [("/a/BatchNorm", "/a/BatchNorm_1", 1), ("/a/N", "/b/N", 2)])
def test_norms_with_equal_numbers_are_one_only_where_one_module_was_called_twice(
    first: str, second: str, count: int
) -> None:
    """Exporters store equal vectors of different layers once."""
    nodes = [node("BatchNormalization", "x s b m v", "p", name=first),
             node("BatchNormalization", "p s b m v", "y", name=second)]  # fmt: skip
    vectors = {name: np.abs(weights(3, seed=place)) + 0.5 for place, name in enumerate("sbmv")}
    opened = open_onnx(file_of(nodes, vectors))
    norms = _layers(opened.network, nn.BatchNorm2d)
    assert len(norms) == count
    assert len({id(each.weight) for each in norms.values()}) == count
    assert {opened.tensors[f"{name}.bias"].initializer for name in norms} == {"b"}


def test_weights_with_channels_last_are_known_by_their_tensor_and_its_order() -> None:
    nodes = [node("Transpose", "kernel", "w", perm=[3, 2, 0, 1]), node("Reshape", "offset", "b"),
             node("Conv", "x w b", "y", name="conv/Conv2D")]  # fmt: skip
    nodes[1].input.append("flat")
    tensors = {"kernel": weights(3, 2, 3, 5), "offset": weights(1, 5, 1, 1), "flat": np.array([5])}
    opened = open_onnx(file_of(nodes, tensors))
    [(name, layer)] = _layers(opened.network).items()
    assert {key: each.initializer for key, each in opened.tensors.items()} == {
        f"{name}.weight": "kernel", f"{name}.bias": "offset",
    }  # fmt: skip
    for attribute in ("weight", "bias"):
        stored = opened.tensors[f"{name}.{attribute}"]
        parameter = getattr(layer, attribute).detach()
        np.testing.assert_array_equal(
            tensors[stored.initializer].transpose(stored.order).reshape(parameter.shape), parameter
        )


def test_a_product_and_the_sum_after_it_are_one_linear_layer() -> None:
    nodes = [node("MatMul", "x m", "a", name="/fc/MatMul"), node("Add", "fc.bias a", "y", name="/fc/Add")]
    opened = open_onnx(file_of(nodes, {"m": weights(8, 5), "fc.bias": weights(5)}))
    layer = opened.network.fc
    assert isinstance(layer, nn.Linear)
    assert opened.tensors["fc.bias"].initializer == "fc.bias"
    assert opened.tensors["fc.weight"] == StoredAs(initializer="m", order=(1, 0))
    np.testing.assert_array_equal(layer.weight.detach(), weights(8, 5).T)


def test_a_product_that_is_read_twice_keeps_its_sum() -> None:
    nodes = [node("MatMul", "x m", "a"), node("Add", "a b", "c"), node("Mul", "a c", "y")]
    opened = open_onnx(file_of(nodes, {"m": weights(8, 5), "b": weights(5)}))
    assert next(iter(_layers(opened.network).values())).bias is None


def test_norms_and_uneven_pads_are_modules_of_torch() -> None:
    c = weights(3)
    nodes = [node("Conv", "x conv.weight", "a", pads=[0, 0, 1, 1]), node("BatchNormalization", "a s b m v", "c"),
             node("InstanceNormalization", "c s b", "d"), node("GroupNormalization", "d s b", "e", num_groups=3),
             node("LayerNormalization", "e n n", "y")]  # fmt: skip
    tensors = {"conv.weight": W, "s": c, "b": c + 1, "m": c, "v": np.abs(c) + 1, "n": weights(7)}
    opened = open_onnx(file_of(nodes, tensors, opset=21))
    kinds = [type(each) for each in _layers(opened.network, nn.Conv2d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm,
                                           nn.LayerNorm).values()]  # fmt: skip
    assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm, nn.LayerNorm]
    assert opened.network.conv.padding == (0, 0)
    assert opened.difference < 1e-5


def test_a_copy_is_independent_and_takes_the_state_of_the_original() -> None:
    opened = open_onnx(file_of([node("Conv", "x conv.weight", "a"), node("Mul", "a scale", "y")],
                               {"conv.weight": W, "scale": weights(3, 1, 1)}))  # fmt: skip
    copied = copy.deepcopy(opened.network)
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        copied.conv.weight.zero_()
        assert copied(images).abs().max() == 0 < opened.network(images).abs().max()
        copied.load_state_dict(opened.network.state_dict())
        assert torch.equal(copied(images), opened.network(images))
    assert {"conv.weight", "scale"} == set(opened.network.state_dict())


def test_a_module_that_takes_the_place_of_a_layer_is_called() -> None:
    network = open_onnx(file_of([node("Conv", "x conv.weight", "y")], {"conv.weight": W})).network
    network.conv = nn.Identity()
    images = torch.rand(1, 3, 8, 8)
    assert torch.equal(network(images), images)


def test_gradients_reach_every_layer_also_through_rounding() -> None:
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node("Conv", "d w", "a"),
             node("QuantizeLinear", "a s z", "r"), node("DequantizeLinear", "r s z", "y")]  # fmt: skip
    opened = open_onnx(file_of(nodes, {"w": W / 9, "s": np.float32(0.02), "z": np.uint8(128)}))
    opened.network(torch.rand(2, 3, 8, 8)).sum().backward()
    [layer] = _layers(opened.network).values()
    assert layer.weight.grad.abs().sum() > 0


def test_replay_is_exact() -> None:
    nodes = [node("Conv", "x w", "a", **SAME), node("Relu", "a", "b"), node("Conv", "b v", "c", **SAME),
             node("Add", "c a", "y")]  # fmt: skip
    network = open_onnx(file_of(nodes, {"w": W, "v": weights(3, 3, 3, 3, seed=1)})).network
    images = torch.rand(2, 3, 8, 8)
    trace = trace_calls(network, images)
    starts = sorted(call.start for call in trace.calls if call.module)
    assert find_replay_obstacle(network, trace, [images], starts, [trace.output]) is None


# ---- any number of images


def test_a_baked_reshape_and_class_token_take_any_number_of_images() -> None:
    nodes = [node("Conv", "x proj.weight", "p", strides=[4, 4]), node("Reshape", "p flat", "f"),
             node("Transpose", "f", "t", perm=[0, 2, 1]), node("Concat", "token t", "c", axis=1),
             node("Add", "c places", "d"), node("Reshape", "d heads", "h"), node("ReduceMean", "h", "y", axes=[1],
                                                                               keepdims=0)]  # fmt: skip
    tensors = {"proj.weight": weights(6, 3, 4, 4), "flat": np.array([1, 6, 4]), "token": weights(1, 1, 6),
               "places": weights(1, 5, 6), "heads": np.array([1, 5, 2, 3])}  # fmt: skip
    opened = open_onnx(file_of(nodes, tensors, opset=13))
    assert opened.batch is None
    images = torch.rand(7, 3, 8, 8)
    with torch.no_grad():
        whole = opened.network(images)
        alone = torch.cat([opened.network(image[None]) for image in images])
    assert whole.shape == (7, 2, 3)
    torch.testing.assert_close(whole, alone)


@pytest.mark.parametrize("op", ["Reshape", "Expand"])
def test_a_batch_is_freed_that_is_joined_with_lengths_of_the_image(op: str) -> None:
    """Older exports of Swin write so: the number of images is baked in, the sides are taken from a shape."""
    nodes = [
        *(node("Shape", "x", "s"), node("Slice", "s two four", "sides")),
        node("Concat", "one three sides", "t", axis=0),
        node("ReduceMean", "x", "m", axes=[2, 3]),
        node(op, "x t" if op == "Reshape" else "m t", "y"),
    ]
    tensors = {"one": np.array([1]), "three": np.array([3]), "two": np.array([2]), "four": np.array([4])}
    opened = open_onnx(file_of(nodes, tensors, opset=13))
    assert opened.batch is None
    assert opened.network(torch.rand(5, 3, 8, 8)).shape == (5, 3, 8, 8)


def test_a_file_for_several_images_stays_at_its_own_number() -> None:
    nodes = [node("Reshape", "x flat", "y")]
    opened = open_onnx(file_of(nodes, {"flat": np.array([4, 32, 6])}, shape=(4, 3, 8, 8)))
    assert opened.batch == 4
    assert "fixed to 4 images" in opened.notes[-1]


def test_numbers_that_follow_the_batch_are_read_from_a_shape() -> None:
    nodes = [node("Shape", "x", "s"), node("Gather", "s zero", "n", axis=0), node("Unsqueeze", "n axes", "n1"),
             node("Concat", "n1 rest", "target", axis=0), node("Expand", "token target", "e"),
             node("Reshape", "x flat", "f"), node("Concat", "e f", "y", axis=1)]  # fmt: skip
    tensors = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([1, 6]), "token": weights(1, 1, 6),
               "flat": np.array([0, -1, 6])}  # fmt: skip
    opened = open_onnx(file_of(nodes, tensors, shape=("n", 3, 8, 8)))
    assert opened.batch is None
    assert opened.free_axes == (0,)
    assert [each.op for each in opened.network.modules() if hasattr(each, "op")] == ["Expand", "Reshape", "Concat"]
    assert opened.network(torch.rand(5, 3, 8, 8)).shape == (5, 33, 6)


# ---- which outputs


def test_a_final_softmax_is_left_out_and_said() -> None:
    nodes = [node("GlobalAveragePool", "x", "g"), node("Flatten", "g", "f"), node("Gemm", "f fc.weight", "scores"),
             node("Softmax", "scores", "y")]  # fmt: skip
    content = file_of(nodes, {"fc.weight": weights(3, 5)})
    opened = open_onnx(content)
    assert opened.outputs == ("scores",)
    assert "“y” is a Softmax" in opened.notes[0]
    assert [(each.name, each.kind, each.shape) for each in opened.candidates] == [
        ("y", "output", (1, 5)), ("scores", "logits", (1, 5)),
    ]  # fmt: skip
    chosen = open_onnx(content, outputs=["y"])
    torch.testing.assert_close(chosen.network(torch.rand(2, 3, 8, 8)).sum(1), torch.ones(2))


@pytest.mark.parametrize(("wide", "output"), [(False, "scores"), (True, "y")])
def test_a_sigmoid_of_classes_is_left_out_where_there_is_one_row_per_image(*, wide: bool, output: str) -> None:
    nodes = [node("Reshape", "x flat", "f"), node("Gemm", "f m", "scores"), node("Sigmoid", "scores", "y")]
    shape = [64, 3] if wide else [1, 192]
    opened = open_onnx(file_of(nodes, {"flat": np.array(shape), "m": weights(shape[1], 4)}))
    assert opened.outputs == (output,)


def _detector() -> bytes:
    nodes = [
        *(
            node("Conv", "x w", "f", **SAME),
            node("Reshape", "f flat", "r"),
            node("Transpose", "r", "t", perm=[0, 2, 1]),
        ),
        *(node("Conv", "x v", "g", **SAME), node("Sigmoid", "g", "p"), node("Reshape", "p few", "scores")),
        node("NonMaxSuppression", "t scores most", "kept", name="nms"),
        *(node("Gather", "kept two", "i", axis=1), node("Gather", "t i", "boxes", axis=1)),
    ]
    tensors = {"w": weights(4, 3, 3, 3), "v": weights(2, 3, 3, 3), "flat": np.array([0, 4, -1]),
               "few": np.array([0, 2, -1]), "most": np.array([5]), "two": np.array(2)}  # fmt: skip
    return file_of(nodes, tensors, outputs=["boxes"])


def test_what_lies_behind_box_selection_is_cut_at_the_last_tensors_before_it() -> None:
    opened = open_onnx(_detector())
    assert sorted((each.name, each.kind, each.shape) for each in opened.candidates) == [
        ("f", "cut", (1, 4, 8, 8)),
        ("g", "logits", (1, 2, 8, 8)),
        ("p", "cut", (1, 2, 8, 8)),
    ]
    assert set(opened.outputs) == {"f", "p"}
    assert "“nms” (NonMaxSuppression)" in opened.notes[1]
    assert open_onnx(_detector(), outputs=["g", "f"]).outputs == ("g", "f")


def test_a_file_of_selection_alone_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="behind node “y” \\(NonZero\\)"):
        open_onnx(file_of([node("NonZero", "x", "y")], {}))


# ---- inputs


@pytest.mark.parametrize("channels", [1, 4])
def test_free_channels_are_those_that_the_first_convolution_takes(channels: int) -> None:
    nodes = [node("Div", "x scale", "d"), node("Conv", "d w", "y")]
    tensors = {"scale": np.array(255, np.float32), "w": weights(4, channels, 3, 3)}
    assert open_onnx(file_of(nodes, tensors, shape=("n", "c", "h", "w"))).input_shape == (1, channels, 224, 224)


def test_free_sides_of_which_no_usual_size_fits_ask_for_one() -> None:
    nodes = [node("Flatten", "x", "f"), node("MatMul", "f w", "y")]
    content = file_of(nodes, {"w": weights(3 * 30 * 30, 5)}, shape=("n", 3, "h", "w"))
    with pytest.raises(UnsupportedModel, match=r"none of the usual ones fits. Give the height and width .*224 × 224"):
        open_onnx(content)
    assert open_onnx(content, size=(30, 30)).input_shape == (1, 3, 30, 30)


def test_tokens_are_drawn_within_the_table_that_they_are_looked_up_in() -> None:
    nodes = [
        node("Gather", "table x", "e"),
        node("ReduceMean", "e", "m", axes=[1], keepdims=0),
        node("MatMul", "m w", "y"),
    ]
    tensors = {"table": weights(3, 6), "w": weights(6, 4)}
    opened = open_onnx(file_of(nodes, tensors, shape=("n", 7), element_type=TensorProto.INT64, opset=13))
    assert opened.input_dtype == torch.int64


def test_a_size_that_fits_is_found() -> None:
    nodes = [node("Conv", "x w", "a", **SAME), node("Flatten", "a", "f"), node("Gemm", "f m", "y")]
    content = file_of(nodes, {"w": W, "m": weights(3 * 32 * 32, 2)}, shape=(None, 3, None, None))
    assert open_onnx(content).input_shape == (1, 3, 32, 32)


# ---- the comparison


def test_a_file_that_amplifies_rounding_is_opened() -> None:
    """As text detectors do, whose last sigmoid is of 50 times the difference of two maps."""
    nodes = [
        node("Conv", "x weight", "a", pads=[2, 2, 2, 2]), node("Relu", "a", "b"),
        node("Conv", "b other", "c", pads=[2, 2, 2, 2]), node("Mul", "c steep", "d"), node("Sigmoid", "d", "y"),
    ]  # fmt: skip
    stored = {
        "weight": weights(32, 3, 5, 5), "other": weights(1, 32, 5, 5, seed=1), "steep": np.array(100, np.float32),
    }  # fmt: skip
    assert 1e-5 < open_onnx(file_of(nodes, stored, shape=(1, 3, 64, 64))).difference < 0.02


def test_the_first_node_that_differs_is_named() -> None:
    nodes = [
        node("Conv", "x w", "a", **SAME),
        node("Relu", "a", "b"),
        node("Conv", "b v", "c", **SAME),
        node("Exp", "c", "y"),
    ]
    content = file_of(nodes, {"w": W / 9, "v": W[::-1].copy() / 9})
    network = open_onnx(content).network
    with torch.no_grad():
        network.c.weight[0, 0, 0, 0] += 1
    with pytest.raises(Differs, match="first at node “c” \\(Conv\\)"):
        check(network, normalise(content)[1], {"x": torch.rand(2, 3, 8, 8)}, batch=1)


# ---- names


@pytest.mark.parametrize(
    ("scopes", "name", "path"),
    [
        ("['', 'layer1', 'layer1.0.conv1', 'conv2d']", "node_conv", "layer1.0.conv1"),
        ("['', 'relu']", "node_relu", ""),
        (None, "/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        (None, "/features/features.0/features.0.1/Relu", "features.0.1"),
        (None, "Conv_7", None),
        ("__import__('os').system('true')", "n", None),
        ("[" * 5000, "n", None),
    ],
)
def test_module_paths_are_read_from_what_exporters_leave(scopes: str | None, name: str, path: str | None) -> None:
    assert module_path({} if scopes is None else {"pkg.torch.onnx.name_scopes": scopes}, name) == path


def test_stack_traces_are_not_kept() -> None:
    model = model_of([node("Conv", "x w", "y")], {"w": W})
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File /home/somebody/net.py")
    assert "somebody" not in repr(open_onnx(model.SerializeToString()))
    assert "somebody" not in repr(normalise(model.SerializeToString())[0])


def test_hostile_names_are_text() -> None:
    model = model_of([helper.make_node("Conv", ["x", "train.weight"], ["y"], name="__class__")], {"train.weight": W})
    opened = open_onnx(model.SerializeToString())
    assert list(_layers(opened.network)) == ["train_"]
    opened.network.train()
