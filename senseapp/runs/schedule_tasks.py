"""Tasks about schedules of a finished run: proof, file for a runtime, search, recommendation."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from senseapp.compressions import BudgetKind, CompressionConfig
from senseapp.core.codec import encode
from senseapp.core.disk import replace_file
from senseapp.core.errors import NotFound
from senseapp.records.changed_answers import ChangedAnswers
from senseapp.records.deployment import Deployment, DeploySettings
from senseapp.records.layer_times import LayerTimes
from senseapp.records.model_files import MODEL_FILES
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import Adapting, Limits, Schedule, StrongestFound, ValidationResult
from senseapp.runs.tasks import REPAIR, FinishedRunTask, TaskContext, key_of, open_evaluator
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.schedules.prove import Proven


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
    def is_short(self) -> bool:
        """Whether no weights are adapted, which takes minutes."""
        return self.adapting == "off"

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
    def is_short(self) -> bool:
        """Whether no weights are adapted, which takes minutes."""
        return self.settings.adapting == "off"

    @property
    def key(self) -> str:
        """Names its files."""
        return key_of(f"{_text_of(self.schedule)} {self.settings}{_second(self.other)}")

    def find_out(self, context: TaskContext) -> Deployment:
        """Write the file and measure it."""
        from senseapp.schedules.deploy import deploy  # torch loads here

        deployed = deploy(open_evaluator(context, self.other), self.schedule, self.settings)
        replace_file(context.folder.deployed(self.key), deployed.content)
        return deployed.record

    def file(self, folder: RunFolder) -> Path:
        """Return the file; raises NotFound before it is written."""
        path = folder.deployed(self.key)
        if self.outcome(folder) is None or not path.is_file():
            raise NotFound("There is no such file yet. Make it first.")
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingTask(FinishedRunTask[LayerTimes]):
    """How long the layers of the network of a run take on this machine at the levels of its compression."""

    kind: ClassVar[type] = LayerTimes

    threads: int = 1
    batch: int = 1

    @property
    def key(self) -> str:
        """Names its file."""
        return key_of(f"times threads={self.threads} batch={self.batch}")

    def find_out(self, context: TaskContext) -> LayerTimes:
        """Write the network and time its layers."""
        from senseapp.schedules.timed import open_timed  # torch loads here

        evaluator = open_evaluator(context)
        with open_timed(evaluator, threads=self.threads, batch=self.batch) as network:
            return network.times


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
    def is_short(self) -> bool:
        """No: it measures up to seven whole schedules."""
        return False

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
        from senseapp.schedules.strongest import strongest_schedule  # torch loads here

        return strongest_schedule(
            open_evaluator(context),
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
        if found.schedule is None or found.validation is None:
            return None
        return Verification(run_id=self.run_id, schedule=found.schedule, adapting=found.validation.adapting)

    def find_out(self, context: TaskContext) -> Recommendation:
        """Look for it, and keep its proof and the compressed model."""
        from senseapp.schedules.recommend import recommend  # torch loads here

        found = recommend(open_evaluator(context), allowed_drop=self.allowed_drop)
        proof = self.proof(found.record)
        if proof is None or found.proven is None:
            return found.record
        validation = proof.written(found.proven, context)
        proof.keep(context.folder, validation)
        return replace(found.record, validation=validation)
