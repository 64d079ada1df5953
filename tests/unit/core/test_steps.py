"""Optional improvements: one that fails is left out with a sentence; a cancel and a lack of memory end the work."""

import math

import pytest

from senseapp.core.errors import InvalidSpec, MeasurementFailed, OutOfMemory, is_about_memory
from senseapp.core.steps import OptionalSteps, Progress


class Cancelled(Exception):
    pass


def cancel(_sentence):
    raise Cancelled("stop")


def test_what_fails_is_left_out_once_with_its_reason():
    steps = OptionalSteps()
    for _ in range(2):
        with steps.trying("fitted weights"):
            raise ZeroDivisionError("division by zero\nof two lines.")
    with steps.trying("ranges of activations"):
        pass
    assert steps.notes == ["Left out, since it failed: fitted weights; ZeroDivisionError: division by zero."]


def test_a_cancel_ends_the_work_whatever_its_class_is():
    steps = OptionalSteps(Progress(cancel))
    with pytest.raises(Cancelled), steps.trying("ranges of activations"):
        steps.progress("Finding the ranges of activations")
    with pytest.raises(Cancelled), steps.trying("repair"):
        steps.progress.images(1, 2)
    with steps.trying("repair"):
        raise Cancelled("another")
    assert steps.notes == ["Left out, since it failed: repair; Cancelled: another."]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemory("This needs more memory than there is."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        Exception("bfc_arena: Failed to allocate memory for requested buffer of size 8000000000"),
    ],
)
def test_a_lack_of_memory_ends_the_work_also_where_another_error_says_it(error):
    with pytest.raises(type(error)), OptionalSteps().trying("repair"):
        raise error
    with pytest.raises(InvalidSpec), OptionalSteps().trying("repair"):
        raise InvalidSpec("onnxruntime cannot write this network.") from error


def test_a_sentence_that_speaks_of_memory_is_no_lack_of_it():
    assert not is_about_memory(MeasurementFailed("There was not enough memory: choose a smaller batch size."))
    assert not is_about_memory(ValueError("memory_format is unknown"))


def test_the_time_of_improvements_counts_from_its_start():
    now = 100.0
    steps = OptionalSteps(clock=lambda: now)
    assert steps.left() == math.inf
    steps.start(60.0)
    now += 20.0
    assert steps.left() == 40.0
