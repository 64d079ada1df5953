"""``python -m senseapp histogram`` with the demo."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pandas as pd
import pytest

from senseapp.cli.main import main
from senseapp.records.histogram import QuantizationHistogram
from senseapp.store.run_folder import RunFolder

DEMO = ("--model", "demo", "--data", "demo", "--samples", "8")


def histogram(out: Path, *options: str) -> int:
    return main(["histogram", *options, "--out", str(out)])


@pytest.mark.slow
def test_a_model_is_looked_at_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made" / "here"
    options = ("--layers", "conv1.*,fc", "--bits", "3", "--tensor", "outputs", "--objective", "mean")
    assert histogram(out, *DEMO, *options) == 0
    frame = pd.read_csv(out / "histograms.csv")
    assert list(dict.fromkeys(frame["layer"])) == ["conv1.0", "conv1.3", "conv1.6", "fc"]
    assert (frame.groupby("layer").size() == 8 * 16).all()
    assert frame["sensitivity"].sum() > 0
    drawing = ElementTree.fromstring((out / "histograms.svg").read_text())
    texts = " ".join(drawing.itertext())
    assert "conv1.6" in texts
    assert "3 bits, 8 images" in texts
    assert (out / "histograms.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "clamped" in printed.splitlines()[0]
    assert "fitted to the first 8 images" in printed


@pytest.mark.slow
def test_a_run_keeps_its_histograms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    compression = ("--compression", "quantization", "--levels", "4", "--mode", "quick", "--layers", "conv1.*")
    assert main(["analyze", *DEMO, *compression, "--out", str(run)]) == 0
    for _ in range(2):
        assert histogram(tmp_path / "out", str(run), "--layers", "fc", "--bits", "4", "--per-channel") == 0
    (kept,) = RunFolder(run).records(QuantizationHistogram)
    assert (kept.spec.layer, kept.spec.bits, kept.spec.per_channel, kept.num_images) == ("fc", 4, True, 8)
    assert "channel" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "either a RUN"),
        (("run", *DEMO), "either a RUN"),
        (("--model", "demo"), "Add --data"),
        ((*DEMO, "--bits", "9"), "from 2 to 8"),
        ((*DEMO, "--layers", "nowhere"), "No layer matches nowhere"),
        ((*DEMO, "--tensor", "biases"), "biases"),
        (("nowhere",), "nowhere"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "out"
    assert histogram(out, *options) == 2
    complaint = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in complaint
    assert not out.exists()
