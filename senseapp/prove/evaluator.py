"""The model and the images of one run, ready to prove schedules: proof images, judges and a reconstructor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from senseapp import __version__
from senseapp.core.errors import InvalidSchedule
from senseapp.core.steps import Progress, ignore_progress
from senseapp.data.images import ImageSet
from senseapp.descriptions import CompressionConfig
from senseapp.measure.context import MeasurementContext
from senseapp.measure.plan import Layout, settle_kernels
from senseapp.measure.reuse import add_images, add_weights
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.sources.load import load_model
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.prove.proof_images import ProofImages, load_proof_images
from senseapp.reconstruct.apply import AppliedModel, configs_for
from senseapp.reconstruct.reconstructor import Reconstructor
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.runtimes.base import Exporter, Runtime, runtime_for
from senseapp.tasks import Task, task_named


@dataclass
class ScheduleEvaluator:
    """The uncompressed model of a run beside the images to prove schedules on.

    Attributes:
        dense: the uncompressed model with the proof images.
        configs: how each kind of compression is carried out.
        reconstruction: carries schedules out, and repairs them on the images of the curves.
        class_names: of the outputs; empty where unknown.
        onnx: the uploaded file that the model was read from; None for others.
        progress: is told each step, and images as they are measured.
    """

    result: RunResult
    images: ProofImages
    dense: MeasurementContext
    profile: ModelProfile
    configs: Mapping[str, CompressionConfig]
    class_names: tuple[str, ...] = ()
    onnx: OpenedOnnx | None = None
    progress: Progress = field(default_factory=Progress)
    reconstruction: Reconstructor = field(init=False)
    _judges: dict[int, tuple[ImageSet, Judge]] = field(default_factory=dict, init=False)
    _exporters: dict[str, Exporter] = field(default_factory=dict, init=False)
    _originals: dict[str, bytes] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.reconstruction = Reconstructor(
            dense=self.dense,
            curves=self.images.curves,
            profile=self.profile,
            configs=self.configs,
            spec=self.result.spec.sensitivity,
            progress=self.progress,
        )

    @classmethod
    def open(
        cls,
        result: RunResult,
        *,
        other: CompressionConfig | None = None,
        data_roots: tuple[Path, ...] = (),
        model: LoadedModel | None = None,
        images: ProofImages | None = None,
        progress: Callable[[str], None] = ignore_progress,
    ) -> ScheduleEvaluator:
        """Load the model and the images of ``result`` again, where they are not given.

        ``other`` is how a second run compresses, whose levels schedules may hold too; images are read from
        ``data_roots`` only, if any are named; what ``progress`` raises ends the work.

        Raises:
            InvalidInput: they cannot be loaded any more, or the model is not the one that was measured.
        """
        loaded = load_model(result.spec.model) if model is None else model
        parts = load_proof_images(result, loaded, data_roots) if images is None else images
        spec, task = result.spec.sensitivity, task_named(result.spec.model.task)
        dense = MeasurementContext.prepare(loaded.module, parts.proof, device=spec.device, own=model is None, task=task)
        settle_kernels(dense.device)
        # As the run's passes were laid out, but in float32: a proof is not rounded.
        dense.take(Layout(channels_last=result.passes.channels_last, micro_batch=result.passes.micro_batch))
        profile = replace(dense.profile, title=result.profile.title)
        if [layer.name for layer in profile.layers] != [layer.name for layer in result.profile.layers]:
            raise InvalidSchedule(f"{loaded.title} is not the model that the run measured: its layers differ.")
        return cls(
            result=result,
            images=parts,
            dense=dense,
            profile=profile,
            configs=configs_for(spec.compression, *((other,) if other else ())),
            class_names=tuple(loaded.class_names or parts.curves.class_names),
            onnx=loaded.onnx,
            progress=progress if isinstance(progress, Progress) else Progress(progress),
        )

    @property
    def task(self) -> Task:
        """What outputs and labels mean."""
        return self.dense.task

    def judge(self, images: ImageSet) -> Judge:
        """Return what compares networks with the uncompressed model on ``images``; its outputs are kept."""
        if id(images) not in self._judges:
            judge = Judge(
                self.task,
                JudgingImages.of_set(images, self.dense),
                self.dense,
                num_outputs=self.profile.num_classes,
                progress=self.progress,
            )
            if images is self.images.proof:
                judge.require_answers()
            # The images are kept as well, so that no others can come to lie at their address.
            self._judges[id(images)] = images, judge
        return self._judges[id(images)][1]

    def judged(
        self, applied: AppliedModel, images: ImageSet | None = None, start: int = 0, stop: int | None = None
    ) -> Judgement:
        """Run a compressed model on ``images`` from ``start`` to ``stop``, by default on all those for proofs."""
        judge = self.judge(self.images.proof if images is None else images)
        with self.reconstruction.network(applied) as network:
            return judge.judged(network, start, stop)

    def runtime(self, name: str) -> Runtime:
        """Return the runtime of that name, as it handles this network; raises InvalidSpec where there is none."""
        return runtime_for(name, self.onnx)

    def exporter(self, runtime: Runtime) -> Exporter:
        """Return what writes this network and compressed copies of it for ``runtime``."""
        name = runtime.description.name
        if name not in self._exporters:
            self._exporters[name] = runtime.exporter(self.dense.model, self.dense.batches(0, 1)[0].cpu())
        return self._exporters[name]

    def original_key(self, runtime: Runtime) -> str:
        """Return one hash over what decides a file of the uncompressed network: weights, images, runtime, machine."""
        task = self.result.spec.model.task
        digest = hashlib.sha256(f"{__version__} {runtime.description.name} {runtime.machine()} {task}".encode())
        add_weights(digest, self.dense.model)
        for images in (self.images.curves, self.images.proof):
            add_images(digest, images)
        return digest.hexdigest()

    def original_file(self, runtime: Runtime) -> bytes:
        """Return the uncompressed network as a float file of ``runtime``; it is written once."""
        name = runtime.description.name
        if name not in self._originals:
            self.progress(f"Writing the original network as {runtime.description.file_title}")
            self._originals[name] = self.exporter(runtime).write(self.dense.model)
        return self._originals[name]
