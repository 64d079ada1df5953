"""Proofs of schedules as background jobs of the service."""

from dataclasses import replace

import pytest

from senseapp.compressions import SparsityConfig
from senseapp.core.errors import NotFound, QueueFull
from senseapp.records.deployment import DeploySettings
from senseapp.records.jobs import RunState
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import DeliverTask
from senseapp.server.run_tasks import Verification
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from senseapp.solve.methods import make_schedule

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_digits")]

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
def finished(few_digits, tmp_path_factory):
    return a_finished_run(tmp_path_factory.mktemp("home"), settings=ServerSettings(max_queue=1))


def a_schedule(service, run_id, target=0.2, kind="params"):
    return make_schedule(service.result(run_id), budget=ResourceBudget(kind=kind, target=target))


def test_a_schedule_is_proven_once_in_the_background_and_the_proof_outlives_the_app(finished, monkeypatch):
    backend, service, run_id = finished
    proof = Verification(run_id=run_id, schedule=a_schedule(service, run_id))
    assert service.work.outcome(proof) is None
    assert service.work.progress(proof) is None
    with pytest.raises(NotFound, match="not proven yet"):
        service.work.compressed_model(proof)
    job_id = service.work.start(proof)
    assert service.work.progress(proof).state is RunState.QUEUED
    assert service.work.as_it_goes(service.run(run_id)).state is RunState.RUNNING
    assert service.work.start(proof) == job_id
    assert backend.runner.run_next()
    assert not backend.runner.run_next()
    snapshot = service.work.progress(proof)
    assert (snapshot.run_id, snapshot.state, snapshot.error) == (job_id, RunState.DONE, "")
    validation = service.work.outcome(proof)
    assert validation.repaired
    plain, small = service.work.compressed_model(proof)
    assert (plain.suffix, small.name) == (".safetensors", f"{plain.stem}.sparse.safetensors.gz")
    assert validation.files == {".safetensors": plain.stat().st_size, ".sparse.safetensors.gz": small.stat().st_size}
    assert validation.sizes["file_bytes"] == (plain.stat().st_size, plain.stat().st_size)
    assert service.run(run_id).state is RunState.DONE
    assert Service(Backend(backend.home, workers=0)).work.outcome(proof) == validation

    monkeypatch.setattr("senseapp.prove.prove.validate", lambda *args, **how: pytest.fail("measured again"))
    service.work.start(proof)
    backend.runner.run_next()
    assert service.work.progress(proof).state is RunState.DONE
    assert service.work.as_it_goes(service.run(run_id)).state is RunState.DONE


def test_a_waiting_proof_fills_the_queue_and_can_be_cancelled(finished):
    backend, service, run_id = finished
    proof = Verification(run_id=run_id, schedule=a_schedule(service, run_id, 0.11))
    service.work.start(proof)
    with pytest.raises(QueueFull):
        service.work.start(Verification(run_id=run_id, schedule=a_schedule(service, run_id, 0.2)))
    service.work.cancel(proof)
    assert not backend.runner.run_next()
    assert service.work.progress(proof).state is RunState.CANCELLED


def test_a_schedule_that_does_not_fit_fails_with_its_sentence(finished):
    backend, service, run_id = finished
    schedule = a_schedule(service, run_id)
    stranger = replace(schedule, entries=(replace(schedule.entries[0], layer="fc9", members=("fc9",)),))
    service.work.start(Verification(run_id=run_id, schedule=stranger))
    backend.runner.run_next()
    snapshot = service.work.progress(Verification(run_id=run_id, schedule=stranger))
    assert snapshot.state is RunState.FAILED
    assert "fc9" in snapshot.error
    assert service.run(run_id).state is RunState.DONE


@pytest.mark.wide
def test_the_file_that_runs_is_kept_as_large_as_it_says(finished):
    backend, service, run_id = finished
    task = DeliverTask(run_id=run_id, schedule=a_schedule(service, run_id), settings=DeploySettings(kind="float"))
    assert service.work.outcome(task) is None
    service.work.start(task)
    assert backend.runner.run_next()
    assert service.work.progress(task).error == ""
    delivery = service.work.outcome(task)
    assert [each.form for each in delivery.candidates] == ["weights", "small", "onnx"]
    known = {each.file: each for each in service.work.candidates(run_id)}
    for candidate in delivery.candidates:  # files of a run have one original, measured once
        assert replace(known[candidate.file], original=candidate.original) == candidate
        assert service.work.candidate_file(run_id, candidate).stat().st_size == candidate.figures.file_bytes
    proof = service.work.outcome(task.proof("off"))
    proven = {change.metric: change.delta for change in proof.kept_changes}
    for candidate in delivery.candidates:
        assert candidate.reconstruction == proof.delivered
        measured = {change.metric: change.delta for change in candidate.figures.changes}
        assert measured["kl"] == pytest.approx(proven["kl"], abs=1e-5)  # the weights that were proven
    record = delivery.candidates[-1].deployment
    assert record.findings[0].startswith(f"Measured on {record.images} images: ")
