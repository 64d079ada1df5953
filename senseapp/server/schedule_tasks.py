"""Tasks on schedules of a finished run: proof, and the search for the strongest one within a loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from senseapp.core.errors import NotFound
from senseapp.descriptions import BudgetKind, CompressionConfig
from senseapp.records.answers import ChangedAnswers
from senseapp.records.candidate import Delivery
from senseapp.records.deployment import MODEL_FILES
from senseapp.records.schedule import Adapting, Limits, Schedule, StrongestFound, ValidationResult
from senseapp.server.tasks import FinishedRunTask, TaskContext, open_evaluator
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.prove.evaluator import ScheduleEvaluator
    from senseapp.prove.prove import Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(FinishedRunTask[ValidationResult]):
    """Proof of a schedule on held-out images, beside a uniform one of equal cost.

    Attributes:
        repair: whether it is repaired without training, if it measures better so.
        adapting: whether its layers' weights are adapted, if it measures better so.
        other: configuration of the second run's compression, for a schedule of two runs.
    """

    keeps_model: ClassVar[bool] = True

    schedule: Schedule
    repair: bool = True
    adapting: Adapting = "off"
    other: CompressionConfig | None = None

    @property
    def is_short(self) -> bool:
        """Whether no weights are adapted, which takes minutes."""
        return self.adapting == "off"

    def find_out(self, context: TaskContext) -> ValidationResult:
        """Prove the schedule, and keep the compressed model."""
        return self.prove(open_evaluator(context, self.other), context)[0]

    def prove(self, evaluator: ScheduleEvaluator, context: TaskContext) -> tuple[ValidationResult, Proof]:
        """Prove the schedule on an open evaluator; write the compressed model, and return the result with its proof."""
        from senseapp.prove.prove import prove  # torch loads here

        proven = prove(evaluator, self.schedule, repair=self.repair, adapting=self.adapting)
        return self.written(evaluator, proven, context), proven

    def written(self, evaluator: ScheduleEvaluator, proven: Proof, context: TaskContext) -> ValidationResult:
        """Write the compressed model and its candidates into the folder; return the proof with the sizes of files."""
        from senseapp.prove.deliver import weights_answers, weights_candidates
        from senseapp.reconstruct.write import with_file_sizes, write_compressed

        context.observer.phase("Writing the compressed model")
        target = context.folder.compressed_model(self.key)
        files, notes = write_compressed(proven.applied, target, proven.example, uploaded=evaluator.onnx)
        if proven.changed is not None:
            context.folder.save(self.key, proven.changed)
        validation = with_file_sizes(proven.result, files, proven.dense)
        validation = replace(validation, notes=(*validation.notes, *notes))
        delivery = Delivery(candidates=weights_candidates(evaluator, proven, validation, files, self.key))
        context.folder.save(self.key, delivery)
        if (answers := weights_answers(evaluator, proven)) is not None:
            context.folder.save_answers(delivery.candidates[0].file, answers)
        return validation

    def changed(self, folder: RunFolder) -> ChangedAnswers | None:
        """Return which answers the proven model changes; None where that is unknown."""
        return folder.load(ChangedAnswers, self.key)

    def files(self, folder: RunFolder) -> tuple[Path, ...]:
        """Return the files of the compressed model, the plain state dict first; raises NotFound before it is proven."""
        weights = folder.compressed_model(self.key)
        if self.outcome(folder) is None or not weights.is_file():
            raise NotFound("This schedule is not proven yet, so there is no compressed model. Check it first.")
        return tuple(path for form in MODEL_FILES if (path := weights.with_suffix(form.suffix)).is_file())


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLimit:
    """Tolerated loss, and the budget that is tightened up to it.

    Attributes:
        kind: the budget that is tightened.
        allowed_drop: in the unit of ``metric``: a fraction for accuracies, nats for loss and KL.
        repair: whether schedules are repaired without training, if they measure better so.
    """

    kind: BudgetKind
    allowed_drop: float
    metric: str
    repair: bool
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class StrongestSearch(FinishedRunTask[StrongestFound]):
    """Search for the strongest schedule within a tolerated loss."""

    drop: DropLimit

    @property
    def is_short(self) -> bool:
        """False: it measures up to seven whole schedules."""
        return False

    def find_out(self, context: TaskContext) -> StrongestFound:
        """Search; raises InfeasibleBudget if even the gentlest schedule loses more."""
        from senseapp.prove.recommend import strongest_schedule  # torch loads here

        return strongest_schedule(
            open_evaluator(context),
            self.drop.kind,
            self.drop.allowed_drop,
            metric=self.drop.metric,
            repair=self.drop.repair,
            limits=self.drop.limits,
        )
