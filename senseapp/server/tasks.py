"""Tasks for the job queue: their context and observer, and the base class of those on finished runs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from senseapp.core.steps import StepTitle
from senseapp.descriptions import CompressionConfig
from senseapp.records.measurement import LayerMeasurement, Reused, RunResult
from senseapp.server.session import OpenSession, load_engine, open_local_session
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.prove.evaluator import ScheduleEvaluator

_KEY_DIGITS = 16  # hexadecimal: 64 bits, so that of a billion outcomes of a run two would rarely meet


class RunObserver(Protocol):
    """Receives events from the thread that runs the task; raising from any call stops the task there."""

    def phase(self, sentence: str) -> None:
        """A long step begins; an empty sentence only allows to stop."""

    def opened(self, head: RunResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """The model is loaded; ``head`` holds the results of an earlier attempt, ``done`` of ``total`` steps."""

    def estimated(self, estimate: LayerMeasurement) -> None:
        """The quick scan has one estimate, or a better one of the same layer and level."""

    def measured(self, measurement: LayerMeasurement) -> None:
        """One measurement was made, or a layer skipped as not applicable, and is already on disk."""


class EarlierRuns(Protocol):
    """Runs whose measurements may be reused."""

    def find(self, content_key: str) -> RunResult | None:
        """Return the measurements of an earlier run with this key, and store the key for this run."""

    def taken(self, count: int, total: int) -> Reused:
        """Return the record of ``count`` of ``total`` measurements reused from the found run."""


class NoEarlierRuns:
    """No reuse: every run measures everything itself."""

    def find(self, content_key: str) -> None:
        """Return None."""

    def taken(self, count: int, total: int) -> Reused:
        """Never called, as no run is found."""
        raise LookupError("there is no earlier run")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """Context of a task, in any process.

    Attributes:
        folder: of the run; every outcome is a file in it.
        data_roots: folders that images may be read from; empty allows any.
        earlier_runs: runs to reuse at the start of a run.
        alike: folders of the same person's other runs of this model and these images, whose files may be reused.
        open_session: loads the model and the images of a run.
    """

    folder: RunFolder
    observer: RunObserver
    data_roots: tuple[Path, ...] = ()
    earlier_runs: EarlierRuns = field(default_factory=NoEarlierRuns)
    alike: tuple[Path, ...] = ()
    open_session: OpenSession = open_local_session


class RunTask(Protocol):
    """One piece of long work that goes through the queue and leaves files in a run's folder."""

    @property
    def run_id(self) -> str:
        """The run that it belongs to."""

    @property
    def job_id(self) -> str:
        """Id of the job, equal for equal work; that of the run itself is its id, all others have a colon."""

    @property
    def most_bytes(self) -> float | None:
        """Limit of memory beyond the engine that foreign files set; None where only that of all jobs holds."""

    def carry_out(self, context: TaskContext) -> object:
        """Do the work and keep its outcome in the folder; finished work is not repeated."""


OutcomeT_co = TypeVar("OutcomeT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRunTask(ABC, Generic[OutcomeT_co]):
    """Work on a finished run; its outcome is a file of the run, whose state does not change."""

    keeps_model: ClassVar[bool] = False
    """Whether it leaves files as large as a model, which require free space."""

    kind: ClassVar[type[Any]]
    """Type of its record."""

    run_id: str

    @property
    def most_bytes(self) -> None:
        """Files of finished runs set no limit of their own."""

    @property
    def is_short(self) -> bool:
        """Whether it takes less than about a minute on usual networks, and goes to the lane of short jobs."""
        return True

    @property
    @abstractmethod
    def key(self) -> str:
        """Key of the outcome's file: equal for equal requests of any user."""

    @abstractmethod
    def find_out(self, context: TaskContext) -> OutcomeT_co:
        """Do the work and return the outcome; the engine is loaded."""

    @property
    def earlier_keys(self) -> tuple[str, ...]:
        """What earlier versions called the same question."""
        return ()

    def kept_key(self, folder: RunFolder) -> str:
        """Return the key of what is in ``folder``: one of :attr:`earlier_keys` where only that is there."""
        known = (key for key in (self.key, *self.earlier_keys) if folder.load(self.kind, key) is not None)
        return next(known, self.key)

    def outcome(self, folder: RunFolder) -> OutcomeT_co | None:
        """Return the outcome stored in ``folder``, or None."""
        kept: OutcomeT_co | None = folder.load(self.kind, self.kept_key(folder))
        return kept

    @property
    def job_id(self) -> str:
        """Id of the job; no run has a colon in its id."""
        return f"{self.run_id}:{type(self).__name__}:{self.key}"

    def carry_out(self, context: TaskContext) -> OutcomeT_co:
        """Return the outcome, computed now or before.

        Raises:
            NotFound: the run is not finished.
            InvalidInput: the model, the images or the request cannot be used.
        """
        known = self.outcome(context.folder)
        if known is not None:
            return known
        load_engine()
        found = self.find_out(context)
        self.keep(context.folder, found)
        return found

    def keep(self, folder: RunFolder, found: OutcomeT_co) -> None:  # type: ignore[misc]  # only ever its own outcome
        """Write the outcome into ``folder``."""
        folder.save(self.key, found)  # type: ignore[arg-type]  # a record of self.kind


def key_of(question: str) -> str:
    """Return the key of an outcome's file: equal for equal requests of any user."""
    return hashlib.sha256(question.encode()).hexdigest()[:_KEY_DIGITS]


def key_fields(record: Any, written: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a record that a key hashes, in their order: a younger one changes no key by its default.

    Args:
        record: a frozen dataclass.
        written: its fields as JSON.
        first: the fields of the first version, which are always there.
    """
    younger = (each for each in fields(record) if each.name not in first and each.name in written)
    changed = (each for each in younger if getattr(record, each.name) != _default_of(each))
    return {name: written[name] for name in (*first, *(each.name for each in changed))}


def changed_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a record of plain values that differ from their defaults, by name."""
    return {each.name: value for each in fields(record) if (value := getattr(record, each.name)) != _default_of(each)}


def earlier_texts(record: Any) -> Iterator[str]:
    """Yield what ``repr`` returned before the last fields, all of them at their defaults now, were added to a class."""
    own = fields(record)
    for count in range(len(own), -1, -1):
        if all(getattr(record, each.name) == _default_of(each) for each in own[count:]):
            shown = ", ".join(f"{each.name}={getattr(record, each.name)!r}" for each in own[:count])
            yield f"{type(record).__qualname__}({shown})"


def _default_of(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


REPAIR = "matched"
"""Method of repair, part of keys: proofs and searches with another method have other keys."""


def open_evaluator(context: TaskContext, other: CompressionConfig | None = None) -> ScheduleEvaluator:
    """Load the model and the images of the run for schedules; ``other`` configures a second run's compression."""
    progress = context.observer.phase
    progress(StepTitle.READ)
    return evaluator_of(context.folder.load_result(), context, other=other, progress=progress)


def evaluator_of(
    result: RunResult,
    context: TaskContext,
    *,
    other: CompressionConfig | None = None,
    progress: Callable[[str], None],
) -> ScheduleEvaluator:
    """Load the model and the images of ``result``, which may be that of an unfinished run."""
    from senseapp.prove.evaluator import ScheduleEvaluator  # torch loads here, not when the app starts

    return ScheduleEvaluator.open(result, other=other, data_roots=context.data_roots, progress=progress)
