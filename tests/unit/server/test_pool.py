"""The pool of worker processes: which one does what, how many are kept, and when one is replaced."""

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from senseapp.core.errors import Abandoned
from senseapp.records.spec import RunSpec
from senseapp.server.execution import Measurement
from senseapp.server.job_progress import JobCancelled
from senseapp.server.model_cards import identify_checkpoint
from senseapp.server.process import processes as pools
from senseapp.server.process.processes import JobProcesses
from senseapp.server.process.requester import Requester, WorkerRequest
from senseapp.server.tasks import RunObserver, TaskContext
from senseapp.store.run_folder import RunFolder

QUESTION = WorkerRequest(call=partial(identify_checkpoint, "a.pth"))
_numbers = itertools.count(1)


class FakeProcess:
    def __init__(self) -> None:
        self.pid, self.alive, self.answered = next(_numbers), True, 0
        self.warm = threading.Event()

    def send(self, kind: str, body: object = None) -> None:
        assert kind == "warm"

    def close(self) -> None:
        self.alive = False


class Stage:
    """A pool of fake processes, and what answers a question and does a task in one of them."""

    def __init__(self, most: int = 1) -> None:
        self.made: list[FakeProcess] = []
        self.answer: Callable[[FakeProcess], None] = lambda process: None
        self.pool = JobProcesses(most, start=self._start)  # type: ignore[arg-type]

    def _start(self) -> FakeProcess:
        self.made.append(FakeProcess())
        return self.made[-1]

    def warm_one(self) -> FakeProcess:
        self._start().warm.set()
        return self.made[-1]

    def warmed(self) -> FakeProcess:
        """Warm the pool up, and return the process that has loaded the engine."""
        self.pool.warm_up()
        self.made[-1].warm.set()
        return self.made[-1]

    def work(self, look: Callable[[str], None] = lambda sentence: None) -> None:
        observer = RunObserver()
        observer.phase = look  # type: ignore[method-assign]
        context = TaskContext(folder=RunFolder(Path("/runs/r")), observer=observer)
        self.pool.carry_out(Measurement(run_id="r", spec=RunSpec()), context, device="cpu")

    def asked(self) -> int:
        """Return the place of the process that answers."""
        places: list[int] = []
        answer, self.answer = self.answer, lambda process: (places.append(self.made.index(process)), answer(process))[1]
        try:
            self.pool.answer(QUESTION)
        finally:
            self.answer = answer
        return places[0]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    found = Stage()
    monkeypatch.setattr(pools, "CANCEL_SECONDS", 0.01)
    monkeypatch.setattr(pools, "_ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(pools, "answer_in", lambda process, question, **_: found.answer(process))
    monkeypatch.setattr(pools, "carry_out_in", lambda process, task, context, **_: context.observer.phase("at work"))
    yield found
    found.pool.close()
    assert not any(process.alive for process in found.made)


def test_a_process_is_used_again_and_none_is_kept_once_the_pool_is_closed(stage: Stage) -> None:
    stage.pool.warm_up()
    stage.pool.warm_up()
    for _ in range(3):
        stage.work()
    assert stage.pool.pids() == (stage.made[0].pid,)
    stage.work(lambda sentence: stage.pool.close() if sentence else None)
    stage.pool.warm_up()
    assert stage.pool.pids() == ()


def test_no_process_does_two_things_at_once_and_no_more_are_kept_than_asked_for(stage: Stage) -> None:
    counted: list[int] = []

    def while_at_work(sentence: str) -> None:
        stage.work(lambda _: counted.append(len(set(stage.pool.pids()))))

    stage.work(while_at_work)
    assert counted == [2]
    assert len(stage.pool.pids()) == 1


def test_a_process_that_has_answered_many_questions_gives_way_to_another(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_MOST_ANSWERS", 3)
    stage.warmed()
    assert [stage.asked() for _ in range(4)] == [0, 0, 0, 1]
    assert stage.pool.pids() == (stage.made[1].pid,)


@pytest.mark.parametrize("long", [False, True], ids=["soon answered", "long"])
def test_work_waits_for_a_process_that_is_asked_something_or_for_one_that_is_warm_before(
    stage: Stage, long: bool
) -> None:
    asked, answered = threading.Event(), threading.Event()
    stage.answer = lambda process: (asked.set(), answered.wait(30))[0]
    asking = threading.Thread(target=stage.pool.answer, args=(QUESTION,))
    asking.start()
    assert asked.wait(30)
    looked: list[str] = []

    def look(sentence: str) -> None:
        looked.append(sentence)
        if len(looked) == 3:  # so long it has waited, while the engine was being loaded
            assert looked == ["", "", ""]
            (stage.made[0].warm if long else answered).set()
        for process in stage.made[1:]:
            process.warm.set()

    stage.work(look)
    assert looked[-1] == "at work"
    assert len(stage.made) == 1 + long
    answered.set()
    asking.join()


@pytest.mark.parametrize("long", [False, True], ids=["soon answered", "long"])
def test_a_question_is_answered_by_the_process_that_is_ready_first(stage: Stage, long: bool) -> None:
    answers: list[int] = []
    first_is_answering, first_answers = threading.Event(), threading.Event()

    def answer(process: FakeProcess) -> None:
        answers.append(stage.made.index(process))
        if len(answers) == 1:
            first_is_answering.set()
            assert first_answers.wait(30)

    stage.answer = answer
    stage.warmed()
    asking = [threading.Thread(target=stage.pool.answer, args=(QUESTION,)) for _ in range(2)]
    asking[0].start()
    assert first_is_answering.wait(30)
    asking[1].start()
    while len(stage.made) < 2:  # one more is started, and loads the engine
        asking[1].join(0.01)
    assert len(answers) == 1
    if long:
        stage.made[1].warm.set()
        asking[1].join(30)
    first_answers.set()
    for thread in asking:
        thread.join(30)
    assert answers == [0, int(long)]


def test_a_process_that_cannot_go_on_is_replaced(stage: Stage) -> None:
    stage.work()
    first = stage.made[0]

    def cancel(sentence: str) -> None:
        raise JobCancelled

    with pytest.raises(JobCancelled):
        stage.work(cancel)
    assert not first.alive
    stage.work()
    stage.made[-1].alive = False  # it ended meanwhile
    stage.work()
    assert stage.pool.pids() == (stage.made[-1].pid,)
    assert stage.made[-1].alive


class Asking:
    """A thread whose question is answered until it is told to let go."""

    def __init__(self, stage: Stage, person: str) -> None:
        self.has, self.may_go = threading.Event(), threading.Event()
        question = replace(QUESTION, call=partial(self.hold))  # type: ignore[arg-type]
        self._thread = threading.Thread(target=stage.pool.answer, args=(question, Requester(person=person)))
        self._thread.start()

    def hold(self) -> None:
        self.has.set()
        self.may_go.wait(30)

    def let_go(self) -> None:
        self.may_go.set()
        self._thread.join(30)


def test_one_person_never_has_all_answers_and_whoever_has_left_waits_no_longer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "answer_in", lambda process, question, **_: question.call())
    monkeypatch.setattr(pools, "_MOST_ASKED", 3)
    monkeypatch.setattr(pools.JobProcesses, "_started", lambda pool: stage.warm_one())
    greedy = [Asking(stage, "greedy") for _ in range(2)]
    assert all(each.has.wait(30) for each in greedy)
    third, other = Asking(stage, "greedy"), Asking(stage, "other")
    assert other.has.wait(30)
    assert not third.has.is_set()
    with pytest.raises(Abandoned, match="was not read to its end"):
        stage.pool.answer(QUESTION, Requester(person="b", is_gone=lambda: True))
    greedy[0].let_go()
    assert third.has.wait(30)
    for each in (greedy[1], third, other):
        each.let_go()
