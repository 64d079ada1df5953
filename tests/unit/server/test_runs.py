from dataclasses import replace

import pytest

from senseapp.core.errors import InvalidCheckpoint, InvalidDataset, NotFound, QueueFull
from senseapp.records.jobs import RunState
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings, uploads_folder
from tests.fake_session import LAYERS, SPEC, TOTAL, a_backend


def without_time(result):
    return replace(result, seconds=0.0)


def test_a_run_from_start_to_result(service, backend, engine):
    run_id = service.start(SPEC, title="First")
    assert service.snapshot(run_id).queue_place == 1
    assert service.result(run_id) is None
    backend.runner.run_next()
    done = service.snapshot(run_id)
    assert (done.state, done.done, done.total) == (RunState.DONE, TOTAL, TOTAL)
    result = service.result(run_id)
    assert [item.key for item in result.measurements] == [(name, level) for name in LAYERS for level in (0.25, 0.5)]
    assert len(result.estimates) == TOTAL
    record = service.run(run_id)
    assert record.headline == (
        "Most fragile: head, harm 0.040 at 50 %. 1 of 4 layers loses nothing measurable: 100 images show harm from "
        "about 0.020."
    )
    assert [record.title for record in service.runs()] == ["First"]
    assert engine.opened[0].closed


def test_results_fill_while_it_runs(service, backend, engine):
    seen = []

    def look(number):
        found = service.result(run_id)
        seen.append((len(found.estimates), len(found.measurements), service.snapshot(run_id).done))

    engine.before_yield = look
    run_id = service.start(SPEC)
    backend.runner.run_next()
    assert seen == [(TOTAL, number, number) for number in range(TOTAL)]


@pytest.mark.slow
def test_cancel_keeps_what_was_measured_and_resume_equals_an_uninterrupted_run(service, backend, engine):
    whole = service.start(SPEC)
    backend.runner.run_next()
    for stop_after in (0, 3, TOTAL - 2):
        run_id = service.start(SPEC)
        engine.before_yield = lambda number, stop=stop_after, run=run_id: number == stop and service.cancel(run)
        backend.runner.run_next()
        assert service.snapshot(run_id).state is RunState.CANCELLED
        kept = service.result(run_id)
        assert len(kept.measurements) == stop_after + 1  # the one in flight was finished and stored
        engine.before_yield = lambda number, stop=stop_after: number > stop or pytest.fail("measured twice")
        service.resume(run_id)
        backend.runner.run_next()
        assert engine.earlier[-1] == kept
        assert without_time(service.result(run_id)) == without_time(service.result(whole))
        engine.before_yield = lambda number: None


def test_a_failed_run_says_why_and_can_be_tried_again(service, backend, engine):
    engine.failure = InvalidDataset("The folder holds no images. Choose another.")
    run_id = service.start(SPEC)
    backend.runner.run_next()
    assert service.snapshot(run_id).error == "The folder holds no images. Choose another."
    assert service.run(run_id).state is RunState.FAILED
    engine.failure = None
    service.resume(run_id)
    assert service.snapshot(run_id).queue_place == 1
    backend.runner.run_next()
    assert service.run(run_id).state is RunState.DONE
    assert service.run(run_id).error == ""


def test_resuming_what_is_done_or_waits_changes_nothing(service, backend, engine):
    run_id = service.start(SPEC)
    service.resume(run_id)
    backend.runner.run_next()
    service.resume(run_id)
    assert not backend.runner.run_next()
    assert len(engine.opened) == 1


def test_a_restart_finds_what_was_interrupted_and_goes_on(tmp_path, engine):
    first = a_backend(tmp_path, engine)
    run_id = Service(first, "ann").start(SPEC)
    waiting = Service(first, "ann").start(SPEC)
    engine.before_yield = lambda number: number == 3 and first.close()
    first.runner.run_next()

    second = a_backend(tmp_path, engine)
    service = Service(second, "ann")
    engine.before_yield = lambda number: number > 3 or pytest.fail("measured twice")
    for stopped in (run_id, waiting):
        assert service.snapshot(stopped).state is RunState.INTERRUPTED
        assert "Resume" in service.snapshot(stopped).error
    assert (service.snapshot(run_id).done, service.snapshot(run_id).total) == (4, TOTAL)
    assert len(service.result(run_id).measurements) == 4
    service.resume(run_id)
    second.runner.run_next()
    assert service.snapshot(run_id).state is RunState.DONE
    assert len(service.result(run_id).measurements) == TOTAL


def test_a_full_queue_leaves_no_run_behind_and_changes_no_state(tmp_path, engine):
    service = Service(a_backend(tmp_path, engine, settings=ServerSettings(max_queue=2)), "ann")
    stopped = service.start(SPEC)
    service.cancel(stopped)
    assert [service.snapshot(service.start(SPEC)).queue_place for _ in range(2)] == [1, 2]
    for refused in (lambda: service.start(SPEC), lambda: service.resume(stopped)):
        with pytest.raises(QueueFull, match="At most 2 runs may wait"):
            refused()
    assert len(service.runs()) == 3
    assert service.run(stopped).state is RunState.CANCELLED


def test_a_shared_link_reads_until_it_is_revoked(service, backend):
    run_id = service.start(SPEC)
    link = service.share(run_id, shared=True)
    bob = Service(backend, "bob")
    assert bob.snapshot(link).run_id == link
    backend.runner.run_next()
    assert bob.result(link) == service.result(run_id)
    assert (bob.run(link).headline, bob.run(link).state) == (service.run(run_id).headline, RunState.DONE)
    assert service.run(run_id).title == "demo"
    service.rename(run_id, "Tuesday")
    assert bob.run(link).title == "Tuesday"
    service.share(run_id, shared=False)
    with pytest.raises(NotFound):
        bob.result(link)


def test_deleting_a_running_run_stops_it_and_leaves_nothing(service, backend, engine, tmp_path):
    run_id = service.start(SPEC)
    engine.before_yield = lambda number: number == 2 and service.delete(run_id)
    backend.runner.run_next()
    assert service.runs() == ()
    assert (
        service.restore(run_id).state is RunState.CANCELLED
    )  # what was stopped can be resumed, and does not look busy
    service.delete(run_id)
    backend.store.remove_deleted()
    assert list((tmp_path / "runs").iterdir()) == []
    service.start(SPEC)
    engine.before_yield = lambda number: None
    assert backend.runner.run_next()


def test_files_outside_the_allowed_folders_are_refused_before_anything_starts(tmp_path, engine):
    backend = a_backend(tmp_path / "home", engine, data_roots=(tmp_path / "shared",))
    service = Service(backend, "ann")
    allowed, secret = tmp_path / "shared" / "photos", tmp_path / "secret"
    theirs = uploads_folder(backend.home, "bob")
    mine = uploads_folder(backend.home, "ann")
    for folder in (allowed, secret, theirs, mine):
        folder.mkdir(parents=True)
    (allowed / "link").symlink_to(secret)
    for path in (secret, allowed / ".." / ".." / "secret", allowed / "link", theirs, "/etc", "no\0name", "relative"):
        with pytest.raises(InvalidDataset, match="SENSEAPP_DATA_ROOTS"):
            service.start(RunSpec(data=DataSpec(kind="folder", path=str(path))))
    with pytest.raises(InvalidCheckpoint):
        service.start(RunSpec(model=ModelSpec(library="timm", name="resnet18", checkpoint="/etc/passwd")))
    assert service.runs() == ()
    for path in (allowed, mine):
        service.start(RunSpec(data=DataSpec(kind="folder", path=str(path))))
        backend.runner.run_next()
    assert engine.data_roots == (tmp_path / "shared", mine)


def test_one_backend_per_home_and_process(tmp_path, monkeypatch):
    from senseapp.server.backend import backend_at

    monkeypatch.setenv("SENSEAPP_HOME", str(tmp_path))
    one, other = Service.at(), Service.at(tmp_path, "bob")
    run_id = one.start(SPEC)
    one.cancel(run_id)
    assert other.runs() == ()
    assert [record.run_id for record in Service.at(tmp_path).runs()] == [run_id]
    backend_at(tmp_path).close()
