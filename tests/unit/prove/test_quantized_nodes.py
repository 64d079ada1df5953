"""Which node of a quantized file is to blame: the one that was spoilt, found beside the float file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from senseapp.cli.main import main
from senseapp.core.codec import loads
from senseapp.core.errors import InvalidSpec
from senseapp.records.check import CheckSpec
from senseapp.records.layer_findings import QuantizedNodesReport
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.runtimes.qdq_nodes import QdqFile
from senseapp.views.words.check import divergence_sentence
from tests.onnx_files import exported
from tests.pictures import png, write_folder
from tests.shapes_detector import DecodedDetector, inputs, picture_files
from tests.small_models import small_network


@pytest.fixture(scope="module")
def float_file() -> bytes:
    torch.manual_seed(0)
    return exported(small_network())


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """Drawn as random inputs are, so that ranges fit those."""
    return torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Calibration(CalibrationDataReader):
    def __init__(self, images: torch.Tensor) -> None:
        self._batches = iter([{"images": images.numpy()}])

    def get_next(self) -> Any:
        return next(self._batches, None)


@pytest.fixture(scope="module")
def int8(float_file: bytes, images: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """By onnxruntime's own quantizer, in 7 bits: with 8, sums saturate in the kernels of older processors."""
    folder = tmp_path_factory.mktemp("int8")
    (folder / "net.onnx").write_bytes(float_file)
    quantize_static(folder / "net.onnx", folder / "int8.onnx", Calibration(images), reduce_range=True)
    return (folder / "int8.onnx").read_bytes()


def spoilt(content: bytes, node_name: str) -> bytes:
    """Return the file with the weight of one node on a grid of five steps."""
    model = onnx.load_from_string(content)
    stored = {each.name: each for each in model.graph.initializer}
    node = next(each for each in model.graph.node if each.name == node_name)
    undone = next(each for each in model.graph.node if each.output[0] == node.input[1])
    codes, scale = (stored[name] for name in undone.input[:2])
    coarse = np.round(numpy_helper.to_array(codes) / 60).astype(numpy_helper.to_array(codes).dtype)
    codes.CopyFrom(numpy_helper.from_array(coarse, codes.name))
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(60), scale.name))
    return bytes(model.SerializeToString())


def layers_of(content: bytes) -> list[str]:
    return [
        node.name for node in onnx.load_from_string(content).graph.node if node.op_type in ("Conv", "Gemm", "MatMul")
    ]


def run(content: bytes, images: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images.numpy()})[0]


def test_with_all_nodes_in_float_the_file_is_the_float_file_and_with_none_it_is_as_it_was(
    float_file: bytes, int8: bytes, images: torch.Tensor
) -> None:
    file = QdqFile(int8, float_file)
    assert set(layers_of(int8)) <= {node.name for node in file.nodes}
    assert all(node.weights_known for node in file.nodes)
    assert np.array_equal(run(file.restored(()), images), run(int8, images))
    whole = file.restored([node.name for node in file.nodes])
    expected = run(float_file, images)
    assert np.abs(run(int8, images) - expected).max() > 1e-4
    # The rounding of the last output is nobody's input.
    last = [node for node in onnx.load_from_string(whole).graph.node if node.op_type == "QuantizeLinear"]
    assert len(last) <= 1
    assert np.abs(run(whole, images) - expected).max() <= (1e-5 if not last else 2e-2) * np.abs(expected).max()


def test_weights_that_were_changed_are_not_put_back(float_file: bytes, int8: bytes) -> None:
    """A file whose layers were scaled before it was quantized is not mended with the float file's weights."""
    model = onnx.load_from_string(float_file)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.3), tensor.name))
    file = QdqFile(int8, model.SerializeToString())
    assert not any(node.weights_known for node in file.nodes if node.name in layers_of(int8))


def test_a_float_file_has_no_quantized_nodes(float_file: bytes) -> None:
    with pytest.raises(InvalidSpec, match="No node of the quantized file"):
        QdqFile(float_file, float_file)


def test_the_spoilt_node_is_named_first(float_file: bytes, int8: bytes, tmp_path: Path) -> None:
    from senseapp.prove.diagnosis import blame_nodes

    name = layers_of(int8)[1]
    (tmp_path / "net.onnx").write_bytes(float_file)
    (tmp_path / "int8.onnx").write_bytes(spoilt(int8, name))
    spec = RunSpec(
        model=ModelSpec(library="onnx", checkpoint=str(tmp_path / "net.onnx"), task="classification"),
        data=DataSpec(kind="random"),
        sensitivity=SensitivitySpec(num_samples=16),
    )
    report = blame_nodes(spec, tmp_path / "int8.onnx")
    assert report.ranked[0].name == name
    assert report.recovered(report.ranked[0]) > 0.5 * report.whole
    assert report.rest < 0.05 * report.whole
    assert name in report.verdict


def test_the_command_prints_the_verdict_and_writes_the_nodes(
    float_file: bytes, int8: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = layers_of(int8)[0]
    (tmp_path / "net.onnx").write_bytes(float_file)
    (tmp_path / "int8.onnx").write_bytes(spoilt(int8, name))
    data = write_folder(tmp_path / "heap", {f"{i}.png": png(i) for i in range(4)})
    files = (str(tmp_path / "net.onnx"), str(tmp_path / "int8.onnx"))
    arguments = ("--data", str(data), "--preprocessing", "own", "--out", str(tmp_path / "nodes.json"))
    assert main(["blame", *files, *arguments]) == 0
    assert name in capsys.readouterr().out
    written = (tmp_path / "nodes.json").read_text()
    assert loads(written, QuantizedNodesReport).images == 4
    assert json.loads(written)
    assert main(["blame", files[0], str(tmp_path / "none.onnx"), *arguments]) == 2
    assert main(["blame", files[0], files[0], *arguments]) == 2


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a detector of one output, boxes in pixels and scores, and its pictures."""
    folder = tmp_path_factory.mktemp("detector")
    for name, rows in (("columns", False), ("rows", True)):
        (folder / f"{name}.onnx").write_bytes(exported(DecodedDetector(8, rows=rows, extra=True), side=512))
    return write_folder(folder / "pictures", picture_files(12)).parent


def joined_in_int8(file: Path, kinds: set[str]) -> tuple[bytes, str]:
    """Return the file with the last Concat, and what follows it of these kinds, in int8; and the name of that node."""
    nodes = onnx.load(file).graph.node
    place = max(place for place, node in enumerate(nodes) if node.op_type == "Concat")
    quantize_static(
        file,
        file.with_suffix(".int8.onnx"),
        Calibration(torch.nn.functional.interpolate(inputs(range(8))[0] * 0.25 + 0.5, scale_factor=8)),
        nodes_to_quantize=[node.name for node in nodes[place:] if node.op_type in kinds],
    )
    return file.with_suffix(".int8.onnx").read_bytes(), nodes[place].name


@pytest.mark.wide
@pytest.mark.parametrize(("form", "kinds"), [("columns", {"Concat"}), ("rows", {"Concat", "Transpose"})])
def test_the_node_that_joins_boxes_and_scores_is_named(detector: Path, form: str, kinds: set[str]) -> None:
    from senseapp.prove.check.check import check_files
    from senseapp.prove.diagnosis import blame_nodes

    file = detector / f"{form}.onnx"
    _, name = joined_in_int8(file, kinds)
    reference, candidate = (
        ModelSpec(library="onnx", checkpoint=str(path), task="detection")
        for path in (file, file.with_suffix(".int8.onnx"))
    )
    data = DataSpec(kind="folder", path=str(detector / "pictures"), mean=(0.0,) * 3, std=(1.0,) * 3)
    spec = RunSpec(model=reference, data=data, sensitivity=SensitivitySpec(num_samples=8))
    report = blame_nodes(spec, file.with_suffix(".int8.onnx"))
    assert report.ranked[0].name == name
    assert report.recovered(report.ranked[0]) == pytest.approx(report.whole, rel=1e-3)
    assert report.rest < 1e-6 * report.whole
    assert name in report.verdict
    checked = check_files(CheckSpec(reference=reference, candidate=candidate, data=data))
    assert not checked.holds
    assert checked.divergence is not None
    assert checked.divergence.first is not None
    assert checked.divergence.first.node == name
    assert f"(Concat “{name}”)" in divergence_sentence(checked.divergence)
