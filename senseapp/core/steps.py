"""Progress of long work by steps; an optional step that fails is left out, with a note.

A report of progress is one sentence, ``Step · 3 of 40 · detail``: the step in everyday words (one of :class:`StepTitle`
where the work is planned), how many of its parts are done where it counts them, then what exactly is done.
"""

import enum
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from senseapp.core.errors import first_line_of, is_about_memory

Trying = Callable[[str], AbstractContextManager[object]]
"""A context in which the named improvement may fail."""
LEFT_OUT = "Left out, since it failed:"
"""Begins each note on an improvement that was left out."""
_log = logging.getLogger(__name__)


SEPARATOR = " · "
"""Between the parts of a report of progress."""


class StepTitle(enum.StrEnum):
    """The steps from a run's settings to its files, as people read them."""

    READ = "Reading the model and the images"
    ESTIMATE = "Estimating all layers at once"
    INT8 = "Preparing the 8-bit file"
    WEIGHTS = "Making the 8-bit file"
    OWN = "Trying other ways to make it"
    PARTS = "Looking for parts to keep precise"
    TEST = "Testing and timing the files"
    LAYERS = "Measuring each layer"
    SCHEDULES = "Trying all layers together"
    PROOF = "Checking the best of them whole"


def ignore_progress(_sentence: str) -> None:
    """Do nothing."""


@dataclass(slots=True)
class Progress:
    """Reports each detail of a step, and how many of its images are done.

    ``title`` is the step of the plan, if one is planned. ``report`` may stop the work by raising: ``stopped`` is that.
    """

    report: Callable[[str], None] = ignore_progress
    step: str = ""
    title: str = ""
    stopped: Exception | None = None

    def begin(self, title: str) -> None:
        """Begin a step of the plan."""
        self.title, self.step = title, ""
        self._tell("")

    def __call__(self, step: str) -> None:
        """Report what begins inside the step."""
        self.step = step
        self._tell(step)

    def images(self, done: int, total: int) -> None:
        """Report how many of the images of this detail are done."""
        self._tell(f"{self.step or 'Measuring'}{SEPARATOR}{done} of {total} images")

    def _tell(self, detail: str) -> None:
        try:
            self.report(SEPARATOR.join(part for part in (self.title, detail) if part))
        except Exception as error:
            self.stopped = error
            raise


@dataclass(slots=True)
class OptionalSteps:
    """Improvements without which a file or a compressed model is still complete.

    They may take ``seconds`` together, from :meth:`start` on. ``progress`` receives the steps inside; its exceptions
    always end the work. ``notes`` has a sentence for each that was left out.
    """

    progress: Progress = field(default_factory=Progress)
    notes: list[str] = field(default_factory=list)
    seconds: float = math.inf
    clock: Callable[[], float] = time.monotonic
    _started: float = 0.0

    def start(self, seconds: float) -> None:
        """Begin to count the time of improvements, which is ``seconds``."""
        self.seconds, self._started = seconds, self.clock()

    def left(self) -> float:
        """Return the seconds until the time has passed, at least 0."""
        return max(0.0, self._started + self.seconds - self.clock())

    @contextmanager
    def trying(self, improvement: str) -> Iterator[None]:
        """Allow the body to fail: a note then says that ``improvement``, a noun, was left out, and why.

        A cancel and out-of-memory errors are raised. A failing body must leave no partial changes.
        """
        try:
            yield
        except Exception as error:  # exceptions of many packages
            if error is self.progress.stopped or is_about_memory(error):
                raise
            _log.warning("left out: %s", improvement, exc_info=error)
            note = f"{LEFT_OUT} {improvement}; {type(error).__name__}: {first_line_of(error)}."
            if note not in self.notes:
                self.notes.append(note)
