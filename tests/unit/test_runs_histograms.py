"""A histogram from the page's question to its file, with the demo and the real engine."""

from __future__ import annotations

import pytest

from senseapp.compressions import QuantizationConfig
from senseapp.core.errors import NotFound
from senseapp.records.jobs import RunState
from senseapp.records.spec import HistogramSpec, RunSpec, SensitivitySpec
from senseapp.runs.backend import Backend
from senseapp.runs.service import Service
from senseapp.runs.tasks import HistogramTask
from tests.fake_session import fake_calibration

RUN = RunSpec(
    sensitivity=SensitivitySpec(
        compression=QuantizationConfig(), levels=(4.0,), num_samples=32, mode="quick", layers=("stem*", "*conv1")
    )
)


@pytest.fixture
def backend(tmp_path):
    return Backend(tmp_path / "home", data_roots=(), calibrate=fake_calibration, workers=0)


@pytest.fixture
def service(backend):
    return Service(backend)


@pytest.fixture
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
    assert (
        service.work.outcome(
            HistogramTask(run_id=run_id, spec=HistogramSpec(layer=layer, tensor="activations", bits=5))
        )
        is None
    )


def test_folding_the_demo_is_possible(service, backend, run_id):
    layer = service.result(run_id).profile.layers[0].name
    plain = make(service, backend, run_id, HistogramSpec(layer=layer, objective="none"))
    folded = make(service, backend, run_id, HistogramSpec(layer=layer, objective="none", fold=True))
    assert not folded.notes
    assert folded.high != plain.high


def test_a_layer_that_is_not_there_is_told_and_the_run_stays(service, backend, run_id):
    spec = HistogramSpec(layer="nowhere")
    assert make(service, backend, run_id, spec) is None
    assert "no layer 'nowhere'" in service.work.progress(HistogramTask(run_id=run_id, spec=spec)).error
    assert service.run(run_id).state is RunState.DONE


def test_another_persons_run_is_not_found(backend, run_id):
    work = Service(backend, "bob").work
    for ask in (work.start, work.progress, work.cancel, work.outcome):
        with pytest.raises(NotFound):
            ask(HistogramTask(run_id=run_id, spec=HistogramSpec(layer="stem")))
