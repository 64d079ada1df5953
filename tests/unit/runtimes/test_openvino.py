"""OpenVINO as a runtime: what files answer in it beside torch and onnxruntime, and what it cannot open."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import timm
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from senseapp.cli.main import main
from senseapp.core.errors import InvalidSpec
from senseapp.core.steps import OptionalSteps
from senseapp.descriptions.runtimes import RUNTIMES, RuntimeDescription, installed_runtimes
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.base import runtime_named
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OPERATIONS as ONNXRUNTIME
from senseapp.runtimes.onnxruntime.operations import default_int8
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.runtimes.openvino import OPENVINO
from senseapp.runtimes.openvino.operations import OPERATIONS, compiled, read, undisturbed
from senseapp.runtimes.quantizers import Fitting

pytestmark = pytest.mark.slow  # exports networks


class Residual(nn.Module):
    """Convolutions with an addition, a depthwise one, an activation that is not ReLU, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.narrow = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.depthwise, self.head = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Linear(16, 5)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        stem = self.stem(images).relu()
        body = nn.functional.hardswish(self.depthwise(stem + self.narrow(stem)))
        return {"scores": self.head(body.mean((2, 3))), "map": body[:, :2]}


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def files(images: torch.Tensor) -> SimpleNamespace:
    torch.manual_seed(0)
    network = Residual().eval()
    content = onnx_model(network, images[:2])
    writer = Int8Writer(content, [images])
    return SimpleNamespace(network=network, real=content, int8=writer.write(), writer=writer)


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm().detach())


def test_a_float_file_computes_what_torch_does_for_any_number_of_images(files, images) -> None:
    opened = OPERATIONS.open(files.real)
    assert opened.fixed_batch is None
    with torch.inference_mode():
        for part in (images, images[:5], images[5:6]):
            expected, found = files.network(part), opened.run(part)
            assert list(found) == ["scores", "map"]
            for name, values in expected.items():
                torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-5)


def test_an_int8_file_computes_in_int8_what_it_does_in_onnxruntime(files, images) -> None:
    real, theirs, ours = (
        runtime.open(content).run(images)
        for runtime, content in ((ONNXRUNTIME, files.real), (ONNXRUNTIME, files.int8), (OPERATIONS, files.int8))
    )
    for name in ("scores", "map"):
        harm = relative(theirs[name], real[name])
        # Additions and activations are fused with what is before them, so a few values are rounded once less.
        assert relative(ours[name], theirs[name]) < 0.5 * harm
        assert relative(ours[name], real[name]) < 1.2 * harm
    assert (ours["scores"].argmax(1) == theirs["scores"].argmax(1)).float().mean() >= 23 / 24
    kernels = [each.kernel for each in executed(files.int8) if each.kind == "Convolution"]
    assert len(kernels) == 3
    assert all(each.endswith("_I8") for each in kernels)


def test_weights_fitted_for_openvino_saturate_in_no_order_of_the_products(files, images) -> None:
    steps = OptionalSteps()
    quantizer = OPERATIONS.fitted_quantizer(files.real, Fitting(batches=[images], steps=steps))
    model = onnx.load_from_string(quantizer.write())
    assert not steps.notes
    weights = {
        each.name: numpy_helper.to_array(each).astype(int)
        for each in model.graph.initializer
        if len(each.dims) == 4 and each.data_type == TensorProto.INT8
    }
    stem, narrow = (next(each for each in weights.values() if each.shape[1] == size) for size in (3, 16))
    assert np.abs(stem).max() <= 64
    assert np.abs(narrow).max() > 64
    pairs = narrow.reshape(16, 8, 2, 3, 3)
    assert max(pairs.clip(0).sum(2).max(), -pairs.clip(max=0).sum(2).min()) <= 128


class Loud(nn.Module):
    """Layers of every kind with weights and images near their largest: odd channels, depthwise, shared, dense."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 32, 3, groups=32)
        self.shared, self.head = nn.Conv2d(32, 32, 1), nn.Linear(32, 5)
        with torch.no_grad():
            for each in (self.first, self.depthwise, self.shared, self.head):
                each.weight.copy_(each.weight.sign() * each.weight.abs().clamp_min(0.8 * each.weight.abs().max()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        body = self.depthwise(self.first(images).relu()).relu()
        return self.head(self.shared(self.shared(body).relu()).relu().mean((2, 3)))


@pytest.mark.wide
@pytest.mark.parametrize("processor", ["AVX2", "AVX512_CORE"])
def test_only_files_of_others_saturate_where_products_of_8_bits_have_no_instructions(processor, tmp_path) -> None:
    """Kernels there add two products in 16 bits; which two, differs where channels are odd."""
    torch.manual_seed(0)
    images = torch.rand(4, 1, 16, 16) * 0.3 + 0.7
    content = onnx_model(Loud().eval(), images[:1])
    quantizer = OPERATIONS.fitted_quantizer(content, Fitting(batches=[images], steps=OptionalSteps()))
    files = {"fitted": quantizer.write()}
    files["not fitted"] = OPERATIONS.quantizer(content, [images]).write()
    files["of others"] = default_int8(content, [images]).content
    torch.save((files, images), tmp_path / "files.pt")
    script = (
        "import torch; from senseapp.runtimes import call_times; "
        "from senseapp.runtimes.onnxruntime.rounding import saturation; "
        "saturation.saturates = call_times.saturates = lambda: True; "  # its flags tell of the true processor
        "from senseapp.runtimes.openvino.operations import OPERATIONS; "
        "files, images = torch.load('files.pt'); "
        "found = {name: OPERATIONS.open(each).run(images) for name, each in files.items()}; "
        "meant = {name: OPERATIONS.on_other_processors(each).run(images) for name, each in files.items()}; "
        "torch.save((found, meant, OPERATIONS.machine()), 'found.pt')"
    )
    older = {**os.environ, "ONEDNN_MAX_CPU_ISA": processor, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=older, check=True)
    found, meant, machine = torch.load(tmp_path / "found.pt")
    assert "without VNNI" in machine
    for name, file in files.items():
        expected = RuntimeModel(file, fused=False).run(images)
        assert relative(meant[name], expected) < 0.02
        assert (relative(found[name], expected) < 0.02) == (name != "of others")


def test_of_networks_with_attention_only_products_with_weights_are_in_int8() -> None:
    """On processors without VNNI sums of products of two activations saturate."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3, 4, 4]) for name in "xy"]
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="with weights"),
        helper.make_node("Neg", ["a"], ["b"], name="between"),
        helper.make_node("Softmax", ["b"], ["c"], name="shares"),
        helper.make_node("MatMul", ["c", "x"], ["d"], name="of activations"),
        helper.make_node("MatMul", ["d", "w"], ["y"], name="last"),
    ]
    content = graph_file(nodes, info[:1], info[1:], [weight])
    content = onnx.shape_inference.infer_shapes(onnx.load_from_string(content)).SerializeToString()
    quantizer = OPERATIONS.quantizer(content, [torch.randn(2, 3, 4, 4)])
    found = quantizer.write()
    assert quantizer.nodes(found) == ["with weights", "last"]
    kernels = [each.kernel for each in executed(found, (1, 3, 4, 4)) if each.kind in ("MatMul", "FullyConnected")]
    assert "8" in kernels[0]
    assert kernels[1].endswith("f32")
    (note,) = quantizer.notes
    assert note.startswith("Only convolutions and matrix products with weights")


def executed(content: bytes, shape=(1, 3, 16, 16)):
    for node in compiled(read(content), shape, threads=1).get_runtime_model().get_ordered_ops():
        about = node.get_rt_info()
        yield SimpleNamespace(kind=about["layerType"].astype(str), kernel=about["primitiveType"].astype(str))


def test_float_is_never_computed_in_16_bits(files) -> None:
    network = compiled(read(files.real), (1, 3, 16, 16), threads=1)
    assert network.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
    assert (network.get_property("NUM_STREAMS"), network.get_property("INFERENCE_NUM_THREADS")) == (1, 1)
    assert not network.get_property("ENABLE_CPU_PINNING")
    assert all(each.kernel.endswith("_f32") for each in executed(files.real) if each.kind == "Convolution")
    assert '"INFERENCE_PRECISION_HINT": "f32"' in OPENVINO.loading


def test_the_instructions_beside_a_file_run_it(files, images, tmp_path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(files.real)
    names = {"images": images[:2].numpy()}
    loading = OPENVINO.loading.replace("{name}", str(path))
    exec(f"{loading}\n{OPENVINO.running}", names)
    np.testing.assert_allclose(names["scores"], files.network(images[:2])["scores"].detach(), rtol=1e-4, atol=1e-5)


def graph_file(nodes, inputs, outputs, constants=()) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my.own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def test_outputs_keep_their_names_and_order_also_of_one_value() -> None:
    float_, size = TensorProto.FLOAT, ["N", 3, 4, 4]
    nodes = [
        helper.make_node("Neg", ["x"], ["b"]),
        helper.make_node("Identity", ["b"], ["a"]),
        helper.make_node("Cast", ["x"], ["c"], to=TensorProto.INT64),
    ]
    outputs = [helper.make_tensor_value_info(name, kind, size) for name, kind in (("c", 7), ("b", 1), ("a", 1))]
    opened = OPERATIONS.open(graph_file(nodes, [helper.make_tensor_value_info("x", float_, size)], outputs))
    given = torch.arange(96.0).reshape(2, 3, 4, 4)
    found = opened.run(given)
    found = dict(zip(opened.output_names, found, strict=True))
    assert list(found) == ["c", "b", "a"]
    assert found["c"].dtype == torch.int64
    assert torch.equal(found["c"], given.long())
    assert torch.equal(found["b"], -given)
    assert torch.equal(found["a"], -given)


def test_a_file_of_half_precision_with_a_fixed_batch_takes_what_it_declares() -> None:
    half, size = TensorProto.FLOAT16, [2, 3, 4, 4]
    info = [helper.make_tensor_value_info(name, half, size) for name in "xy"]
    opened = OPERATIONS.open(graph_file([helper.make_node("Neg", ["x"], ["y"])], info[:1], info[1:]))
    assert (opened.fixed_batch, opened.facts.input_type) == (2, "float16")
    given = torch.arange(96.0).reshape(2, 3, 4, 4)
    assert torch.equal(opened.run(given), -given)
    assert torch.equal(opened.run(given[:1]), -given[:1])  # fewer images than a call has


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no model", "Unable to read the model"),
        (b"", "Unable to read the model"),
        (
            graph_file(
                [helper.make_node("Foo", ["x"], ["y"], domain="my.own")],
                [helper.make_tensor_value_info("x", 1, [1, 3])],
                [helper.make_tensor_value_info("y", 1, [1, 3])],
            ),
            "No conversion rule found for operations: my.own.Foo",
        ),
    ],
)
def test_what_it_cannot_open_is_refused_in_a_sentence(content: bytes, said: str) -> None:
    with pytest.raises(InvalidSpec, match=f"OpenVINO cannot open this network: {said}") as caught:
        OPERATIONS.open(content)
    assert "\n" not in str(caught.value)
    assert "src/" not in str(caught.value)


def test_a_shape_that_the_network_does_not_take_is_refused(files) -> None:
    with pytest.raises(InvalidSpec, match="OpenVINO cannot open this network"):
        OPERATIONS.open(files.real).run(torch.zeros(1, 4, 16, 16))


def test_kernels_are_named_by_the_nodes_that_they_compute(files) -> None:
    kernels = OPERATIONS.kernels(files.real, threads=1, batch=2)
    graph = onnx.load_from_string(files.real).graph
    convolutions = {node.name for node in graph.node if node.op_type == "Conv"}
    assert {each.name for each in kernels if each.kind == "Conv"} == convolutions
    assert {each.values for each in kernels if each.kind == "Conv"} == {2 * 3 * 256, 2 * 16 * 256}
    assert sum(each.kind == "Gemm" for each in kernels) == 1
    assert all(each.seconds >= 0 for each in kernels)


def test_runs_that_were_disturbed_are_left_out_of_a_kernel_s_time() -> None:
    runs = np.array([900.0, 30, 31, 29, 5000, 30, 30, 30, 2500, 30])
    averages = np.floor(runs.cumsum() / np.arange(1, 11)) / 1e6  # as OpenVINO has them
    assert undisturbed(averages) == pytest.approx(30e-6, abs=3e-6)
    assert undisturbed([2e-6, 2e-6]) == pytest.approx(2e-6)


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RuntimeDescription.is_installed.fget
    monkeypatch.setattr(
        RuntimeDescription, "is_installed", property(lambda each: each.name != OPENVINO.name and found(each))
    )


@pytest.mark.usefixtures("without_openvino")
def test_where_it_is_not_installed_it_is_said_how_it_is_added(tmp_path, capsys) -> None:
    said = "OpenVINO is not installed here. To add it: pip install '.[openvino]'"
    assert [each.name for each in installed_runtimes()] == ["onnxruntime"]
    assert OPENVINO.name in RUNTIMES
    with pytest.raises(InvalidSpec) as caught:
        runtime_named("openvino")
    assert str(caught.value) == said
    assert main(["deploy", "--run", str(tmp_path), "--runtime", "openvino", "--out", str(tmp_path / "x.onnx")]) == 2
    assert said in capsys.readouterr().err


def test_nobody_is_told_that_openvino_runs(tmp_path) -> None:
    program = (
        "import sys\n"
        "from senseapp.compat.openvino_internals import openvino\n"
        "assert openvino.Core().available_devices\n"
        "print([name for name in sys.modules if name.startswith('openvino_telemetry.')])"
    )
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240, env=environment
    )
    assert done.stdout.strip() == "[]"
    assert not (tmp_path / "intel").exists()  # where its identifier would be kept


@pytest.mark.wide
@pytest.mark.parametrize(("side", "window"), [(32, 4), (64, 7)])
def test_a_swin_runs_in_int8(side: int, window: int) -> None:
    """OpenVINO removes pads of nothing, and its compiler crashed where these were rounded.

    The larger network pads, and its nodes make masks of constants: it could not open a file that adds these in int8.
    """
    torch.manual_seed(0)
    sizes = {"img_size": side, "window_size": window, "embed_dim": 8, "depths": (2, 2), "num_heads": (1, 2)}
    network = timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **sizes).eval()
    images = torch.randn(4, 3, side, side, generator=torch.Generator().manual_seed(0))
    content = onnx_model(network, images[:1])
    pads = {node.name for node in onnx.load_from_string(content).graph.node if node.op_type == "Pad"}
    file = OPERATIONS.quantizer(content, [images]).write()
    assert pads
    assert relative(OPERATIONS.open(file).run(images), network(images)) < 0.2
