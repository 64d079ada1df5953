"""Requests about uploaded files and finished runs, answered in killable worker processes: limits and answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

OPEN_SECONDS = 8.0
"""Limit for opening a file; for a hostile file, the user gets a sentence within ten seconds."""
BYTES_PER_SECOND = 50e6
"""Read speed of a large file on a slow disk."""
MODEL_SECONDS = 120.0
"""Limit for building a large network and running it once."""
MODEL_BYTES = 8e9
"""Limit for the same."""
COPIES = 3
"""Copies of a checkpoint's weights: as loaded, as 32-bit numbers, and in the network."""
OPEN_BYTES = 280e6
"""Memory limit for opening a file, however much is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest(ABC, Generic[AnswerT_co]):
    """One request; it and its answer are plain values that can be written as JSON."""

    answer_type: ClassVar[type[Any]]

    @property
    def subject(self) -> str:
        """Display name of the file or model."""
        return "This file"

    @property
    def seconds(self) -> float:
        """Limit of processor time after the engine is loaded; wall time may be longer on a busy machine."""
        return OPEN_SECONDS

    @property
    def memory_bytes(self) -> float:
        """Limit of memory beyond the engine's, however much is free."""
        return OPEN_BYTES

    @abstractmethod
    def answer(self) -> AnswerT_co:
        """Open the file and return the answer.

        Raises:
            InvalidInput: it cannot be used, with the reason in one sentence.
        """


def num_bytes(path: str) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    with suppress(OSError):
        return Path(path).stat().st_size if path else 0
    return 0
