"""Tasks that look into a finished run, and tasks on its schedules: proof, and the search for the strongest one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions import BudgetKind, CompressionConfig
from senseapp.descriptions.runtimes import usual_runtime
from senseapp.records.answers import ChangedAnswers
from senseapp.records.candidate import Delivery
from senseapp.records.deployment import LayerTimes
from senseapp.records.layer_findings import Diagnosis, Int8Timing, QuantizationHistogram
from senseapp.records.schedule import Adapting, Limits, Schedule, StrongestFound, ValidationResult
from senseapp.records.spec import HistogramSpec
from senseapp.server.tasks import EvaluatorTask, FinishedRunTask, TaskContext

if TYPE_CHECKING:
    from senseapp.prove.evaluator import ScheduleEvaluator
    from senseapp.prove.prove import Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramTask(FinishedRunTask[QuantizationHistogram]):
    """The histogram of one tensor on a grid."""

    spec: HistogramSpec

    def find_out(self, context: TaskContext) -> QuantizationHistogram:
        """Compute the histogram."""
        from senseapp.measure.histograms import histogram_of

        result = context.folder.load_result()
        return histogram_of(result, self.spec, data_roots=context.data_roots, progress=context.observer.phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAnswers(EvaluatorTask[ChangedAnswers]):
    """The images of the run whose answers change with one layer, or coupled group, compressed alone.

    ``level`` is a fraction, or bits.
    """

    layer: str
    level: float

    def make(self, evaluator: ScheduleEvaluator, context: TaskContext) -> ChangedAnswers:
        """Compress the layer and compare answers; raises InvalidSpec for a task whose outputs are no answers."""
        from senseapp.prove.answers import changed_answers
        from senseapp.solve.problem import manual_schedule  # torch loads here

        result = evaluator.result
        context.observer.phase(f"Comparing the answers with {self.layer} compressed")
        applied = evaluator.apply(manual_schedule(result, {self.layer: self.level}))
        subject = f"{self.layer} at {result.compression.scale.text(self.level)}"
        curves = evaluator.images.curves
        before, after = evaluator.judge(curves).original.outputs, evaluator.judged(applied, curves).outputs
        task, names = evaluator.task, evaluator.class_names
        found = changed_answers(before, after, curves, task=task, names=names, subject=subject)
        if found is None:
            raise InvalidSpec("The outputs of this model name no answers that could change.")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisTask(EvaluatorTask[Diagnosis]):
    """Reasons why a layer, or coupled group, is fragile at a ``level`` (a fraction, or bits), and remedies."""

    layer: str
    level: float

    def make(self, evaluator: ScheduleEvaluator, context: TaskContext) -> Diagnosis:
        """Diagnose the layer, and measure remedies."""
        from senseapp.prove.diagnosis import diagnose  # torch loads here

        return diagnose(evaluator, self.layer, self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingTask(EvaluatorTask[LayerTimes]):
    """Times of the layers of a run's network on this machine at the levels of its compression."""

    threads: int = 1
    batch: int = 1
    runtime: str = field(default_factory=usual_runtime)

    def make(self, evaluator: ScheduleEvaluator, context: TaskContext) -> LayerTimes:
        """Write the network and time its layers."""
        from senseapp.prove.timed import open_timed  # torch loads here

        return open_timed(evaluator, evaluator.runtime(self.runtime), threads=self.threads, batch=self.batch).times


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Trial(EvaluatorTask[Int8Timing]):
    """Time of a run's network all in int8 on this machine, beside float, before a file is searched for."""

    threads: int = 1
    batch: int = 1
    runtime: str = field(default_factory=usual_runtime)

    def make(self, evaluator: ScheduleEvaluator, context: TaskContext) -> Int8Timing:
        """Write the network in float and in int8, and run both in turns."""
        from senseapp.prove.file_times import time_int8  # torch loads here

        runtime = evaluator.runtime(self.runtime)
        network, few = evaluator.original_file(runtime), evaluator.calibration()[:1]
        evaluator.progress("Timing the original and the 8-bit network")
        return time_int8(runtime, network, few, threads=self.threads, batch=self.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(EvaluatorTask[ValidationResult]):
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

    def make(self, evaluator: ScheduleEvaluator, context: TaskContext) -> ValidationResult:
        """Prove the schedule, and keep the compressed model."""
        from senseapp.prove.prove import prove  # torch loads here

        proven = prove(evaluator, self.schedule, repair=self.repair, adapting=self.adapting)
        return self.written(evaluator, proven, context)

    def written(self, evaluator: ScheduleEvaluator, proven: Proof, context: TaskContext) -> ValidationResult:
        """Write the compressed model and its candidates into the folder; return the proof with the sizes of files."""
        from senseapp.prove.deliver import weights_answers, weights_candidates
        from senseapp.reconstruct.write import with_file_sizes, write_compressed

        context.observer.phase("Writing the compressed model")
        target = context.folder.compressed_model(self.key)
        files, notes = write_compressed(
            proven.applied, target, proven.example, uploaded=evaluator.onnx, told=evaluator.told()
        )
        if proven.changed is not None:
            context.folder.save(self.key, proven.changed)
        validation = with_file_sizes(proven.result, files, proven.dense)
        validation = replace(validation, notes=(*validation.notes, *notes))
        delivery = Delivery(candidates=weights_candidates(evaluator, proven, validation, files, self.key))
        context.folder.save(self.key, delivery)
        if (answers := weights_answers(evaluator, proven)) is not None:
            context.folder.save_answers(delivery.candidates[0].file, answers)
        return validation


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLimit:
    """Tolerated loss, in the unit of ``metric``, and the ``kind`` of budget that is tightened up to it.

    With ``repair``, schedules are repaired without training, if they measure better so.
    """

    kind: BudgetKind
    allowed_drop: float
    metric: str
    repair: bool
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class StrongestSearch(EvaluatorTask[StrongestFound]):
    """Search for the strongest schedule within a tolerated loss."""

    drop: DropLimit

    @property
    def is_short(self) -> bool:
        """False: it measures up to seven whole schedules."""
        return False

    def make(self, evaluator: ScheduleEvaluator, context: TaskContext) -> StrongestFound:
        """Search; raises InfeasibleBudget if even the gentlest schedule loses more."""
        from senseapp.prove.recommend import strongest_schedule  # torch loads here

        return strongest_schedule(
            evaluator,
            self.drop.kind,
            self.drop.allowed_drop,
            metric=self.drop.metric,
            repair=self.drop.repair,
            limits=self.drop.limits,
        )
