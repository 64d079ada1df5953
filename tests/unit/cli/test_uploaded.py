"""``apply`` and ``deploy`` on an uploaded ONNX file, from ``analyze`` to that file, edited."""

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.torch
import torch
from PIL import Image

from senseapp.cli.main import main
from senseapp.networks.onnx.difference import difference
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.sources.demo import load_demo_model
from tests.few_digits import few_digits as few_digits
from tests.onnx_files import write_export

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory, few_digits):
    folder = tmp_path_factory.mktemp("uploaded")
    write_export(folder / "digits.onnx", load_demo_model().module, side=32, channels=1)
    options = ["--compression", "sparsity", "--levels", "50", "--layers", "layer4*", "--samples", "64"]
    model = ["--model", "onnx", "--checkpoint", str(folder / "digits.onnx"), "--data", "demo"]
    assert main(["analyze", *model, *options, "--out", str(folder / "run")]) == 0
    assert json.loads((folder / "run" / "result.json").read_text())
    (folder / "schedule.csv").write_text(
        "layer,members,compression,level,unit,predicted_damage,locked\nlayer4.0.conv1,layer4.0.conv1,sparsity,50,percent,0.1,false\n"
    )
    return folder


def test_apply_writes_the_uploaded_file_with_zeros(folder, capsys):
    out = folder / "small.safetensors"
    options = ["--run", str(folder / "run"), "--schedule", str(folder / "schedule.csv")]
    assert main(["apply", *options, "--out", str(out.with_suffix(".onnx"))]) == 0
    report = json.loads(capsys.readouterr().out)
    assert str(folder / "small.onnx") in report["files"]
    before, after = (folder / "digits.onnx").read_bytes(), (folder / "small.onnx").read_bytes()
    found = difference(before, after)
    assert found.otherwise_identical
    [tensor] = found.tensors
    assert f"“{tensor.name}”" in " ".join(report["notes"])
    stored = {each.name: each for each in onnx.load_from_string(after).graph.initializer}
    assert (onnx.numpy_helper.to_array(stored[tensor.name]) == 0).mean() == pytest.approx(0.5, abs=0.01)
    network = open_onnx(before).network
    network.load_state_dict(safetensors.torch.load(out.read_bytes()))
    images = torch.rand(2, 1, 32, 32)
    session = onnxruntime.InferenceSession(after, providers=["CPUExecutionProvider"])
    [scores] = session.run(None, {"images": images.numpy()})
    np.testing.assert_allclose(scores, network(images).detach(), atol=1e-4)


@pytest.mark.wide
def test_deploy_inserts_roundings_and_says_so(folder, capsys):
    out = folder / "quick.onnx"
    assert main(["deploy", "--run", str(folder / "run"), "--mode", "int8", "--format", "kit", "--out", str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    found = difference((folder / "digits.onnx").read_bytes(), out.read_bytes())
    assert found.otherwise_identical
    assert set(found.added_nodes) == {"QuantizeLinear", "DequantizeLinear"}
    notes = " ".join(report["notes"])
    assert "QuantizeLinear" in notes
    assert "as it was uploaded" in notes
    Image.fromarray(np.full((32, 32), 200, np.uint8)).save(folder / "picture.png")
    command = [sys.executable, "-I", "predict.py", out.name, "picture.png"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=120).stdout
    assert sum(float(line.split()[0]) for line in said.splitlines()) > 50  # the best five of ten classes
    assert report["file"]["file_bytes"] == out.stat().st_size < 0.5 * report["original"]["file_bytes"]
    assert report["original"]["file_bytes"] == (folder / "digits.onnx").stat().st_size
