"""Slots for questions: a few of each person, and none for whoever has left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from senseapp.core.errors import Abandoned
from senseapp.server.process.processes import takes_too_long
from senseapp.server.process.requester import ANYBODY, Requester, Slots


class Waiting:
    """A thread that holds a slot until it is told to let go."""

    def __init__(self, slots: Slots, requester: Requester) -> None:
        self.has, self.may_go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(slots, requester), daemon=True)
        self._thread.start()

    def _hold(self, slots: Slots, requester: Requester) -> None:
        with slots.hold(requester, "a.zip"):
            self.has.set()
            self.may_go.wait(30)

    def let_go(self) -> None:
        self.may_go.set()
        self._thread.join(30)


def wait_until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not met() and time.monotonic() < end:
        time.sleep(0.001)
    assert met()


def test_one_person_never_has_all_slots_and_whoever_has_fewer_goes_first() -> None:
    slots = Slots(3, 2)
    greedy = [Waiting(slots, Requester(person="greedy")) for _ in range(2)]
    assert all(each.has.wait(30) for each in greedy)
    third = Waiting(slots, Requester(person="greedy"))
    wait_until(lambda: len(slots._waiting) == 1)
    other = Waiting(slots, Requester(person="other"))
    assert other.has.wait(30)
    assert not third.has.is_set()
    fourth = Waiting(slots, Requester(person="other"))
    wait_until(lambda: len(slots._waiting) == 2)
    greedy[0].let_go()  # now each has one, and the greedy one has waited longer
    assert third.has.wait(30)
    assert not fourth.has.is_set()
    for each in (greedy[1], third, other):
        each.let_go()
    assert fourth.has.wait(30)
    fourth.let_go()
    assert not slots._held
    assert not slots._waiting


def test_whoever_has_left_waits_no_longer_and_leaves_the_slot() -> None:
    slots, gone = Slots(1, 1), threading.Event()
    first = Waiting(slots, ANYBODY)
    assert first.has.wait(30)
    gone.set()
    with (
        pytest.raises(Abandoned, match=r"a\.zip was not read to its end"),
        slots.hold(Requester(person="b", is_gone=gone.is_set), "a.zip"),
    ):
        pass
    first.let_go()
    with slots.hold(Requester(person="c"), "a.zip"):
        assert slots._held == {"c": 1}


def test_a_busy_machine_does_not_use_up_the_time_of_a_question() -> None:
    def too_long(elapsed: float, processor: float) -> bool:
        return takes_too_long(elapsed=elapsed, processor=processor, limit=8)

    assert not too_long(7.9, 15.0)  # on two cores, within its time
    assert too_long(8.1, 8.1)
    assert not too_long(31.9, 2.0)  # beside three others on the same core
    assert too_long(32.1, 2.0)
