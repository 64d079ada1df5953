"""Tasks about one layer of a finished run, or several: histograms, answers that change, why it is fragile."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

from senseapp.core.codec import encode
from senseapp.core.errors import InvalidSpec, MeasurementFailed
from senseapp.records.changed_answers import ChangedAnswers
from senseapp.records.diagnosis import Diagnosis
from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.spec import HistogramSpec
from senseapp.server.tasks import REPAIR, FinishedRunTask, TaskContext, key_fields, key_of, open_evaluator
from senseapp.store.run_folder import RunFolder

_HISTOGRAM = ("layer", "tensor", "bits", "per_channel", "fold", "objective", "num_images")
"""Fields of version 1, in the order in which keys hash them."""


def _text_of(spec: HistogramSpec) -> str:
    asked = key_fields(spec, encode(spec)["data"], _HISTOGRAM)
    return json.dumps({"type": "HistogramSpec", "version": 1, "data": asked}, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramTask(FinishedRunTask[QuantizationHistogram]):
    """What is to be looked at: which tensor, on which grid."""

    kind: ClassVar[type] = QuantizationHistogram

    spec: HistogramSpec

    @property
    def key(self) -> str:
        """Names its file."""
        return key_of(_text_of(self.spec))

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
        return key_of(f"{_text_of(self.spec)} layers={self.layers}")

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
