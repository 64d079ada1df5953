"""How often pages that watch ask for news."""

from __future__ import annotations

import pytest

from senseapp.app.common.backend import Watchers


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("people", "seconds"), [(1, 1.0), (5, 1.0), (10, 2.0), (20, 4.0)])
def test_together_they_look_at_most_five_times_a_second(people: int, seconds: float) -> None:
    watchers = Watchers(Clock())
    for _ in range(3):
        answers = [watchers.look(f"person {number}") for number in range(people)]
    assert answers[-1] == seconds


def test_who_has_gone_does_not_count() -> None:
    clock = Clock()
    watchers = Watchers(clock)
    for number in range(20):
        watchers.look(f"person {number}")
    clock.seconds = 20.0
    assert watchers.look("person 3") == 1.0
