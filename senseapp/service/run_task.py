"""Long work as one thing: a run, a proof, a search and a histogram are tasks, given one context and told of one way."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from senseapp.results import LayerMeasurement, SensitivityResult
from senseapp.results.reuse import Reused
from senseapp.service.engine import load_engine
from senseapp.service.session import OpenSession, open_local_session
from senseapp.store import RunFolder

_KEY_DIGITS = 16


class RunObserver(Protocol):
    """Is told what happens, by the thread that waits for it; raising from any call stops the task where it is."""

    def phase(self, sentence: str) -> None:
        """A long step begins; an empty sentence only gives the chance to stop."""

    def opened(self, head: SensitivityResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """The model is loaded; ``head`` holds what an earlier attempt found in ``done`` of ``total`` steps."""

    def estimated(self, estimate: LayerMeasurement) -> None:
        """The quick scan found one estimate."""

    def measured(self, measurement: LayerMeasurement) -> None:
        """One measurement was made, or a layer passed over as not applicable, and is already on the disk."""


class EarlierRuns(Protocol):
    """Knows runs whose measurements may be taken over."""

    def find(self, content_key: str) -> SensitivityResult | None:
        """Return what an earlier run with this key has measured, and remember that this run has the key too."""

    def taken(self, count: int, total: int) -> Reused:
        """Return the record of ``count`` of ``total`` measurements having been taken from the run found."""


class NoEarlierRuns:
    """Every run measures everything itself."""

    def find(self, content_key: str) -> None:
        """Know none."""

    def taken(self, count: int, total: int) -> Reused:
        """Never called: there is nothing to take."""
        raise LookupError("there is no earlier run")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What a task is given, in whatever process it is carried out.

    Attributes:
        folder: of the run; every outcome is a file in it.
        observer: told how far the task is.
        data_roots: folders that images may be read from; empty allows any.
        earlier_runs: asked by a run that begins.
        open_session: loads the model and the images of a run.
    """

    folder: RunFolder
    observer: RunObserver
    data_roots: tuple[Path, ...] = ()
    earlier_runs: EarlierRuns = field(default_factory=NoEarlierRuns)
    open_session: OpenSession = open_local_session


class RunTask(Protocol):
    """One piece of long work that goes through the queue and leaves files in a run's folder."""

    @property
    def run_id(self) -> str:
        """The run that it belongs to."""

    @property
    def job_id(self) -> str:
        """Names the job: the same for the same work; that of the run itself is its id, all others have a colon."""

    def carry_out(self, context: TaskContext) -> object:
        """Do the work and keep its outcome in the folder; nothing is done twice."""


OutcomeT_co = TypeVar("OutcomeT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRunTask(ABC, Generic[OutcomeT_co]):
    """Work on a finished run; its outcome is a file of the run, and the run keeps its state whatever comes of it.

    Attributes:
        run_id: of the run whose model and images are taken.
    """

    keeps_model: ClassVar[bool] = False
    """Whether it leaves files as large as a model, for which there must be room."""

    run_id: str

    @property
    @abstractmethod
    def key(self) -> str:
        """Names the file of the outcome: the same for the same question, whoever asks."""

    @abstractmethod
    def outcome(self, folder: RunFolder) -> OutcomeT_co | None:
        """Return what is kept in ``folder``, or None before it is.

        Raises:
            InvalidFile: the file is damaged.
        """

    @abstractmethod
    def find_out(self, context: TaskContext) -> OutcomeT_co:
        """Do the work, keep the outcome and return it; the engine is loaded."""

    @property
    def job_id(self) -> str:
        """Names the job; no run has a colon in its id."""
        return f"{self.run_id}:{type(self).__name__}:{self.key}"

    def carry_out(self, context: TaskContext) -> OutcomeT_co:
        """Return the outcome, found now or before.

        Raises:
            NotFound: the run is not finished.
            InvalidInput: the model, the images or what is asked for cannot be used.
            StorageFailed: a file cannot be written.
        """
        known = self.outcome(context.folder)
        if known is not None:
            return known
        load_engine()
        return self.find_out(context)


def key_of(question: str) -> str:
    """Return what names the file of an outcome: the same for the same question, whoever asks."""
    return hashlib.sha256(question.encode()).hexdigest()[:_KEY_DIGITS]
