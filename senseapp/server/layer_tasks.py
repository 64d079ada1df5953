"""Tasks that look into a finished run: histograms, answers that change, why a layer is fragile, answers of a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from senseapp.core.codec import dumps
from senseapp.core.errors import InvalidSpec, MeasurementFailed, NotFound
from senseapp.core.files import storage_errors
from senseapp.records.answers import ChangedAnswers, FileAnswers
from senseapp.records.layer_findings import Diagnosis, QuantizationHistogram
from senseapp.records.spec import HistogramSpec
from senseapp.server.tasks import REPAIR, FinishedRunTask, TaskContext, key_of, open_evaluator
from senseapp.store.run_folder import RunFolder, key_in


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
        from senseapp.measure.histograms import histogram_of

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
        from senseapp.measure.histograms import histograms_of

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
        from senseapp.prove.changed_answers import changed_answers
        from senseapp.solve.problem import manual_schedule  # torch loads here

        evaluator = open_evaluator(context)
        result = evaluator.result
        context.observer.phase(f"Comparing the answers with {self.layer} compressed")
        applied = evaluator.apply(manual_schedule(result, {self.layer: self.level}))
        subject = f"{self.layer} at {result.compression.scale.text(self.level)}"
        curves = evaluator.images.curves
        found = changed_answers(evaluator, evaluator.outputs(applied, curves), curves, subject=subject)
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
        from senseapp.prove.diagnosis import diagnose  # torch loads here

        return diagnose(open_evaluator(context), self.layer, self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersTask(FinishedRunTask[FileAnswers]):
    """What one ONNX file of a run answers to each proof image.

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
        """Run the file and the original network in onnxruntime.

        Raises:
            NotFound: the run has no such file for a runtime on this server.
            InvalidSpec: the outputs of the model are no answers.
        """
        from senseapp.prove.file_answers import file_answers
        from senseapp.runtimes.onnxruntime.runtime import RuntimeModel  # torch loads here

        known = {each.file for each in context.folder.candidates() if each.runs}
        path = context.folder.path / self.file
        if self.file not in known or not path.is_file():
            raise NotFound("This file is not on this server: only its figures are. Make it again.")
        evaluator = open_evaluator(context)
        task, proof = evaluator.dense.task, evaluator.images.proof
        images = evaluator.dense.arranged(proof, 0, len(proof))
        with storage_errors(self.file):
            content = path.read_bytes()
        evaluator.progress("Running the original and the file on the held-out images")
        before, after = (
            task.output(RuntimeModel(each).outputs(images)) for each in (evaluator.original_network, content)
        )
        found = file_answers(before, after, proof, task=task, names=evaluator.class_names)
        if found is None:
            raise InvalidSpec("The outputs of this model name no answers that could differ.")
        return found
