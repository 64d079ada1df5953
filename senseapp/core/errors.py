"""Every error that senseapp raises on purpose, as one tree.

::

    SenseError
    ├── InvalidInput            exit code 2
    │   └── InvalidSpec, UnknownModel, InvalidCheckpoint, InvalidDataset, NoLayersSelected, UnsupportedModel,
    │       InvalidSchedule, InfeasibleBudget, InvalidFile, RunMismatch
    │       └── SeveralLabelsError (an InvalidDataset)
    │   └── ReadingStopped
    │       └── Abandoned
    ├── OutOfMemory, ProcessLost, ClusterFailed, MeasurementFailed, NotFound, QueueFull, QuotaExceeded, RateLimited
    └── StorageFailed
        └── HomeInUse

A message gives the rule, what was expected, what came, and what to do. People see the message;
the trace goes to the log.
"""

from __future__ import annotations

_LONGEST_MESSAGE = 800
_SIGNS_OF_NO_MEMORY = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory"),
    *("bad_alloc", "bad allocation", "failed to allocate memory"),  # of C++, and of onnxruntime
)


class SenseError(Exception):
    """Base of all errors whose message is meant to be read by the person who caused it.

    Messages quote files that anybody may have made: they are never endless, and always text that can be written.
    """

    def __str__(self) -> str:
        message = super().__str__().encode("utf-8", "replace").decode()
        return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]} …"


class InvalidInput(SenseError):
    """The request cannot be carried out as asked; the command line exits with 2."""


class InvalidSpec(InvalidInput, ValueError):
    """A setting is out of range or contradicts another."""


class UnknownModel(InvalidInput):
    """No architecture of that name."""


class InvalidCheckpoint(InvalidInput):
    """A weights file that cannot be read, trusted or matched to the architecture."""


class InvalidDataset(InvalidInput):
    """Images that cannot be read, trusted or matched to the model's classes."""


class SeveralLabelsError(InvalidDataset):
    """Several labels are true of one image, and the model is read as one that gives each image one class."""


class NoLayersSelected(InvalidInput):
    """A layer pattern or type that matches nothing compressible."""


class UnsupportedModel(InvalidInput):
    """The model runs, but what it returns is not an output of its task."""


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


class ReadingStopped(InvalidInput):
    """A file kept the process that reads it busy for too long, or ended it."""


class Abandoned(ReadingStopped):
    """Nobody waits for the answer about a file any more."""


class OutOfMemory(SenseError):
    """A run needs more memory than it may take."""


class ProcessLost(SenseError):
    """The process that worked for the app has ended by itself; everything measured so far is kept."""


class ClusterFailed(SenseError):
    """The cluster cannot be reached, has other versions, or was lost; everything measured so far is kept."""


class MeasurementFailed(SenseError):
    """One measurement could not be made; it is recorded as FAILED and the run goes on."""


class NotFound(SenseError):
    """No such run for this person."""


class QueueFull(SenseError):
    """Too many jobs are waiting already."""


class QuotaExceeded(SenseError):
    """A person's or the server's disk quota would be passed."""


class RateLimited(SenseError):
    """A person asks for too much in a minute; the message says when to try again."""


class StorageFailed(SenseError):
    """The disk or the database refuses to read or write: full, read-only, locked or damaged."""


class HomeInUse(StorageFailed):
    """Another server works in the folder that holds the runs; names it."""


def first_line_of(error: BaseException, most: int = 200) -> str:
    """Return the first line of what a library's own error says, for use in a sentence: without its full stop.

    Where it says nothing, what kind of error it is.
    """
    lines = str(error).strip().splitlines()
    return lines[0][:most].rstrip(" .") if lines else f"{type(error).__name__} without a message"


def is_about_memory(error: BaseException) -> bool:
    """Return whether ``error``, or the one that it was raised from, says that there is not enough memory."""
    said = "" if isinstance(error, SenseError) else str(error).lower()
    if isinstance(error, (MemoryError, OutOfMemory)) or any(sign in said for sign in _SIGNS_OF_NO_MEMORY):
        return True
    return error.__cause__ is not None and is_about_memory(error.__cause__)
