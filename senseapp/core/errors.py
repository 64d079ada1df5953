"""Every error that senseapp raises on purpose, as one tree.

::

    SenseError
    ├── InvalidInput            exit code 2
    │   └── InvalidSpec, UnknownModel, InvalidCheckpoint, InvalidDataset, NoLayersSelected, UnsupportedModel,
    │       InvalidSchedule, InfeasibleBudget, InvalidFile, RunMismatch, ReadingOpen
    │       └── SeveralLabelsError, NoPictures (each an InvalidDataset)
    │   └── ReadingStopped
    │       └── Abandoned
    ├── OutOfMemory, ProcessLost, ClusterFailed, MeasurementFailed, NotFound, QueueFull, QuotaExceeded, RateLimited
    └── StorageFailed
        └── HomeInUse

A message gives the rule, the expected and the actual value, and what to do. Users see the message; the trace goes to
the log.
"""

import re
from collections.abc import Collection

_LONGEST_MESSAGE = 800  # characters: some sentences with quoted names; a longer quotation is hostile or useless
_SIGNS_OF_NO_MEMORY = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory"),
    *("bad_alloc", "bad allocation", "failed to allocate memory"),  # of C++, and of onnxruntime
)


class SenseError(Exception):
    """Base of all errors whose message is for the user who caused it.

    Messages quote untrusted files, so they are limited in length and always printable.
    """

    def __str__(self) -> str:
        message = super().__str__().encode("utf-8", "replace").decode()
        shown = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]} …"
        return shown if shown.isprintable() else "".join(each if each.isprintable() else " " for each in shown)


class InvalidInput(SenseError):
    """The request cannot be carried out; the command line exits with 2."""


class InvalidSpec(InvalidInput, ValueError):
    """A setting is out of range or contradicts another."""


class UnknownModel(InvalidInput):
    """There is no architecture of that name."""


class InvalidCheckpoint(InvalidInput):
    """A weights file that cannot be read, trusted or matched to the architecture."""


class InvalidDataset(InvalidInput):
    """Images that cannot be read, trusted or matched to the model's classes."""


class SeveralLabelsError(InvalidDataset):
    """Images have several labels each, and the model is read as single-label."""


class NoPictures(InvalidDataset):
    """Tables or annotations without the pictures that they are about."""


class NoLayersSelected(InvalidInput):
    """A layer pattern or type that matches nothing compressible."""


class UnsupportedModel(InvalidInput):
    """The model runs, but its output is not one of its task."""


class InvalidSchedule(InvalidInput):
    """A schedule that does not belong to this model, or with values out of range."""


class InfeasibleBudget(InvalidInput):
    """No choice of levels meets the budget; ``nearest`` is the nearest feasible target, in the unit of the request."""

    def __init__(self, message: str, *, nearest: float) -> None:
        super().__init__(message)
        self.nearest = nearest


class InvalidFile(InvalidInput):
    """A result, table or archive of an unknown form, or written by a newer version."""


class RunMismatch(InvalidInput):
    """The folder already holds an unfinished run with other settings."""


class ReadingOpen(InvalidInput):
    """It is not known how outputs, images or labels are read; a person has to choose."""


class ReadingStopped(InvalidInput):
    """A file kept its worker process busy for too long, or ended it."""


class Abandoned(ReadingStopped):
    """The requester of an answer about a file is gone."""


class OutOfMemory(SenseError):
    """A run needs more memory than its limit."""


class ProcessLost(SenseError):
    """A worker process ended by itself; all measurements so far are kept."""


class ClusterFailed(SenseError):
    """The cluster cannot be reached, has other versions, or was lost; all measurements so far are kept."""


class MeasurementFailed(SenseError):
    """One measurement failed; it is recorded as FAILED and the run continues."""


class NotFound(SenseError):
    """There is no such run for this user."""


class QueueFull(SenseError):
    """Too many jobs are waiting already."""


class QuotaExceeded(SenseError):
    """A user's or the server's disk quota would be exceeded."""


class RateLimited(SenseError):
    """A user makes too many requests in a minute; the message says when to try again."""


class StorageFailed(SenseError):
    """The disk or the database cannot be read or written: full, read-only, locked or damaged."""


class HomeInUse(StorageFailed):
    """Another server, named in the message, uses the folder that holds the runs."""


def check_choice(what: str, value: object, allowed: Collection[str]) -> None:
    """Raise InvalidSpec unless a setting is one of ``allowed``; ``what`` begins the sentence: ``The goal must be``."""
    if value not in allowed:
        raise InvalidSpec(f"{what} one of {', '.join(filter(None, allowed))}, got {value!r}.")


def check_counts(settings: object, *names: str) -> None:
    """Raise InvalidSpec for an attribute of ``settings`` among ``names`` below 1; None leaves it open."""
    for name in names:
        if (value := getattr(settings, name)) is not None and value < 1:
            raise InvalidSpec(f"{name} must be at least 1, got {value}.")


_NEXT_SENTENCE = re.compile(r"(?<=\w\w[.!?]) +(?=[A-Z])")


def first_line_of(error: BaseException, most: int = 200) -> str:
    """Return the first sentence in the first line of an error's message, without its full stop, for use in a sentence.

    One of more than ``most`` letters ends between two words, with an ellipsis. If it is empty, return the type of the
    error.

    >>> first_line_of(ValueError("The shapes cannot be broadcast. Move the axes."))
    'The shapes cannot be broadcast'
    >>> first_line_of(ValueError("The shapes cannot be broadcast"), most=27)
    'The shapes cannot be …'
    """
    lines = str(error).strip().splitlines()
    if not lines:
        return f"{type(error).__name__} without a message"
    sentence = _NEXT_SENTENCE.split(lines[0], maxsplit=1)[0].rstrip(" .")
    return sentence if len(sentence) <= most else f"{sentence[:most].rpartition(' ')[0] or sentence[:most]} …"


def is_about_memory(error: BaseException) -> bool:
    """Return whether ``error``, or its cause, reports insufficient memory."""
    said = "" if isinstance(error, SenseError) else str(error).lower()
    if isinstance(error, (MemoryError, OutOfMemory)) or any(sign in said for sign in _SIGNS_OF_NO_MEMORY):
        return True
    return error.__cause__ is not None and is_about_memory(error.__cause__)
