"""Whether files keep to a time, on a made-up machine with calm and busy moments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from senseapp.networks.network import Network
from senseapp.prove.file_times import FileTimes, times_anew
from senseapp.records.deployment import Median
from senseapp.runtimes.call_times import ratio
from tests.toy_runtime import ToyRuntime

CALM, BUSY = (1.1, 1.0), (1.5, 1.5)
"""Hundredths of a second of a file and the reference: when another program runs, both take longer, the latter more."""


@dataclass
class SharedMachine(ToyRuntime):
    """The two files take what its moments say, one after the other, and the last of them ever after."""

    moments: Sequence[tuple[float, float]]
    _now: Iterator[tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._now = iter(self.moments)

    def open(self, content: bytes, *, threads: int | None = None) -> bytes:  # type: ignore[override]
        return content

    def times(self, networks: Sequence[Network], images: Tensor, *, turns: int = 41) -> list[list[float]]:
        return [[hundredths / 100] * turns for hundredths in next(self._now, self.moments[-1])]


def times(*moments: tuple[float, float]) -> FileTimes:
    return FileTimes(SharedMachine(moments), b"reference", torch.zeros(1, 1))


def test_a_ratio_to_rely_on_is_of_calm_moments_and_without_one_its_interval_is_wider() -> None:
    found = times(BUSY, BUSY, CALM, BUSY, CALM).measure_precise(b"file")
    assert found.value == pytest.approx(1.1)
    assert (found.low, found.high) == (1.0, pytest.approx(1.1))
    waited = times(CALM, *[BUSY] * 7, CALM)  # for a moment that is known to exist
    assert waited.measure_rough(b"file") <= 1.2
    assert waited.measure_precise(b"file").value == pytest.approx(1.1)
    known = times(CALM, BUSY)
    assert known.measure_rough(b"file") <= 1.2
    assert known.measure_precise(b"file").high == pytest.approx(0.98 / 0.91)


@pytest.mark.parametrize(("most", "seems", "holds"), [(1.2, True, True), (1.12, False, False), (1.05, False, False)])
def test_a_busy_moment_hides_no_time(most: float, seems: bool, holds: bool) -> None:
    """In the busy moment alone the file seems as quick as the reference."""
    known = times(CALM, BUSY, *[BUSY] * 4, CALM)
    assert (known.measure_rough(b"file") <= most) is seems
    assert known.measure_rough(b"file") > 1.05
    assert known.is_within(b"file", most) is holds


def test_a_file_is_within_a_time_in_every_opening() -> None:
    assert times(CALM).is_within(b"file", 1.2)
    assert not times(CALM, CALM, (1.25, 1.0), CALM).is_within(b"file", 1.2)
    assert not times((1.19, 1.0)).is_within(b"file", 1.2)  # within, but by too little


def test_the_interval_of_a_ratio_includes_that_of_the_quickest_calls() -> None:
    """1 s of waiting, in four calls of five, hides that the file takes half as long again."""
    waits = [1.0 if turn % 5 else 0.0 for turn in range(40)]
    file, other = [0.3 + wait for wait in waits], [0.2 + wait for wait in waits]
    found = ratio(file, other)
    assert found.value == pytest.approx(1.3 / 1.2)
    assert found.high == pytest.approx(1.5)
    assert ratio(other, file).low == pytest.approx(1 / 1.5)
    assert ratio([2.0, 2.0, 2.0], [1.0, 1.0, 1.0]) == Median(value=2, low=2, high=2)


def test_files_that_are_opened_first_by_turns_have_the_same_time() -> None:
    """Where what is opened first takes 3 % longer, as memory lies elsewhere; so do files that are timed together."""

    class Opening(SharedMachine):
        def __init__(self) -> None:
            super().__init__([CALM])
            self.numbers = count()

        def open(self, content: bytes, *, threads: int | None = None) -> int:  # type: ignore[override]
            return next(self.numbers)

        def times(self, networks: Sequence[Any], images: Tensor, *, turns: int = 41) -> list[list[float]]:
            return [[0.0103 if each == min(networks) else 0.01] * turns for each in networks]

    machine = Opening()
    found = FileTimes(machine, b"reference", torch.zeros(1, 1)).measure_precise(b"file")
    assert found.value == pytest.approx(1, abs=1e-3)
    assert (found.low, found.high) == (pytest.approx(1 / 1.03), pytest.approx(1.03))
    openers = {name: partial(machine.open, name.encode()) for name in ("one", "other")}
    seconds = times_anew(openers, machine, torch.zeros(1, 1))
    assert ratio(seconds["one"], seconds["other"]).value == pytest.approx(1, abs=1e-3)


def test_a_file_of_long_calls_is_opened_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("senseapp.prove.file_times.time.monotonic", count(step=11).__next__)
    slow = SharedMachine([(130.0, 100.0), (140.0, 100.0), (900.0, 100.0)])
    found = FileTimes(slow, b"reference", torch.zeros(1, 1)).measure_precise(b"file")
    assert (found.low, found.high) == (1.3, 1.4)
