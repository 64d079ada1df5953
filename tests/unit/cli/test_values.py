"""``values`` on the command line: an embedding from analyze to a checked int8 file, and maps that may be two tasks."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from senseapp.cli.main import main
from tests.value_networks import write_network, write_pictures

PREPARED = ("--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25", "--preprocessing", "own")
COUNT = 90


def outputs(file: Path, pictures: Path) -> np.ndarray:
    """Return what onnxruntime computes of the pictures, (N, D)."""
    files = sorted(pictures.rglob("*.png"))
    images = np.stack([np.asarray(Image.open(each), dtype=np.float32).transpose(2, 0, 1) for each in files])
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: (images / 255 - 0.5) / 0.25})[0].astype(np.float64)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_times")
def test_an_embedding_is_ranked_scheduled_deployed_and_checked(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("SENSEAPP_JOB_PROCESSES", "0")
    network, pictures = write_network(tmp_path / "face.onnx", "face embedding"), write_pictures(tmp_path / "set", COUNT)
    data = ("--data", str(pictures), *PREPARED)
    model = ("--model", "onnx", "--checkpoint", str(network), "--task", "values")
    levels = ("--compression", "quantization", "--levels", "8,4,3", "--samples", "40")
    run, small = str(tmp_path / "run"), tmp_path / "small.onnx"
    assert main(["analyze", *model, *data, *levels, "--out", run]) == 0
    assert "Labels are not read" in capsys.readouterr().out
    metrics = {line.split(",")[6] for line in (tmp_path / "run" / "sensitivity.csv").read_text().splitlines()[1:]}
    assert metrics == {"squared_error", "fidelity", "cosine_distance"}
    schedule = str(tmp_path / "schedule.json")
    assert (
        main(["schedule", "--run", run, "--budget", "bytes", "--target", "0.8", "--format", "json", "--out", schedule])
        == 0
    )
    capsys.readouterr()
    assert main(["deploy", "--run", run, "--mode", "int8", "--out", str(small)]) == 0
    deployed = json.loads(capsys.readouterr().out)["file"]["changes"]
    assert 0 < deployed["squared_error"]["delta"] == pytest.approx(deployed["fidelity"]["delta"])
    checked = ("check", str(network), str(small), "--task", "values", *data, "--metric", "squared_error")
    capsys.readouterr()
    assert main([*checked, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    before, after = outputs(network, pictures), outputs(small, pictures)
    error = (((after - before) ** 2).sum(1) / (before**2).sum(1)).mean()
    assert found["loss"] == pytest.approx(error, rel=1e-3)
    assert main([*checked, "--max-drop", f"{100 * error / 2:.6f}"]) == 1
    assert main(["report", run, "--out", str(tmp_path / "report.html")]) == 0
    assert "Squared error" in (tmp_path / "report.html").read_text()


def test_a_map_without_evidence_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = write_network(tmp_path / "auto.onnx", "autoencoder")
    given = ("--data", "random", "--compression", "sparsity", "--levels", "50", "--out", str(tmp_path / "run"))
    assert main(["analyze", "--model", "onnx", "--checkpoint", str(network), *given]) == 2
    said = capsys.readouterr().err
    assert "(1, 3, 32, 32). These outputs could be segmentation or values: choose" in said
