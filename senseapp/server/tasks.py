"""Tasks for the job queue: what each is given and tells, and what all those of finished runs have in common."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from senseapp.descriptions import CompressionConfig
from senseapp.records.measurement import LayerMeasurement, Reused, RunResult
from senseapp.server.session import OpenSession, load_engine, open_local_session
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.prove.evaluator import ScheduleEvaluator

_KEY_DIGITS = 16


class RunObserver(Protocol):
    """Is told what happens, by the thread that waits for it; raising from any call stops the task where it is."""

    def phase(self, sentence: str) -> None:
        """A long step begins; an empty sentence only gives the chance to stop."""

    def opened(self, head: RunResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """The model is loaded; ``head`` holds what an earlier attempt found in ``done`` of ``total`` steps."""

    def estimated(self, estimate: LayerMeasurement) -> None:
        """The quick scan found one estimate, or a better one of the same layer and level."""

    def measured(self, measurement: LayerMeasurement) -> None:
        """One measurement was made, or a layer passed over as not applicable, and is already on the disk."""


class EarlierRuns(Protocol):
    """Knows runs whose measurements may be taken over."""

    def find(self, content_key: str) -> RunResult | None:
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
    """Work on a finished run; its outcome is a file of the run, and the run keeps its state whatever comes of it."""

    keeps_model: ClassVar[bool] = False
    """Whether it leaves files as large as a model, for which there must be room."""

    kind: ClassVar[type[Any]]
    """Of the record that it leaves."""

    run_id: str

    @property
    def is_short(self) -> bool:
        """Whether it takes less than about a minute on usual networks, and goes to the lane of short jobs."""
        return True

    @property
    @abstractmethod
    def key(self) -> str:
        """Names the file of the outcome: the same for the same question, whoever asks."""

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
        """Return what is kept in ``folder``, or None before it is."""
        kept: OutcomeT_co | None = folder.load(self.kind, self.kept_key(folder))
        return kept

    @property
    def job_id(self) -> str:
        """Names the job; no run has a colon in its id."""
        return f"{self.run_id}:{type(self).__name__}:{self.key}"

    def carry_out(self, context: TaskContext) -> OutcomeT_co:
        """Return the outcome, found now or before.

        Raises:
            NotFound: the run is not finished.
            InvalidInput: the model, the images or what is asked for cannot be used.
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
    """Return what names the file of an outcome: the same for the same question, whoever asks."""
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
"""How repairs are made: proofs and searches of models that were repaired otherwise are not these."""


def open_evaluator(context: TaskContext, other: CompressionConfig | None = None) -> ScheduleEvaluator:
    """Load the model and the images of the run for schedules; ``other`` is how a second run compresses."""
    from senseapp.prove.evaluator import ScheduleEvaluator  # torch loads here, not when the app starts

    progress = context.observer.phase
    progress("Loading the model and the images")
    result = context.folder.load_result()
    return ScheduleEvaluator.open(result, other=other, data_roots=context.data_roots, progress=progress)
