"""Tasks that look into a finished run: histograms, changed answers, fragile layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from senseapp.core.errors import InvalidSpec
from senseapp.records.answers import ChangedAnswers
from senseapp.records.layer_findings import Diagnosis, QuantizationHistogram
from senseapp.records.spec import HistogramSpec
from senseapp.server.tasks import FinishedRunTask, TaskContext, open_evaluator


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramTask(FinishedRunTask[QuantizationHistogram]):
    """The histogram of one tensor on a grid."""

    kind: ClassVar[type] = QuantizationHistogram

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

    kind: ClassVar[type] = ChangedAnswers

    layer: str
    level: float

    def find_out(self, context: TaskContext) -> ChangedAnswers:
        """Compress the layer and compare answers; raises InvalidSpec for a task whose outputs are no answers."""
        from senseapp.prove.answers import changed_answers
        from senseapp.solve.problem import manual_schedule  # torch loads here

        evaluator = open_evaluator(context)
        result = evaluator.result
        context.observer.phase(f"Comparing the answers with {self.layer} compressed")
        applied = evaluator.reconstruction.apply(manual_schedule(result, {self.layer: self.level}))
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

    kind: ClassVar[type] = Diagnosis

    layer: str
    level: float

    def find_out(self, context: TaskContext) -> Diagnosis:
        """Diagnose the layer, and measure remedies."""
        from senseapp.prove.diagnosis import diagnose  # torch loads here

        return diagnose(open_evaluator(context), self.layer, self.level)
