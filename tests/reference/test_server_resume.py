"""With the real engine: a run that lost its last measurements and was resumed equals the one that never stopped."""

import shutil
from dataclasses import replace

import pytest

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.records.measurement import RunResult
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.execution import Measurement
from senseapp.server.tasks import RunObserver, TaskContext
from senseapp.store.run_folder import RunFolder
from tests.cases import first_of

pytestmark = pytest.mark.slow


class Quiet(RunObserver):
    def __init__(self):
        self.measured_now = 0

    def opened(self, head, *, done, total, **_):
        self.done, self.total = done, total

    def measured(self, measurement):
        self.measured_now += not measurement.estimated


def spec_of(compression, *levels):
    settings = SensitivitySpec(compression=compression, levels=levels, num_samples=24, layers=("layer[23]*", "fc"))
    return RunSpec(sensitivity=settings)


def without_times(result):
    measurements = tuple(replace(item, seconds=0.0) for item in result.measurements)
    return replace(result, measurements=measurements, seconds=0.0)


def execute(spec: RunSpec, folder: RunFolder, observer: RunObserver) -> RunResult:
    return Measurement(run_id="", spec=spec).carry_out(TaskContext(folder=folder, observer=observer))


@pytest.mark.parametrize(
    "spec",
    first_of([spec_of(SparsityConfig(), 0.5, 0.9), spec_of(QuantizationConfig(activations=True), 3)]),
    ids=["sparsity", "quantization"],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, spec):
    folder = RunFolder(tmp_path / "whole")
    folder.make()
    observer = Quiet()
    whole = execute(spec, folder, observer)
    assert observer.measured_now == len(whole.measurements) == observer.total

    kept = len(whole.measurements) // 2
    shutil.copytree(folder.path, tmp_path / "stopped")
    stopped = RunFolder(tmp_path / "stopped")
    (stopped.path / "result.json").unlink()
    lines = (stopped.path / "measurements.jsonl").read_bytes().splitlines(keepends=True)
    (stopped.path / "measurements.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:20])

    observer = Quiet()
    resumed = execute(spec, stopped, observer)
    assert observer.done == kept
    assert observer.measured_now == len(whole.measurements) - kept
    assert without_times(resumed) == without_times(whole)


@pytest.mark.wide
def test_a_run_that_settles_and_was_stopped_ends_where_it_would_have(tmp_path, monkeypatch):
    monkeypatch.setattr("senseapp.measure.sweep._SETTLE_FROM", 8)
    settings = SensitivitySpec(
        levels=(0.6, 0.9), num_samples=32, batch_size=4, until_settled=True, layers=("fc", "layer3*")
    )
    spec = RunSpec(sensitivity=settings)
    folder = RunFolder(tmp_path / "whole")
    folder.make()
    whole = execute(spec, folder, Quiet())
    lines = (folder.path / "measurements.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) > len(whole.measurements)
    for kept in (len(lines) // 3, len(lines) - 2):
        shutil.copytree(folder.path, tmp_path / str(kept))
        stopped = RunFolder(tmp_path / str(kept))
        (stopped.path / "result.json").unlink()
        (stopped.path / "measurements.jsonl").write_bytes(b"".join(lines[:kept]))
        resumed = execute(spec, stopped, Quiet())
        assert stopped.measurements.count() == len(lines)
        assert without_times(resumed) == without_times(whole)
