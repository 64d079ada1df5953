"""Tasks that look into a finished run: histograms, changed answers, fragile layers, answers of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from senseapp.core.errors import InvalidSpec, NotFound
from senseapp.core.files import storage_errors
from senseapp.records.answers import ChangedAnswers, FileAnswers
from senseapp.records.layer_findings import Diagnosis, QuantizationHistogram
from senseapp.records.spec import HistogramSpec
from senseapp.server.tasks import FinishedRunTask, TaskContext, open_evaluator
from senseapp.store.run_folder import key_in


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersTask(FinishedRunTask[FileAnswers]):
    """What one file of a run answers to each proof image.

    Attributes:
        file: its name in the run's folder.
    """

    kind: ClassVar[type] = FileAnswers

    file: str

    @property
    def key(self) -> str:
        """Names the record: the key in the name of the file."""
        return key_in(self.file)

    def find_out(self, context: TaskContext) -> FileAnswers:
        """Run the file and the original network in its runtime.

        Raises:
            NotFound: the run has no such file for a runtime on this server.
            InvalidSpec: the outputs of the model are no answers.
        """
        from senseapp.prove.answers import file_answers  # torch loads here
        from senseapp.prove.judge import Judge, JudgingImages

        candidate = next((each for each in context.folder.candidates() if each.runs and each.file == self.file), None)
        if candidate is None:
            raise NotFound("This file is not on this server: only its figures are. Make it again.")
        with storage_errors(self.file):
            content = context.folder.candidate_file(candidate).read_bytes()
        evaluator = open_evaluator(context)
        runtime = evaluator.runtime(candidate.runtime.name)
        proof, original = evaluator.images.proof, runtime.open(evaluator.original_file(runtime))
        evaluator.progress("Running the original and the file on the images that measured it")
        images, outputs = JudgingImages.of_set(proof, evaluator.dense), evaluator.profile.num_classes
        judge = Judge(evaluator.task, images, original, num_outputs=outputs)
        before, after = judge.original.outputs, judge.judged(runtime.open(content)).outputs
        found = file_answers(before, after, proof, task=evaluator.task, names=evaluator.class_names)
        if found is None:
            raise InvalidSpec("The outputs of this model name no answers that could differ.")
        return found
