"""All readers of foreign text: one sentence for any value, finite numbers, and processor time linear in bytes."""

import gc
import math
import time
from collections.abc import Callable

import pytest

from senseapp.core.foreign_values import BadValue, read_yaml
from tests.cases import seldom
from tests.foreign_readers import FILLERS, READERS, REFUSALS, VALUES, Reader, filled, holes, numbers_in

MOST_RATIO = 2.5  # of processor time, where the input doubles
OFTEN = ("schedule, csv", "Distiller table", "JSON", "YAML", "Python")  # one for each syntax
_LONG = 50_000  # parts of a filler; quadratic time in it takes minutes
_LONG_SECONDS = 3.0
_LEAST_SECONDS = 0.05  # below that a ratio is noise
_MOST_PARTS = 1 << 18
_UNKNOWN = ("ci_low", "ci_high", "baseline")  # of imported figures, not a number; that of SQNR is infinite


@pytest.mark.parametrize("name", READERS)
def test_any_value_is_read_as_finite_numbers_or_refused_with_one_sentence(name: str) -> None:
    reader = READERS[name]
    reader.read(reader.sound)
    for hole in holes(reader, 12):
        for value in VALUES:
            found, said = outcome(reader, filled(reader, hole, value))
            assert said.isprintable(), (hole, value)
            assert len(said) < 900, (hole, value)
            assert all(map(math.isfinite, numbers_in(found, leave_out=_UNKNOWN))), (hole, value)


@pytest.mark.parametrize("name", [name if name in OFTEN else seldom(name) for name in READERS])
def test_long_parts_end_soon(name: str) -> None:
    reader = READERS[name]
    places = holes(reader, 12)
    for index, make in enumerate(FILLERS.values()):
        assert seconds(reader, filled(reader, places[index % len(places)], make(_LONG))) < _LONG_SECONDS


@pytest.mark.wide
@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("name", READERS)
def test_twice_the_part_takes_twice_the_time(name: str, filler: str) -> None:
    reader = READERS[name]
    for hole in holes(reader, 2):
        check_ratio(reader, lambda parts, hole=hole: filled(reader, hole, FILLERS[filler](parts)))


@pytest.mark.wide
@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.has_rows])
def test_twice_the_rows_take_twice_the_time(name: str) -> None:
    check_ratio(READERS[name], READERS[name].with_rows)


def test_a_megabyte_of_yaml_takes_a_fraction_of_its_limit() -> None:
    row = "- {layer: conv1, level: 12.5, locked: false, members: [conv1, conv2], damage: 1.0e-05}\n"
    began = time.process_time()
    assert len(read_yaml(row * (1_000_000 // len(row)))) > 10_000
    assert time.process_time() - began < 4
    with pytest.raises(BadValue, match="more than 1,000,000 characters"):
        read_yaml(row * 12_000)


def outcome(reader: Reader, text: str) -> tuple[object, str]:
    """Return what was read, or why nothing was."""
    try:
        return reader.read(text), ""
    except REFUSALS as error:
        return None, str(error) or "\n"


def seconds(reader: Reader, text: str) -> float:
    """Return the processor time in which ``text`` is read or refused."""
    began = time.thread_time()
    outcome(reader, text)
    return time.thread_time() - began


def check_ratio(reader: Reader, make: Callable[[int], str]) -> None:
    """Require that twice the parts take at most :data:`MOST_RATIO` times as long, where they take long at all.

    Quadratic work exceeds it at each doubling. Linear work may at one: beyond the longest line a text is read in
    another way, and from some megabytes on the allocator takes pages from the system. So three in a row must exceed it.
    """
    gc.collect()  # once: of all that the tests hold, it takes longer than most texts
    parts = 1 << 13
    while parts < _MOST_PARTS and seconds(reader, make(parts)) < _LEAST_SECONDS:
        parts *= 2
    times = [least_seconds(reader, make(parts))]
    for doubling in (2, 4, 8):
        times.append(least_seconds(reader, make(doubling * parts)))
        if times[-1] < max(MOST_RATIO * times[-2], 2 * _LEAST_SECONDS):
            return
    pytest.fail(f"{parts} parts and their doublings take {times} s")


def least_seconds(reader: Reader, text: str) -> float:
    return min(seconds(reader, text) for _ in range(3))
