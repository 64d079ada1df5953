"""Proofs of schedules as background jobs of the service."""

from __future__ import annotations

from dataclasses import replace

import pytest

from senseapp.errors import NotFound, QueueFull
from senseapp.results import ResourceBudget, RunState
from senseapp.schedule import make_schedule
from senseapp.service import Backend, Service
from senseapp.spec import PruningConfig, RunSpec, SensitivitySpec, SparsityConfig
from senseapp.validation import write

pytestmark = pytest.mark.slow

SPEC = RunSpec(
    sensitivity=SensitivitySpec(compression=SparsityConfig(), levels=(0.5, 0.8), layers=("layer4*",), num_samples=100)
)


def a_finished_run(home, spec=SPEC, **how):
    backend = Backend(home, workers=0, **how)
    service = Service(backend)
    run_id = service.start(spec)
    assert backend.runner.run_next()
    assert service.run(run_id).state is RunState.DONE
    return backend, service, run_id


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return a_finished_run(tmp_path_factory.mktemp("home"))


def a_schedule(service, run_id, target=0.2, kind="params"):
    return make_schedule(service.result(run_id), budget=ResourceBudget(kind=kind, target=target))


def test_a_schedule_is_proven_in_the_background(finished):
    backend, service, run_id = finished
    schedule = a_schedule(service, run_id)
    assert service.validation(run_id, schedule) is None
    assert service.verification(run_id, schedule) is None
    with pytest.raises(NotFound, match="not proven yet"):
        service.compressed_model(run_id, schedule)
    job_id = service.verify(run_id, schedule)
    assert service.verification(run_id, schedule).state is RunState.QUEUED
    assert service.verify(run_id, schedule) == job_id
    assert backend.runner.run_next()
    assert not backend.runner.run_next()
    snapshot = service.verification(run_id, schedule)
    assert (snapshot.run_id, snapshot.state, snapshot.error) == (job_id, RunState.DONE, "")
    validation = service.validation(run_id, schedule)
    assert validation.repaired
    plain, small = service.compressed_model(run_id, schedule)
    assert (plain.suffix, small.name) == (".safetensors", f"{plain.stem}.sparse.safetensors.gz")
    assert validation.files == {
        ".safetensors": plain.stat().st_size,
        ".sparse.safetensors.gz": small.stat().st_size,
    }
    assert validation.sizes["file_bytes"] == (plain.stat().st_size, plain.stat().st_size)
    assert service.run(run_id).state is RunState.DONE


def test_with_and_without_repair_are_two_proofs(finished):
    backend, service, run_id = finished
    schedule = a_schedule(service, run_id, 0.1)
    service.verify(run_id, schedule, repair=False)
    assert backend.runner.run_next()
    assert service.validation(run_id, schedule, repair=False).repaired == ()
    assert service.validation(run_id, schedule, repair=True) is None


def test_a_proof_outlives_the_app(finished):
    backend, service, run_id = finished
    schedule = a_schedule(service, run_id, 0.15)
    service.verify(run_id, schedule)
    backend.runner.run_next()
    later = Service(Backend(backend.home, workers=0))
    assert later.validation(run_id, schedule) == service.validation(run_id, schedule)


def test_what_is_proven_is_not_measured_again(finished, monkeypatch):
    backend, service, run_id = finished
    schedule = a_schedule(service, run_id, 0.12)
    service.verify(run_id, schedule)
    backend.runner.run_next()
    monkeypatch.setattr("senseapp.validation.validate", lambda *args, **how: pytest.fail("measured again"))
    service.verify(run_id, schedule)
    backend.runner.run_next()
    assert service.verification(run_id, schedule).state is RunState.DONE


def test_a_schedule_that_does_not_fit_fails_with_its_sentence(finished):
    backend, service, run_id = finished
    schedule = a_schedule(service, run_id)
    stranger = replace(schedule, entries=(replace(schedule.entries[0], layer="fc9", members=("fc9",)),))
    service.verify(run_id, stranger)
    backend.runner.run_next()
    snapshot = service.verification(run_id, stranger)
    assert snapshot.state is RunState.FAILED
    assert "fc9" in snapshot.error
    assert service.run(run_id).state is RunState.DONE


def test_a_waiting_proof_can_be_cancelled(finished):
    backend, service, run_id = finished
    schedule = a_schedule(service, run_id, 0.11)
    service.verify(run_id, schedule)
    service.cancel_verification(run_id, schedule)
    assert not backend.runner.run_next()
    assert service.verification(run_id, schedule).state is RunState.CANCELLED


def test_a_full_queue_takes_no_proof(tmp_path):
    backend, service, run_id = a_finished_run(tmp_path, max_queue=1)
    service.verify(run_id, a_schedule(service, run_id, 0.1))
    with pytest.raises(QueueFull):
        service.verify(run_id, a_schedule(service, run_id, 0.2))
    service.delete(run_id)
    assert not backend.runner.run_next()


def test_other_people_cannot_ask(finished):
    backend, service, run_id = finished
    schedule = a_schedule(service, run_id)
    stranger = Service(backend, owner="eve")
    for ask in (stranger.verify, stranger.verification, stranger.validation, stranger.compressed_model):
        with pytest.raises(NotFound):
            ask(run_id, schedule)


def test_a_pruned_model_comes_with_its_programs(tmp_path, monkeypatch):
    """What is in them is for the tests of writing them; ``apply`` writes those of a pruned demo."""
    monkeypatch.setattr(write, "exported_program", lambda model, example: b"program")
    monkeypatch.setattr(write, "onnx_model", lambda model, example: b"graph")
    settings = replace(SPEC.sensitivity, compression=PruningConfig(), levels=(0.25, 0.5))
    backend, service, run_id = a_finished_run(tmp_path, replace(SPEC, sensitivity=settings))
    schedule = a_schedule(service, run_id, 0.015, kind="macs")
    service.verify(run_id, schedule)
    backend.runner.run_next()
    files = service.compressed_model(run_id, schedule)
    assert [path.suffix for path in files] == [".safetensors", ".pt2", ".onnx"]
    assert [path.read_bytes() for path in files[1:]] == [b"program", b"graph"]
