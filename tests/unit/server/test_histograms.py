"""A histogram from the request to its file, by the server and by the command line, with the demo and the engine."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pandas as pd
import pytest

from senseapp.cli.main import main
from senseapp.compressions import QuantizationConfig
from senseapp.records.jobs import RunState
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.spec import HistogramSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.run_tasks import HistogramTask
from senseapp.server.service import Service
from senseapp.store.run_folder import RunFolder
from tests.fake_session import fake_calibration

RUN = RunSpec(
    sensitivity=SensitivitySpec(
        compression=QuantizationConfig(), levels=(4.0,), num_samples=32, mode="quick", layers=("stem*", "*conv1")
    )
)


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    return Backend(tmp_path_factory.mktemp("home"), data_roots=(), calibrate=fake_calibration, workers=0)


@pytest.fixture(scope="module")
def service(backend):
    return Service(backend)


@pytest.fixture(scope="module")
def run_id(service, backend):
    started = service.start(RUN)
    backend.runner.run_next()
    assert service.run(started).state is RunState.DONE, service.run(started).error
    return started


def make(service, backend, run_id, spec):
    service.work.start(HistogramTask(run_id=run_id, spec=spec))
    backend.runner.run_next()
    return service.work.outcome(HistogramTask(run_id=run_id, spec=spec))


def test_a_histogram_is_made_once_and_kept(service, backend, run_id):
    layer = service.result(run_id).profile.layers[1].name
    spec = HistogramSpec(layer=layer, tensor="activations", bits=4)
    assert service.work.outcome(HistogramTask(run_id=run_id, spec=spec)) is None
    assert service.work.progress(HistogramTask(run_id=run_id, spec=spec)) is None
    found = make(service, backend, run_id, spec)
    assert (found.spec, found.num_images) == (spec, 32)
    assert sum(found.gradient_magnitudes) > 0
    assert service.run(run_id).state is RunState.DONE
    file = next(backend.store.folder(run_id).path.glob("histogram-*.json"))
    written = file.stat().st_mtime_ns
    assert make(service, backend, run_id, spec) == found
    assert file.stat().st_mtime_ns == written
    other = HistogramSpec(layer=layer, tensor="activations", bits=5)
    assert service.work.outcome(HistogramTask(run_id=run_id, spec=other)) is None


def test_a_layer_that_is_not_there_is_told_and_the_run_stays(service, backend, run_id):
    spec = HistogramSpec(layer="nowhere")
    assert make(service, backend, run_id, spec) is None
    assert "no layer 'nowhere'" in service.work.progress(HistogramTask(run_id=run_id, spec=spec)).error
    assert service.run(run_id).state is RunState.DONE


DEMO = ("--model", "demo", "--data", "demo", "--samples", "8")


def histogram(out: Path, *options: str) -> int:
    return main(["histogram", *options, "--out", str(out)])


@pytest.mark.wide
@pytest.mark.slow
def test_the_command_looks_at_a_model_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made" / "here"
    options = ("--layers", "conv1.*,fc", "--bits", "3", "--tensor", "outputs", "--criterion", "mean")
    assert histogram(out, *DEMO, *options) == 0
    frame = pd.read_csv(out / "histograms.csv")
    assert list(dict.fromkeys(frame["layer"])) == ["conv1.0", "conv1.3", "conv1.6", "fc"]
    assert (frame.groupby("layer").size() == 8 * 16).all()
    assert frame["sensitivity"].sum() > 0
    texts = " ".join(ElementTree.fromstring((out / "histograms.svg").read_text()).itertext())
    assert "conv1.6" in texts
    assert "3 bits, 8 images" in texts
    assert (out / "histograms.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "clamped" in printed.splitlines()[0]
    assert "fitted to the first 8 images" in printed


@pytest.mark.slow
def test_a_run_keeps_the_histograms_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    compression = ("--compression", "quantization", "--levels", "4", "--mode", "quick", "--layers", "conv1.*")
    assert main(["analyze", *DEMO, *compression, "--out", str(run)]) == 0
    assert histogram(tmp_path / "out", str(run), "--layers", "fc", "--bits", "4", "--granularity", "channel") == 0
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
def test_bad_input_to_the_command_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "out"
    assert histogram(out, *options) == 2
    assert said in capsys.readouterr().err.strip().splitlines()[-1]
    assert not out.exists()
