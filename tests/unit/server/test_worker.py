import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from senseapp.core.errors import InvalidDataset, QueueFull
from senseapp.core.steps import StepTitle
from senseapp.records.jobs import RunState
from senseapp.server import worker
from senseapp.server.job_progress import JobCancelled, JobControl, PlannedStep, Unfinished
from senseapp.server.worker import JobRunner

ID = "a" * 32


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Task(str):
    """A task that is its own id."""

    @property
    def job_id(self):
        return self


class Log:
    """Collects changes of state, as the store would."""

    def __init__(self):
        self.states = []

    def __call__(self, task, snapshot):
        self.states.append((snapshot.run_id, snapshot.state))


def inline(work, **options):
    return JobRunner(work, workers=0, **options)


def test_a_job_goes_from_queued_through_running_to_done():
    log, seen = Log(), []
    runner = inline(lambda run_id, control: seen.append(runner.snapshot(run_id).state), on_change=log)
    assert runner.submit(Task(ID)).state is RunState.QUEUED
    assert runner.run_next()
    assert seen == [RunState.RUNNING]
    assert log.states == [(ID, RunState.RUNNING), (ID, RunState.DONE)]
    done = runner.snapshot(ID)
    assert (done.state, done.fraction, done.error, done.queue_place) == (RunState.DONE, 1.0, "", 0)
    assert not runner.run_next()


def test_jobs_run_in_order_and_show_their_places():
    order = []
    runner = inline(lambda run_id, control: order.append(run_id))
    for run_id in ("one", "two", "three"):
        runner.submit(Task(run_id))
    assert [runner.snapshot(run_id).queue_place for run_id in ("one", "two", "three")] == [1, 2, 3]
    runner.cancel("two")
    assert runner.snapshot("three").queue_place == 2
    runner.run_next()
    assert runner.snapshot("one").queue_place == 0
    assert runner.snapshot("three").queue_place == 1
    runner.run_next()
    assert order == ["one", "three"]


def test_submitting_a_waiting_job_again_changes_nothing():
    runner = inline(lambda run_id, control: None)
    runner.submit(Task(ID))
    assert runner.submit(Task(ID)).queue_place == 1
    assert runner.run_next()
    assert not runner.run_next()
    assert runner.submit(Task(ID)).state is RunState.QUEUED


def test_a_full_queue_is_refused_and_a_running_job_takes_no_place():
    runner = inline(lambda run_id, control: None, max_queue=2)
    runner.submit(Task("one"))
    runner.submit(Task("two"))
    with pytest.raises(QueueFull, match="At most 2 runs may wait"):
        runner.submit(Task("three"))
    assert runner.snapshot("three") is None
    runner.run_next()
    assert runner.submit(Task("three")).queue_place == 2


def test_progress_elapsed_and_remaining_time():
    clock, seen = Clock(), []

    def work(run_id, control):
        clock.now += 5
        control.plan([PlannedStep(title=StepTitle.READ, seconds=5), PlannedStep(title=StepTitle.LAYERS, seconds=24)])
        control.measurements(total=10, done=2)
        seen.append(runner.snapshot(run_id))
        for _ in range(4):
            clock.now += 3
            control.measured("stem")
        clock.now += 1
        seen.append(runner.snapshot(run_id))

    runner = inline(work, clock=clock)
    runner.submit(Task(ID))
    clock.now += 50
    assert runner.snapshot(ID).elapsed_seconds == 0
    runner.run_next()
    first, later = seen
    assert (first.done, first.total, first.elapsed_seconds) == (2, 10, 5)
    assert (later.done, later.phase, later.elapsed_seconds) == (6, "Measuring each layer: 6 of 10", 18)
    assert later.detail == "stem"
    assert later.remaining_seconds == pytest.approx(4 * 3 - 1, rel=0.4)  # the first of four was over when it began
    assert first.fraction < later.fraction < 1
    clock.now += 1000
    assert runner.snapshot(ID).elapsed_seconds == 18
    assert runner.snapshot(ID).remaining_seconds is None
    assert runner.snapshot(ID).fraction == 1


def test_cancel_reaches_the_next_report_and_keeps_what_was_done():
    def work(run_id, control):
        control.measurements(total=3)
        control.measured("stem")
        assert runner.cancel(run_id)
        control.measured("head")
        pytest.fail("the work went on after a cancel")

    runner = inline(work)
    runner.submit(Task(ID))
    runner.run_next()
    assert (runner.snapshot(ID).state, runner.snapshot(ID).done) == (RunState.CANCELLED, 2)
    assert not runner.cancel(ID)
    assert not runner.cancel("unknown")


def test_a_waiting_job_is_cancelled_at_once_and_never_starts():
    log = Log()
    runner = inline(lambda run_id, control: pytest.fail("started"), on_change=log)
    runner.submit(Task(ID))
    assert runner.cancel(ID)
    assert log.states == [(ID, RunState.CANCELLED)]
    assert not runner.run_next()
    assert runner.snapshot(ID).elapsed_seconds == 0


WRONG = "Something went wrong inside senseapp (run aaaaaaaa); the log has the details."


@pytest.mark.parametrize(
    ("error", "state", "sentence"),
    [
        (InvalidDataset("The folder is empty."), RunState.FAILED, "The folder is empty."),
        (RuntimeError("secret detail"), RunState.FAILED, WRONG),
        (MemoryError(), RunState.FAILED, WRONG),
        *((error, RunState.FAILED, WRONG) for error in (SystemExit(3), KeyboardInterrupt(), GeneratorExit())),
        (Unfinished("The files could not be made."), RunState.DONE, "The files could not be made."),
        (JobCancelled(), RunState.CANCELLED, ""),
    ],
)
def test_whatever_the_work_raises_the_next_job_runs(error, state, sentence, caplog):
    def work(run_id, control):
        if run_id == ID:
            raise error

    runner = inline(work)
    runner.submit(Task(ID))
    runner.submit(Task("next"))
    with caplog.at_level(logging.WARNING):
        runner.run_next()
    assert (runner.snapshot(ID).state, runner.snapshot(ID).error) == (state, sentence)
    is_logged = not isinstance(error, JobCancelled)
    assert (ID in caplog.text) is ("Traceback" in caplog.text) is is_logged
    runner.run_next()
    assert runner.snapshot("next").state is RunState.DONE


def test_a_store_that_fails_does_not_stop_the_worker(caplog):
    def broken(task, snapshot):
        raise OSError("disk full")

    runner = inline(lambda run_id, control: None, on_change=broken)
    runner.submit(Task(ID))
    runner.run_next()
    assert runner.snapshot(ID).state is RunState.DONE
    assert "could not be stored" in caplog.text


def test_an_end_is_stored_before_it_is_shown_and_can_be_resumed_at_once():
    shown, places = [], []

    def store(task, snapshot):
        if snapshot.state.finished and not shown:
            shown.append(runner.snapshot(ID).state)
            places.append(runner.submit(Task(ID)).queue_place)

    runner = inline(lambda run_id, control: None, on_change=store)
    runner.submit(Task(ID))
    runner.run_next()
    assert shown == [RunState.RUNNING]
    assert places == [1]
    assert runner.snapshot(ID).state is RunState.QUEUED
    assert runner.run_next()


def test_closing_interrupts_what_runs_and_begins_nothing_more():
    log = Log()

    def work(run_id, control):
        runner.close()
        control.check()

    runner = inline(work, on_change=log)
    runner.submit(Task("running"))
    runner.submit(Task("waiting"))
    runner.run_next()
    assert log.states == [("running", RunState.RUNNING), ("running", RunState.INTERRUPTED)]
    with pytest.raises(QueueFull, match="shutting down"):
        runner.submit(Task("late"))


def test_the_worker_thread_is_a_daemon_and_ends_on_close():
    before = set(threading.enumerate())  # of other tests' backends, which nobody closed
    started, release = threading.Event(), threading.Event()

    def work(run_id, control):
        started.set()
        release.wait(5)
        control.check()

    runner = JobRunner(work)
    runner.submit(Task(ID))
    assert started.wait(5)
    new = set(threading.enumerate()) - before
    (thread,) = [thread for thread in new if thread.name.startswith("senseapp-worker")]
    assert thread.daemon
    runner.cancel(ID)
    release.set()
    runner.close()
    assert not thread.is_alive()
    assert runner.snapshot(ID).state is RunState.CANCELLED


def test_close_does_not_wait_for_work_that_never_reports():
    started, release = threading.Event(), threading.Event()

    def work(run_id, control):
        started.set()
        release.wait(10)

    runner = JobRunner(work)
    runner.submit(Task(ID))
    assert started.wait(5)
    runner.close(timeout_seconds=0.05)
    assert runner.snapshot(ID).state is RunState.RUNNING
    release.set()


def test_snapshots_are_never_half_written_while_a_job_runs():
    def work(run_id, control):
        control.measurements(total=2000)
        for _ in range(2000):
            control.measured("stem")

    runner = JobRunner(work)
    runner.submit(Task(ID))
    while not (snapshot := runner.snapshot(ID)).state.finished:
        assert snapshot.total in (0, 2000)
        if snapshot.done:
            assert snapshot.phase == f"Measuring each layer: {snapshot.done} of 2000"
    assert snapshot.done == 2000
    runner.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[JobRunner, dict[str, threading.Event], threading.Event]]:
    """A runner with a worker and a short lane, events that end its jobs, and one that closes the lane."""
    monkeypatch.setattr(worker, "_LOOK_SECONDS", 0.01)
    ends = {name: threading.Event() for name in ("long", "longer", "short", "shorter")}
    closed = threading.Event()

    def work(run_id: str, control: JobControl) -> None:
        assert ends[run_id].wait(20)

    runner = JobRunner(work, short_workers=1, may_run_short=lambda: not closed.is_set())
    yield runner, ends, closed
    for end in ends.values():
        end.set()
    runner.close()


Lanes = tuple[JobRunner, dict[str, threading.Event], threading.Event]


def state(runner: JobRunner, run_id: str) -> RunState:
    found = runner.snapshot(run_id)
    assert found is not None
    return found.state


def test_a_short_job_does_not_wait_for_a_long_one(lanes: Lanes) -> None:
    runner, ends, _ = lanes
    for run_id in ("long", "longer"):
        runner.submit(Task(run_id))
    wait_until(lambda: state(runner, "long") is RunState.RUNNING)
    assert runner.submit(Task("short"), short=True).queue_place <= 1  # of its own lane
    wait_until(lambda: state(runner, "short") is RunState.RUNNING)
    waiting = runner.submit(Task("shorter"), short=True)
    assert (waiting.queue_place, waiting.behind) == (1, "short")
    behind = runner.snapshot("longer")
    assert behind is not None
    assert (behind.state, behind.queue_place, behind.behind) == (RunState.QUEUED, 1, "long")
    ends["short"].set()
    wait_until(lambda: state(runner, "shorter") is RunState.RUNNING)
    assert state(runner, "longer") is RunState.QUEUED


def test_a_long_job_never_takes_the_short_lane(lanes: Lanes) -> None:
    runner, ends, _ = lanes
    runner.submit(Task("short"), short=True)
    wait_until(lambda: state(runner, "short") is RunState.RUNNING)
    runner.submit(Task("long"))
    wait_until(lambda: state(runner, "long") is RunState.RUNNING)  # the worker of long jobs was left free for it
    runner.submit(Task("longer"))
    ends["short"].set()
    wait_until(lambda: state(runner, "short") is RunState.DONE)
    assert state(runner, "longer") is RunState.QUEUED


def test_without_memory_for_both_a_short_job_waits_and_then_runs(lanes: Lanes) -> None:
    runner, ends, closed = lanes
    closed.set()
    runner.submit(Task("long"))
    wait_until(lambda: state(runner, "long") is RunState.RUNNING)
    runner.submit(Task("short"), short=True)
    runner.submit(Task("shorter"), short=True)
    assert state(runner, "short") is RunState.QUEUED
    ends["long"].set()
    wait_until(lambda: state(runner, "short") is RunState.RUNNING)  # by the worker that is free now
    assert state(runner, "shorter") is RunState.QUEUED
    closed.clear()
    wait_until(lambda: state(runner, "shorter") is RunState.RUNNING)  # looked at again and again


def test_people_take_turns() -> None:
    order: list[str] = []
    runner = inline(lambda run_id, control: order.append(run_id), max_queue=10)
    for run_id, person in (("a1", "ann"), ("a2", "ann"), ("a3", "ann"), ("b1", "bob"), ("c1", "cas"), ("b2", "bob")):
        runner.submit(Task(run_id), person=person)
    places = {run_id: runner.snapshot(run_id).queue_place for run_id in ("a1", "b1", "c1", "a2", "b2", "a3")}
    assert list(places.values()) == [1, 2, 3, 4, 5, 6]
    while runner.run_next():
        pass
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_person_fills_three_quarters_of_the_queue() -> None:
    runner = inline(lambda run_id, control: None, max_queue=4)
    for run_id in ("a1", "a2", "a3"):
        runner.submit(Task(run_id), person="ann")
    with pytest.raises(QueueFull, match="At most 3 of your runs may wait"):
        runner.submit(Task("a4"), person="ann")
    runner.submit(Task("b1"), person="bob")
    with pytest.raises(QueueFull, match="At most 4 runs may wait"):
        runner.submit(Task("c1"), person="cas")
    alone = inline(lambda run_id, control: None, max_queue=2)
    for run_id in ("one", "two"):
        alone.submit(Task(run_id))


def test_nobody_waits_for_the_overdue_short_jobs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_LOOK_SECONDS", 0.01)
    clock, end = Clock(), threading.Event()
    runner = JobRunner(lambda run_id, control: end.wait(20), short_workers=1, clock=clock)
    try:
        for run_id in ("hostile 1", "hostile 2", "hostile 3"):
            runner.submit(Task(run_id), short=True, person="ann")
        wait_until(lambda: state(runner, "hostile 2") is RunState.RUNNING)  # both lanes
        runner.submit(Task("long"), person="bob")
        runner.submit(Task("short"), short=True, person="cas")
        clock.now += 9
        time.sleep(0.1)
        assert {state(runner, run_id) for run_id in ("long", "short")} == {RunState.QUEUED}
        clock.now += 2
        wait_until(lambda: {state(runner, run_id) for run_id in ("long", "short")} == {RunState.RUNNING})
        runner.submit(Task("dan's"), short=True, person="dan")
        clock.now += 100
        time.sleep(0.1)
        assert state(runner, "hostile 3") is state(runner, "dan's") is RunState.QUEUED  # two at most
    finally:
        end.set()
        runner.close()
