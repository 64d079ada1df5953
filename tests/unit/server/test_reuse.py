"""Taking measurements over, with a made-up engine: how much, from whom, and what a crash in between leaves."""

from dataclasses import replace

import pytest

from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.service import Service
from senseapp.store.run_folder import RunFolder
from tests.fake_session import LAYERS, TOTAL, carried_out

WIDER = RunSpec(sensitivity=SensitivitySpec(levels=(0.25, 0.5, 0.75)))


@pytest.fixture
def engine(engine):
    engine.content_key = "the same"
    return engine


def numbers(service, run_id):
    return {item.key: replace(item, seconds=0.0) for item in service.result(run_id).measurements}


def test_what_was_measured_is_not_measured_again_and_that_is_said(service, engine):
    first = carried_out(service, title="Monday")
    made = []
    engine.before_yield = lambda number: made.append(number)
    second = carried_out(service, WIDER)
    assert len(made) == len(LAYERS)
    sentence = f"{TOTAL} of {len(LAYERS) * 3} measurements taken from run “Monday”"
    assert service.run(second).origin.startswith(sentence)
    note = service.result(second).notes[0]
    assert note == service.run(second).origin.replace("run “Monday”", "an earlier run")
    seen = Service(service._backend, "bob").run(service.share(second, shared=True))
    assert "Monday" not in repr(seen)
    assert service.snapshot(second).done == len(LAYERS) * 3
    assert numbers(service, first).items() <= numbers(service, second).items()


def test_the_fullest_run_is_taken_also_one_that_never_finished(service, engine):
    carried_out(service, RunSpec(sensitivity=SensitivitySpec(levels=(0.25,))), "Short")
    engine.before_yield = lambda number: number == 6 and service.cancel(service.runs()[0].run_id)
    engine.content_key = "another"
    stopped = carried_out(service, title="Stopped")
    assert service.run(stopped).state is RunState.CANCELLED
    service._backend.store.update(stopped, content_key="the same")
    engine.before_yield = lambda number: None
    engine.content_key = "the same"
    assert "7 of 8 measurements taken from run “Stopped”" in service.run(carried_out(service)).origin


def test_a_deleted_run_gives_nothing_and_takes_nothing_back(service):
    first = carried_out(service)
    second = carried_out(service)
    service.delete(first)
    assert len(numbers(service, second)) == TOTAL
    service.delete(second)
    assert service.run(carried_out(service)).origin == ""


def test_a_crash_while_taking_over_leaves_a_run_that_goes_on_rightly(service, engine, monkeypatch):
    whole = numbers(service, carried_out(service, title="Monday"))

    def die(folder, measurements, reused):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "take_over", die)
        second = carried_out(service)
    assert service.run(second).state is RunState.FAILED
    assert service.result(second).measurements == ()
    service.resume(second)
    service._backend.runner.run_next()
    assert numbers(service, second) == whole
    assert service.result(second).notes == ()  # it began by itself, so it measured by itself


def test_nothing_is_taken_from_anybody_else(service, engine):
    carried_out(service)
    bob = Service(service._backend, "bob")
    assert bob.run(carried_out(bob)).origin == ""
