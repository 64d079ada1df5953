"""Files for onnxruntime of a network from an uploaded file are that file: weights changed, roundings inserted."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import InvalidSpec
from senseapp.networks.onnx.difference import difference
from senseapp.networks.onnx.modules import ImageInput
from senseapp.networks.onnx.open import OpenedOnnx, open_onnx
from senseapp.prove.deploy import Source, deploy, original_source, proven_source, stored_source
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.prove import prove
from senseapp.reconstruct.write import write_compressed
from senseapp.records.deployment import DeploySettings
from senseapp.runtimes.onnxruntime.float_graph import FloatGraph, check_quantizable
from tests.cases import first_of, seldom
from tests.onnx_graphs import model_of, node, weights
from tests.small_evaluator import evaluator_of, schedule_of

SAME = {"pads": [1, 1, 1, 1]}


def a_file(*, batch: int | str = "n", constants: bool = False, opset: int = 17, named: bool = True) -> bytes:
    """Return a classifier of images (3, 8, 8) into six classes, with a softmax at its end."""
    nodes = [
        node("Conv", "x first.weight first.bias", "a", **SAME), node("Relu", "a", "b"),
        node("Conv", "b second.weight second.bias", "c", **SAME), node("Relu", "c", "d"),
        node("GlobalAveragePool", "d", "e"), node("Flatten", "e", "f"),
        node("Gemm", "f head.weight head.bias", "logits", transB=1), node("Softmax", "logits", "y", axis=1),
    ]  # fmt: skip
    stored = {
        "first.weight": weights(8, 3, 3, 3), "first.bias": weights(8, seed=1),
        "second.weight": weights(8, 8, 3, 3, seed=2), "second.bias": weights(8, seed=3),
        "head.weight": weights(6, 8, seed=4), "head.bias": weights(6, seed=5),
    }  # fmt: skip
    model = model_of(nodes, stored, shape=(batch, 3, 8, 8), opset=opset)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (batch, 6)))
    model.metadata_props.add(key="author", value="somebody")
    for each in [] if named else model.graph.node:
        each.name = ""
    if constants:
        for tensor in reversed(model.graph.initializer):
            model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
        del model.graph.initializer[:]
    return bytes(model.SerializeToString())


def evaluator_for(content: bytes, *configs: object) -> tuple[OpenedOnnx, ScheduleEvaluator]:
    opened = open_onnx(content)
    return opened, evaluator_of(opened.network, *(configs or (SparsityConfig(),)), onnx=opened)


def run(content: bytes, images: torch.Tensor, outputs: list[str] | None = None) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(outputs, {session.get_inputs()[0].name: images.numpy()})


def settings(kind: str) -> DeploySettings:
    return replace(DeploySettings(), kind=kind)


def test_the_original_is_the_uploaded_file() -> None:
    opened, evaluator = evaluator_for(a_file())
    runtime = evaluator.runtime("onnxruntime")
    assert opened.outputs == ("logits",)
    assert evaluator.original_file(runtime) == opened.content
    images = torch.rand(3, 3, 8, 8)
    torch.testing.assert_close(runtime.open(opened.content).run(images), opened.network(images), atol=1e-5, rtol=0)


def test_a_sparse_file_is_the_uploaded_one_with_zeros(tmp_path) -> None:
    opened, evaluator = evaluator_for(a_file())
    evaluator.class_names = tuple("abcdef")
    proven = prove(evaluator, schedule_of(evaluator, "sparsity", 0.5), repair=True)
    runtime = evaluator.runtime("onnxruntime")
    deployed = deploy(evaluator, proven_source(evaluator, runtime, proven), settings("float"))
    found = difference(opened.content, deployed.content)
    assert found.otherwise_identical
    assert {"first.weight", "second.weight", "head.weight"} <= {each.name for each in found.tensors}
    assert not found.added_nodes
    notes = " ".join(deployed.record.notes)
    assert all(words in notes for words in ("changed tensors", "1 entry of metadata", "as it was uploaded"))
    files, notes = write_compressed(
        proven.applied, tmp_path / "net.safetensors", proven.example, uploaded=opened, told=evaluator.told()
    )
    [written] = [path for path in files if path.suffix == ".onnx"]
    assert written.read_bytes() == deployed.content
    assert open_onnx(deployed.content).metadata == {"author": "somebody", **evaluator.told()}
    assert "as it was uploaded" in " ".join(notes)
    stored = stored_source(evaluator, runtime, proven.result, files[0]).network
    assert runtime.described(stored, evaluator.told()) == deployed.content
    images = torch.rand(2, 3, 8, 8)
    expected = proven.applied.model(images).softmax(1).detach()
    np.testing.assert_allclose(run(deployed.content, images)[0], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["int8", seldom("mixed")])
@pytest.mark.parametrize("constants", first_of([False, True]))
def test_an_int8_file_is_the_uploaded_one_with_roundings(kind: str, constants: bool) -> None:
    opened, evaluator = evaluator_for(a_file(constants=constants, named=not constants))
    deployed = deploy(evaluator, original_source(evaluator, evaluator.runtime("onnxruntime")), settings(kind))
    before, after = onnx.load_from_string(opened.content), onnx.load_from_string(deployed.content)
    graph = FloatGraph.of(opened.content, opened.outputs, opened.input_shape)
    assert [*graph.notes] == [each for each in deployed.record.notes if "a name of its own" in each]
    assert bool(graph.notes) == constants
    found = difference(graph.whole, deployed.content)
    assert found.otherwise_identical
    assert set(found.added_nodes) <= {"QuantizeLinear", "DequantizeLinear", "Cast", "Mul"}
    assert found.added_nodes
    for name in ("metadata_props", "opset_import", "producer_name", "ir_version"):
        assert getattr(before, name) == getattr(after, name)
    assert list(before.graph.input) == list(after.graph.input)
    assert list(before.graph.output) == list(after.graph.output)
    plumbing = ("QuantizeLinear", "DequantizeLinear", "Constant")
    own = [each for each in after.graph.node if each.op_type not in plumbing and ".unpacked" not in each.output[0]]
    kept = [each.op_type for each in before.graph.node if each.op_type != "Constant"]
    assert [each.op_type for each in own if each.op_type != "Relu"] == [each for each in kept if each != "Relu"]
    images = torch.rand(6, 3, 8, 8)
    expected = opened.network(images).detach().numpy()
    logits = run(with_output(deployed.content, "logits"), images, ["logits"])[0]
    assert np.linalg.norm(logits - expected) <= 0.1 * np.linalg.norm(expected)  # about .03; softmax amplifies it
    measured = evaluator.runtime("onnxruntime").open(deployed.content).run(images)
    np.testing.assert_array_equal(logits, measured)
    assert deployed.record.figures["file"].file_bytes == len(deployed.content)


def with_output(content: bytes, name: str) -> bytes:
    model = onnx.load_from_string(content)
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    return bytes(model.SerializeToString())


def test_a_fixed_batch_is_kept_and_the_last_call_is_filled() -> None:
    _opened, evaluator = evaluator_for(a_file(batch=3))
    deployed = deploy(evaluator, original_source(evaluator, evaluator.runtime("onnxruntime")), settings("int8"))
    assert deployed.record.batch == 3  # 40 proof images are no multiple of it
    opened_file = evaluator.runtime("onnxruntime").open(deployed.content)
    images = torch.rand(2, 3, 8, 8)
    assert opened_file.fixed_batch == 3
    whole = opened_file.run(torch.cat([images, torch.rand(1, 3, 8, 8)]))
    torch.testing.assert_close(opened_file.run(images), whole[:2])
    assert run(deployed.content, torch.rand(3, 3, 8, 8))[0].shape == (3, 6)


def test_an_old_opset_is_raised_and_said() -> None:
    _opened, evaluator = evaluator_for(a_file(opset=11))
    deployed = deploy(evaluator, original_source(evaluator, evaluator.runtime("onnxruntime")), settings("int8"))
    assert "raised from 11" in " ".join(deployed.record.notes)
    assert deployed.record.opset == 13


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.graph.initializer[0].CopyFrom(half(model.graph.initializer[0])), "float16"),
        (lambda model: model.graph.node.append(helper.make_node("DequantizeLinear", ["q", "s"], ["w"])), "quantized"),
        (lambda model: model.functions.append(onnx.FunctionProto(name="f", domain="d")), "functions"),
        (lambda model: model.graph.node.append(helper.make_node("FusedConv", ["q", "w"], ["f"])), "optimised"),
    ],
)
def test_files_that_cannot_be_quantized_are_refused_with_the_reason(change, reason: str) -> None:
    model = onnx.load_from_string(a_file())
    change(model)
    with pytest.raises(InvalidSpec, match=reason):
        check_quantizable(model.SerializeToString())


def half(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), tensor.name)


def test_nodes_that_read_what_is_measured_stay_as_they_are() -> None:
    """One more output is computed of what a ReLU behind a convolution reads, and of what that makes."""
    model = onnx.load_from_string(a_file())
    model.graph.node.extend([node("Add", "a b", "sum"), node("Conv", "sum second.weight", "more", **SAME)])
    model.graph.output.append(helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, ("n", 8, 8, 8)))
    opened = open_onnx(model.SerializeToString(), outputs=["logits"])
    runtime = evaluator_of(opened.network, SparsityConfig(), onnx=opened).runtime("onnxruntime")
    images = torch.rand(4, 3, 8, 8)
    file = runtime.in_place(opened.content, runtime.quantizer(opened.content, [images]).write())
    assert difference(opened.content, file).otherwise_identical
    for before, after in zip(run(opened.content, images), run(file, images), strict=True):
        assert np.linalg.norm(after - before) < 0.2 * np.linalg.norm(before)


def test_nodes_are_sorted_where_a_writer_put_them_in_another_order() -> None:
    model = onnx.load_from_string(a_file())
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([nodes[1], nodes[0], *nodes[2:]])
    content = model.SerializeToString()
    _, evaluator = evaluator_for(content)
    runtime = evaluator.runtime("onnxruntime")
    file = runtime.in_place(content, runtime.quantizer(content, [torch.rand(4, 3, 8, 8)]).write())
    assert any("Nodes of the file are sorted" in each for each in runtime.changes(file))
    assert any("as it was uploaded" in each for each in runtime.changes(file))
    assert run(file, torch.rand(2, 3, 8, 8))[0].shape == (2, 6)


def test_layers_are_known_whatever_the_nodes_are_called() -> None:
    content = a_file(named=False)
    _, evaluator = evaluator_for(content)
    runtime = evaluator.runtime("onnxruntime")
    layers = {layer.name for layer in evaluator.profile.layers}
    assert set(runtime.layers_of_nodes(content, layers).values()) == layers == {"first", "second", "head"}


def test_bits_of_a_schedule_become_rounded_weights_of_the_same_type() -> None:
    opened, evaluator = evaluator_for(a_file(), QuantizationConfig())
    proven = prove(evaluator, schedule_of(evaluator, "quantization", 4), repair=False)
    source = proven_source(evaluator, evaluator.runtime("onnxruntime"), proven)
    deployed = deploy(evaluator, source, settings("float"))
    found = difference(opened.content, deployed.content)
    assert found.otherwise_identical
    assert not found.added_nodes
    [weight] = [
        each for each in onnx.load_from_string(deployed.content).graph.initializer if each.name == "head.weight"
    ]
    assert max(len(np.unique(row)) for row in onnx.numpy_helper.to_array(weight)) <= 16
    assert source.network == deployed.content
    assert isinstance(source, Source)


def test_times_of_operators_are_those_of_images_of_the_measured_size() -> None:
    """The file leaves the size free, and takes no images of one pixel."""
    nodes = [node("Conv", "x kernel", "a"), node("GlobalAveragePool", "a", "b"), node("Flatten", "b", "y")]
    model = model_of(nodes, {"kernel": weights(6, 3, 5, 5)}, shape=("n", 3, "h", "w"), opset=17)
    opened = open_onnx(model.SerializeToString(), size=(12, 12))
    runtime = evaluator_of(opened.network, SparsityConfig(), onnx=opened).runtime("onnxruntime")
    found = {each.kind: each.calls for each in runtime.operators(opened.content)}
    assert found["Conv"] == 1


def channels_last(content: bytes, *, whole: bool) -> bytes:
    """Return the file with images (N, H, W, C) as its input, of bytes where they are ``whole``."""
    model = onnx.load_from_string(content)
    kind = onnx.TensorProto.UINT8 if whole else onnx.TensorProto.FLOAT
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("image", kind, ("n", 8, 8, 3)))
    model.graph.node.insert(0, helper.make_node("Transpose", ["numbers"], ["x"], "turned", perm=[0, 3, 1, 2]))
    cast = helper.make_node("Cast", ["image"], ["numbers"], "cast", to=onnx.TensorProto.FLOAT)
    model.graph.node.insert(0, cast)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("whole", first_of([False, True]))
def test_images_come_in_the_order_and_type_that_the_file_declares(whole: bool) -> None:
    opened = open_onnx(channels_last(a_file(), whole=whole))
    opened.network.images = ImageInput(channels_last=True, dtype=opened.input_dtype, batch=opened.batch)
    evaluator = evaluator_of(opened.network, SparsityConfig(), onnx=opened)
    runtime = evaluator.runtime("onnxruntime")
    images = torch.rand(4, 3, 8, 8) * (255 if whole else 1)
    expected = opened.network(images)
    torch.testing.assert_close(runtime.open(opened.content).run(images), expected, atol=1e-4, rtol=1e-4)
    deployed = deploy(evaluator, original_source(evaluator, runtime), settings("int8"))
    assert difference(opened.content, deployed.content).otherwise_identical
    assert f"image, {'uint8' if whole else 'float32'}, is (N, 8, 8, 3)" in deployed.record.preparation
    owners = runtime.layers_of_nodes(opened.content, {layer.name for layer in evaluator.profile.layers})
    assert runtime.time_layers(opened.content, runtime.quantizer(opened.content, [images]), owners).times


def test_a_pruned_file_is_the_uploaded_one_with_fewer_channels(tmp_path) -> None:
    opened, evaluator = evaluator_for(a_file(constants=True), PruningConfig())
    schedule = replace(
        schedule_of(evaluator, "pruning", 0.5), entries=schedule_of(evaluator, "pruning", 0.5).entries[:2]
    )
    proven = prove(evaluator, schedule, repair=True)
    files, notes = write_compressed(proven.applied, tmp_path / "net.safetensors", proven.example, uploaded=opened)
    source = stored_source(evaluator, evaluator.runtime("onnxruntime"), proven.result, files[0])
    assert source.network == (tmp_path / "net.onnx").read_bytes()
    found = difference(opened.content, source.network)
    assert found.otherwise_identical
    assert {each.size for each in found.tensors} >= {4 * 3 * 9, 4 * 4 * 9, 6 * 4}
    assert "as it was uploaded" in " ".join(notes)
    images = torch.rand(2, 3, 8, 8)
    expected = proven.applied.model(images).softmax(1).detach()
    np.testing.assert_allclose(run(source.network, images)[0], expected, atol=1e-5)
    deployed = deploy(evaluator, source, settings("int8"))
    graph = FloatGraph.of(source.network, opened.outputs, opened.input_shape)
    assert difference(graph.whole, deployed.content).otherwise_identical
    assert set(difference(source.network, deployed.content).added_nodes) == {"QuantizeLinear", "DequantizeLinear"}


def test_half_precision_is_deployed_as_it_was_uploaded() -> None:
    model = onnx.load_from_string(a_file())
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        tensor.CopyFrom(half(tensor))
    opened, evaluator = evaluator_for(model.SerializeToString())
    proven = prove(evaluator, schedule_of(evaluator, "sparsity", 0.5), repair=True)
    source = proven_source(evaluator, evaluator.runtime("onnxruntime"), proven)
    deployed = deploy(evaluator, source, settings("float"))
    assert difference(opened.content, deployed.content).otherwise_identical
    assert "x, float16, is (N, 3, 8, 8)" in deployed.record.preparation
    assert "half precision" in " ".join(deployed.record.notes)
    images = torch.rand(2, 3, 8, 8).half()
    expected = proven.applied.model(images.float()).softmax(1).detach()
    np.testing.assert_allclose(run(deployed.content, images)[0], expected, atol=5e-3)
    with pytest.raises(InvalidSpec, match="float16"):
        deploy(evaluator, source, settings("int8"))
