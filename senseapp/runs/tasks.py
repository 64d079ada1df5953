"""Tasks for the job queue: what each is given and tells, and those of finished runs: proof, file, search, histogram."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from senseapp.compressions import BudgetKind, CompressionConfig
from senseapp.core.codec import dumps, encode
from senseapp.core.disk import replace_file
from senseapp.core.errors import InvalidSpec, MeasurementFailed, NotFound
from senseapp.records.changed_answers import ChangedAnswers
from senseapp.records.deployment import Deployment, DeploySettings
from senseapp.records.diagnosis import Diagnosis
from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.measurement import LayerMeasurement, Reused, SensitivityResult
from senseapp.records.model_files import MODEL_FILES
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import Adapting, Limits, Schedule, StrongestFound, ValidationResult
from senseapp.records.spec import HistogramSpec
from senseapp.runs.session import OpenSession, load_engine, open_local_session
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.schedules.prove import Proven

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
    @abstractmethod
    def key(self) -> str:
        """Names the file of the outcome: the same for the same question, whoever asks."""

    @abstractmethod
    def find_out(self, context: TaskContext) -> OutcomeT_co:
        """Do the work and return the outcome; the engine is loaded."""

    def outcome(self, folder: RunFolder) -> OutcomeT_co | None:
        """Return what is kept in ``folder``, or None before it is."""
        kept: OutcomeT_co | None = folder.load(self.kind, self.key)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramTask(FinishedRunTask[QuantizationHistogram]):
    """What is to be looked at: which tensor, on which grid."""

    kind: ClassVar[type] = QuantizationHistogram

    spec: HistogramSpec

    @property
    def key(self) -> str:
        """Names its file."""
        return key_of(dumps(self.spec))

    def find_out(self, context: TaskContext) -> QuantizationHistogram:
        """Look at the tensor."""
        from senseapp.engine.histograms import histogram_of

        result = context.folder.load_result()
        return histogram_of(result, self.spec, data_roots=context.data_roots, progress=context.observer.phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramWall(FinishedRunTask[tuple[QuantizationHistogram, ...]]):
    """The same tensor of several layers, found in the same passes; each is kept as what :class:`HistogramTask` finds.

    Attributes:
        spec: of each, but for its layer.
        layers: their names.
    """

    kind: ClassVar[type] = QuantizationHistogram

    spec: HistogramSpec
    layers: tuple[str, ...]

    @property
    def key(self) -> str:
        """Names the question; no file has this name."""
        return key_of(f"{dumps(self.spec)} layers={self.layers}")

    def part(self, layer: str) -> HistogramTask:
        """Return the task of one layer."""
        return HistogramTask(run_id=self.run_id, spec=replace(self.spec, layer=layer))

    def made(self, folder: RunFolder) -> tuple[QuantizationHistogram, ...]:
        """Return those that are kept in ``folder``."""
        known = (self.part(layer).outcome(folder) for layer in self.layers)
        return tuple(each for each in known if each is not None)

    def outcome(self, folder: RunFolder) -> tuple[QuantizationHistogram, ...] | None:
        """Return the histograms, or None before all of them are kept."""
        made = self.made(folder)
        return made if len(made) == len(self.layers) else None

    def find_out(self, context: TaskContext) -> tuple[QuantizationHistogram, ...]:
        """Look at those that are missing; raises MeasurementFailed once the others are kept, if some have none."""
        from senseapp.engine.histograms import histograms_of

        known = {each.spec.layer for each in self.made(context.folder)}
        missing = [layer for layer in self.layers if layer not in known]
        result, progress = context.folder.load_result(), context.observer.phase
        found = histograms_of(result, self.spec, missing, data_roots=context.data_roots, progress=progress)
        refusals = [each for each in found.values() if isinstance(each, MeasurementFailed)]
        for layer, each in found.items():
            if isinstance(each, QuantizationHistogram):
                context.folder.save(self.part(layer).key, each)
        if refusals:
            more = f" {len(refusals) - 1} more of the layers have none either." if len(refusals) > 1 else ""
            raise MeasurementFailed(f"{refusals[0]}{more}")
        return self.made(context.folder)

    def keep(self, folder: RunFolder, found: tuple[QuantizationHistogram, ...]) -> None:
        """Do nothing: each is kept as soon as it is made."""


REPAIR = "matched"
"""How repairs are made: proofs and searches of models that were repaired otherwise are not these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(FinishedRunTask[ValidationResult]):
    """What is to be proven: a schedule, on images that the curves have not seen, beside a uniform one of equal cost.

    Attributes:
        repair: whether it is repaired without training, where it measures better so.
        adapting: whether its layers are given new weights, where it measures better so.
        other: how the second run compresses, where the schedule was made from two.
    """

    kind: ClassVar[type] = ValidationResult
    keeps_model: ClassVar[bool] = True

    schedule: Schedule
    repair: bool = True
    adapting: Adapting = "off"
    other: CompressionConfig | None = None

    @property
    def key(self) -> str:
        """Names its files."""
        adapting = "" if self.adapting == "off" else f" adapting={self.adapting}"
        repair = REPAIR if self.repair else False
        return key_of(f"{_text_of(self.schedule)} repair={repair}{_second(self.other)}{adapting}")

    def find_out(self, context: TaskContext) -> ValidationResult:
        """Prove the schedule, and keep the compressed model too."""
        from senseapp.schedules.prove import validate  # torch loads here

        proven = validate(
            context.folder.load_result(),
            self.schedule,
            repair=self.repair,
            adapting=self.adapting,
            other=self.other,
            data_roots=context.data_roots,
            progress=context.observer.phase,
        )
        return self.written(proven, context)

    def written(self, proven: Proven, context: TaskContext) -> ValidationResult:
        """Write the compressed model into the folder, and return what was measured with the sizes of its files."""
        from senseapp.schedules.write import with_file_sizes, write_compressed

        context.observer.phase("Writing the compressed model")
        files, notes = write_compressed(proven.applied, context.folder.compressed_model(self.key), proven.example)
        if proven.changed is not None:
            context.folder.save(self.key, proven.changed)
        validation = with_file_sizes(proven.result, files, proven.dense)
        return replace(validation, notes=(*validation.notes, *notes))

    def changed(self, folder: RunFolder) -> ChangedAnswers | None:
        """Return which answers the proven model changes; None where that is unknown."""
        return folder.load(ChangedAnswers, self.key)

    def files(self, folder: RunFolder) -> tuple[Path, ...]:
        """Return the files of the compressed model, the plain state dict first; raises NotFound before it is proven."""
        weights = folder.compressed_model(self.key)
        if self.outcome(folder) is None or not weights.is_file():
            raise NotFound("This schedule is not proven yet, so there is no compressed model. Check it first.")
        return tuple(path for form in MODEL_FILES if (path := weights.with_suffix(form.suffix)).is_file())


def _text_of(schedule: Schedule) -> str:
    asked = encode(schedule)
    del asked["data"]["file_notes"]  # younger than proofs that people keep; notes say the same
    return json.dumps(asked, allow_nan=False, separators=(",", ":"))


def _second(other: CompressionConfig | None) -> str:
    return f" other={other}" if other else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployTask(FinishedRunTask[Deployment]):
    """What is to be written for a runtime and measured in it: a schedule, and how.

    Attributes:
        other: how the second run compresses, where the schedule was made from two.
    """

    kind: ClassVar[type] = Deployment
    keeps_model: ClassVar[bool] = True

    schedule: Schedule
    settings: DeploySettings
    other: CompressionConfig | None = None

    @property
    def key(self) -> str:
        """Names its files."""
        return key_of(f"{_text_of(self.schedule)} {self.settings}{_second(self.other)}")

    def find_out(self, context: TaskContext) -> Deployment:
        """Write the file and measure it."""
        from senseapp.schedules.deploy import deploy
        from senseapp.schedules.evaluator import ScheduleEvaluator  # torch loads here

        folder, progress = context.folder, context.observer.phase
        progress("Loading the model and the images")
        evaluator = ScheduleEvaluator.open(
            folder.load_result(), other=self.other, data_roots=context.data_roots, progress=progress
        )
        deployed = deploy(evaluator, self.schedule, self.settings)
        replace_file(folder.deployed(self.key), deployed.content)
        return deployed.record

    def file(self, folder: RunFolder) -> Path:
        """Return the file; raises NotFound before it is written."""
        path = folder.deployed(self.key)
        if self.outcome(folder) is None or not path.is_file():
            raise NotFound("There is no such file yet. Make it first.")
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLimit:
    """How much may be lost, and what is tightened until that much is.

    Attributes:
        kind: the budget that is tightened.
        allowed_drop: in the unit of ``metric``: a fraction for accuracies, nats for loss and KL.
        repair: whether schedules are repaired without training, where they measure better so.
    """

    kind: BudgetKind
    allowed_drop: float
    metric: str
    repair: bool
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class StrongestSearch(FinishedRunTask[StrongestFound]):
    """One such search in the results of a run."""

    kind: ClassVar[type] = StrongestFound

    drop: DropLimit

    @property
    def key(self) -> str:
        """Names its file."""
        drop, limits = self.drop, self.drop.limits
        asked = (
            *(drop.kind, drop.allowed_drop, drop.metric, drop.repair and REPAIR),
            *(limits.min_level, limits.max_level, sorted(limits.layers.items()), sorted(limits.fixed.items())),
        )
        return key_of(repr(asked))

    def find_out(self, context: TaskContext) -> StrongestFound:
        """Search; raises InfeasibleBudget where even the gentlest schedule drops more."""
        from senseapp.schedules.evaluator import ScheduleEvaluator
        from senseapp.schedules.strongest import strongest_schedule  # torch loads here, not when the app starts

        progress = context.observer.phase
        progress("Loading the model and the images")
        return strongest_schedule(
            ScheduleEvaluator.open(context.folder.load_result(), data_roots=context.data_roots, progress=progress),
            self.drop.kind,
            self.drop.allowed_drop,
            metric=self.drop.metric,
            repair=self.drop.repair,
            limits=self.drop.limits,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationTask(FinishedRunTask[Recommendation]):
    """The recommendation for a run, whose proof is kept like any other.

    ``allowed_drop`` is in the unit of the metric that people judge the model by; None is what that metric tolerates.
    """

    kind: ClassVar[type] = Recommendation
    keeps_model: ClassVar[bool] = True

    allowed_drop: float | None = None

    @property
    def key(self) -> str:
        """Names its file."""
        return key_of(f"recommendation allowed={self.allowed_drop} repair={REPAIR}")

    def proof(self, found: Recommendation) -> Verification | None:
        """Return the task whose outcome is the proof of what is recommended; None where nothing is."""
        return None if found.schedule is None else Verification(run_id=self.run_id, schedule=found.schedule)

    def find_out(self, context: TaskContext) -> Recommendation:
        """Look for it, and keep its proof and the compressed model."""
        from senseapp.schedules.evaluator import ScheduleEvaluator
        from senseapp.schedules.recommend import recommend  # torch loads here

        folder, progress = context.folder, context.observer.phase
        progress("Loading the model and the images")
        evaluator = ScheduleEvaluator.open(folder.load_result(), data_roots=context.data_roots, progress=progress)
        found = recommend(evaluator, allowed_drop=self.allowed_drop)
        proof = self.proof(found.record)
        if proof is None or found.proven is None:
            return found.record
        validation = proof.written(found.proven, context)
        proof.keep(folder, validation)
        return replace(found.record, validation=validation)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAnswers(FinishedRunTask[ChangedAnswers]):
    """Which of the run's images are answered differently with one layer, or coupled group, compressed alone.

    ``level`` is a fraction, or bits.
    """

    kind: ClassVar[type] = ChangedAnswers

    layer: str
    level: float

    @property
    def key(self) -> str:
        """Names its file."""
        return key_of(f"changed answers layer={self.layer} level={self.level!r}")

    def find_out(self, context: TaskContext) -> ChangedAnswers:
        """Compress the layer and compare answers; raises InvalidSpec for a task whose outputs are no answers."""
        from senseapp.schedules.changed_answers import changed_answers
        from senseapp.schedules.evaluator import ScheduleEvaluator
        from senseapp.schedules.problem import manual_schedule  # torch loads here

        result, progress = context.folder.load_result(), context.observer.phase
        progress("Loading the model and the images")
        evaluator = ScheduleEvaluator.open(result, data_roots=context.data_roots, progress=progress)
        progress(f"Comparing the answers with {self.layer} compressed")
        applied = evaluator.apply(manual_schedule(result, {self.layer: self.level}))
        subject = f"{self.layer} at {result.compression.scale.text(self.level)}"
        found = changed_answers(evaluator, applied, evaluator.images.curves, subject=subject)
        if found is None:
            raise InvalidSpec("The outputs of this model name no answers that could change.")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisTask(FinishedRunTask[Diagnosis]):
    """Why a layer, or coupled group, is fragile at a ``level`` (a fraction, or bits), and what would help."""

    kind: ClassVar[type] = Diagnosis

    layer: str
    level: float

    @property
    def key(self) -> str:
        """Names its file."""
        return key_of(f"diagnosis layer={self.layer} level={self.level!r} repair={REPAIR}")

    def find_out(self, context: TaskContext) -> Diagnosis:
        """Look at the layer, and measure remedies."""
        from senseapp.schedules.diagnosis import diagnose
        from senseapp.schedules.evaluator import ScheduleEvaluator  # torch loads here

        result, progress = context.folder.load_result(), context.observer.phase
        progress("Loading the model and the images")
        evaluator = ScheduleEvaluator.open(result, data_roots=context.data_roots, progress=progress)
        return diagnose(evaluator, self.layer, self.level)
