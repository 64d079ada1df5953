"""The product's search for int8 files, on images that a benchmark brings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from senseapp.compressions import QuantizationConfig
from senseapp.core.steps import OptionalSteps, Progress
from senseapp.data.images import TensorImages
from senseapp.descriptions.runtimes import usual_runtime
from senseapp.measure.context import MeasurementContext
from senseapp.networks.loaded import LoadedModel
from senseapp.prove.deploy import original_source
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.prove.int8_files import Int8Files, int8_files
from senseapp.records.deployment import DeploySettings
from senseapp.records.measurement import RunResult
from senseapp.records.spec import ModelSpec, RunSpec, SensitivitySpec
from senseapp.runtimes.base import Runtime
from senseapp.tasks import task_named


@dataclass(frozen=True)
class Searching:
    """A search with its usual settings for files of ``model`` that do least harm on ``images``.

    ``spec`` is where the model comes from, and names its task.
    """

    model: LoadedModel
    images: TensorImages
    spec: ModelSpec
    steps: OptionalSteps

    @classmethod
    def of(
        cls, model: LoadedModel, images: TensorImages, spec: ModelSpec | None = None, *, aloud: bool = False
    ) -> Searching:
        """Return a search; with ``aloud`` it prints what it does."""
        progress = Progress(lambda sentence: print(sentence, flush=True)) if aloud else Progress()
        return cls(model, images, spec or ModelSpec(), OptionalSteps(progress))

    @property
    def runtime(self) -> Runtime:
        """The usual runtime, as it handles this network."""
        return self._evaluator.runtime(usual_runtime())

    @property
    def content(self) -> bytes:
        """The network as a float file."""
        return self._evaluator.original_file(self.runtime)

    @cached_property
    def _evaluator(self) -> ScheduleEvaluator:
        few = self.images.subset([0, 1] if len(self.images) > 1 else [0])
        profile = MeasurementContext.prepare(self.model.module, few, task=task_named(self.spec.task)).profile
        result = RunResult(
            spec=RunSpec(model=self.spec, sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8.0,))),
            profile=replace(profile, title=self.model.title),
            metric="",
            baseline={},
            measurements=(),
            num_samples=len(self.images),
        )
        both = ProofImages(curves=self.images, proof=self.images, note="")
        return ScheduleEvaluator.open(result, model=self.model, images=both)

    @cached_property
    def found(self) -> Int8Files:
        """What the search finds."""
        names = {layer.name for layer in self._evaluator.profile.layers}
        layers = self.runtime.layers_of_nodes(self.content, names)
        source = original_source(self._evaluator, self.runtime)
        return int8_files(self._evaluator, self.runtime, source, layers, DeploySettings(), self.steps)
