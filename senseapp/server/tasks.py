"""Tasks for the job queue: their context and observer, and the base class of those on finished runs."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, cast, get_args

from senseapp.core.codec import to_plain
from senseapp.core.steps import StepTitle
from senseapp.descriptions import CompressionConfig
from senseapp.records.measurement import LayerMeasurement, RunResult
from senseapp.records.spec import RunSpec
from senseapp.server.machine import load_engine
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.measure.session import Session
    from senseapp.prove.evaluator import ScheduleEvaluator


OpenSession: TypeAlias = "Callable[..., Session]"
"""Loads the model and the images of a spec; takes the arguments of :meth:`.Session.open`."""


def open_local_session(spec: RunSpec, **options: Any) -> Session:
    """Open the engine's own session, which loads torch."""
    load_engine()
    from senseapp.measure.session import Session  # torch loads here, not when the app starts

    return Session.open(spec, **options)


class RunObserver:
    """Receives events from the thread of the task, and ignores them; raising from any call stops the task there."""

    def phase(self, sentence: str) -> None:
        """A long step begins; an empty sentence only allows to stop."""

    def opened(
        self, head: RunResult, *, done: int, total: int, predicted_seconds: float, content_key: str = ""
    ) -> None:
        """The model is loaded; ``head`` holds the results of an earlier attempt, ``done`` of ``total`` steps.

        ``content_key`` is a hash of all that decides the measurements; empty for a run that is resumed.
        """

    def measured(self, measurement: LayerMeasurement) -> None:
        """One measurement was made, or a layer skipped as not applicable, and is already on disk.

        Or the quick scan has one estimate (``measurement.estimated``), or a better one of the same layer and level.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """A run of the same owner, whose measurements and files may be reused; without a key only its files."""

    title: str
    folder: Path
    content_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """Context of a task, in any process.

    Attributes:
        folder: of the run; every outcome is a file in it.
        data_roots: folders that images may be read from; empty allows any.
        earlier: other runs of the same owner, the newest first.
        open_session: loads the model and the images of a run.
    """

    folder: RunFolder
    observer: RunObserver
    data_roots: tuple[Path, ...] = ()
    earlier: tuple[EarlierRun, ...] = ()
    open_session: OpenSession = open_local_session


class RunTask(ABC):
    """One piece of long work that goes through the queue and leaves files in a run's folder."""

    run_id: str

    @property
    def job_id(self) -> str:
        """Id of the job, equal for equal work; that of the run itself is its id, all others have a colon."""
        return self.run_id

    @property
    def most_bytes(self) -> float:
        """Limit of memory beyond the engine that foreign files set; infinite where only that of all jobs holds."""
        return math.inf

    @property
    def if_lost(self) -> str:
        """What is said where its process ends by itself; empty where measurements are kept."""
        return ""

    @abstractmethod
    def carry_out(self, context: TaskContext) -> object:
        """Do the work and keep its outcome in the folder; finished work is not repeated."""


OutcomeT_co = TypeVar("OutcomeT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRunTask(RunTask, Generic[OutcomeT_co]):
    """Work on a finished run; its outcome is a file of the run, whose state does not change."""

    keeps_model: ClassVar[bool] = False
    """Whether it leaves files as large as a model, which require free space."""

    run_id: str

    @property
    def kind(self) -> type[Any]:
        """Type of its record: the parameter of the base class."""
        bases: tuple[Any, ...] = type(self).__orig_bases__  # type: ignore[attr-defined]  # of every generic class
        return cast(type[Any], get_args(bases[0])[0])

    @property
    def is_short(self) -> bool:
        """Whether it takes less than about a minute on usual networks, as where no weights are adapted."""
        return getattr(self, "adapting", "off") == "off"

    @property
    def key(self) -> str:
        """Key of the outcome's file: equal for equal requests of any user about any run."""
        settings = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "run_id"}
        asked = {name: json.dumps(to_plain(value), sort_keys=True) for name, value in settings.items()}
        return key_of(f"{type(self).__name__} {json.dumps(asked, sort_keys=True)}")

    @abstractmethod
    def find_out(self, context: TaskContext) -> OutcomeT_co:
        """Do the work and return the outcome; the engine is loaded."""

    def outcome(self, folder: RunFolder) -> OutcomeT_co | None:
        """Return the outcome stored in ``folder``, or None."""
        kept: OutcomeT_co | None = folder.load(self.kind, self.key)
        return kept

    @property
    def job_id(self) -> str:
        """Id of the job; no run has a colon in its id."""
        return f"{self.run_id}:{type(self).__name__}:{self.key}"

    def carry_out(self, context: TaskContext) -> OutcomeT_co:
        """Return the outcome, computed now or before; NotFound where the run is not finished."""
        known = self.outcome(context.folder)
        if known is not None:
            return known
        load_engine()
        found = self.find_out(context)
        context.folder.save(self.key, found)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorTask(FinishedRunTask[OutcomeT_co]):
    """Work on the model and the images of a finished run, and of a second one whose compression is its ``other``."""

    def find_out(self, context: TaskContext) -> OutcomeT_co:
        """Load the model and the images, do the work and return the outcome."""
        return self.make(open_evaluator(context, getattr(self, "other", None), for_files=self.keeps_model), context)

    @abstractmethod
    def make(self, evaluator: ScheduleEvaluator, context: TaskContext) -> OutcomeT_co:
        """Do the work with an open evaluator."""


def key_of(question: str) -> str:
    """Return a hash of a text, as it is in names of files."""
    # 64 bits: of a billion outcomes of a run two would rarely meet.
    return hashlib.sha256(question.encode()).hexdigest()[:16]


def open_evaluator(
    context: TaskContext, other: CompressionConfig | None = None, *, for_files: bool = False
) -> ScheduleEvaluator:
    """Load the model and the images of the run for schedules; ``other`` configures a second run's compression.

    ``for_files`` keeps some images from fitting, on which all files of the run are measured.
    """
    from senseapp.prove.evaluator import ScheduleEvaluator  # torch loads here, not when the app starts
    from senseapp.prove.search_images import with_held_out

    progress = context.observer.phase
    progress(StepTitle.READ)
    result = context.folder.load_result()
    evaluator = ScheduleEvaluator.open(result, other=other, data_roots=context.data_roots, progress=progress)
    return with_held_out(evaluator) if for_files else evaluator
