"""Requests about uploaded files and finished runs, answered in killable worker processes: limits, and the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

OPEN_SECONDS = 8.0
"""To open a file: a hostile one has its sentence within ten."""
BYTES_PER_SECOND = 50e6
"""Of a large file on a slow disk."""
MODEL_SECONDS = 120.0
"""To build a large network and run it once."""
MODEL_BYTES = 8e9
"""For the same."""
COPIES = 3
"""Of a checkpoint's weights: as loaded, as numbers of 32 bits, and in the network."""
OPEN_BYTES = 280e6
"""Of memory, whatever is free: what a lying file may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest(ABC, Generic[AnswerT_co]):
    """One request; it and its answer are plain values that can be written as JSON."""

    answer_type: ClassVar[type[Any]]

    @property
    def subject(self) -> str:
        """What is looked at, for people: the name of a file or a model."""
        return "This file"

    @property
    def seconds(self) -> float:
        """Processor time that it may take once the engine is loaded; on a busy machine it may last longer."""
        return OPEN_SECONDS

    @property
    def memory_bytes(self) -> float:
        """What it may take of memory beyond the engine, however much is free."""
        return OPEN_BYTES

    @abstractmethod
    def answer(self) -> AnswerT_co:
        """Open the file and find out.

        Raises:
            InvalidInput: it cannot be used, with one sentence on why.
        """


def num_bytes(path: str) -> int:
    """Return the size of a file; 0 for none."""
    with suppress(OSError):
        return Path(path).stat().st_size if path else 0
    return 0
