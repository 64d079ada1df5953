"""Tasks that look into a finished run: histograms, changed answers, fragile layers, times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions.runtimes import usual_runtime
from senseapp.records.answers import ChangedAnswers
from senseapp.records.deployment import LayerTimes
from senseapp.records.layer_findings import Diagnosis, Int8Timing, QuantizationHistogram
from senseapp.records.spec import HistogramSpec
from senseapp.server.tasks import FinishedRunTask, TaskContext, open_evaluator

if TYPE_CHECKING:
    from senseapp.prove.evaluator import ScheduleEvaluator


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
class LayerAnswers(FinishedRunTask[ChangedAnswers]):
    """The images of the run whose answers change with one layer, or coupled group, compressed alone.

    ``level`` is a fraction, or bits.
    """

    layer: str
    level: float

    def find_out(self, context: TaskContext) -> ChangedAnswers:
        """Compress the layer and compare answers; raises InvalidSpec for a task whose outputs are no answers."""
        from senseapp.prove.answers import changed_answers
        from senseapp.solve.problem import manual_schedule  # torch loads here

        evaluator = open_evaluator(context)
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
class DiagnosisTask(FinishedRunTask[Diagnosis]):
    """Reasons why a layer, or coupled group, is fragile at a ``level`` (a fraction, or bits), and remedies."""

    layer: str
    level: float

    def find_out(self, context: TaskContext) -> Diagnosis:
        """Diagnose the layer, and measure remedies."""
        from senseapp.prove.diagnosis import diagnose  # torch loads here

        return diagnose(open_evaluator(context), self.layer, self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingTask(FinishedRunTask[LayerTimes]):
    """Times of the layers of a run's network on this machine at the levels of its compression."""

    threads: int = 1
    batch: int = 1
    runtime: str = field(default_factory=usual_runtime)

    def find_out(self, context: TaskContext) -> LayerTimes:
        """Write the network and time its layers."""
        from senseapp.prove.timed import open_timed  # torch loads here

        evaluator = open_evaluator(context)
        return open_timed(evaluator, evaluator.runtime(self.runtime), threads=self.threads, batch=self.batch).times


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Trial(FinishedRunTask[Int8Timing]):
    """Time of a run's network all in int8 on this machine, beside float, before a file is searched for."""

    threads: int = 1
    batch: int = 1
    runtime: str = field(default_factory=usual_runtime)

    def find_out(self, context: TaskContext) -> Int8Timing:
        """Write the network in float and in int8, and run both in turns."""
        return self.tried(open_evaluator(context))

    def tried(self, evaluator: ScheduleEvaluator) -> Int8Timing:
        """Do the same with an open evaluator."""
        from senseapp.prove.file_times import time_int8  # torch loads here

        runtime = evaluator.runtime(self.runtime)
        network, few = evaluator.original_file(runtime), evaluator.calibration()[:1]
        evaluator.progress("Timing the network in float and in int8")
        return time_int8(runtime, network, few, threads=self.threads, batch=self.batch)
