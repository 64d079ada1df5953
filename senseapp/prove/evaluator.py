"""The model and the images of one run, loaded again to prove schedules: carries them out, repairs and judges."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor, nn

from senseapp import __version__
from senseapp.compressions.base import ChannelCompressor, CompressionRequest, build_compressor
from senseapp.core.errors import InvalidSchedule
from senseapp.core.steps import Progress, ignore_progress
from senseapp.data.images import ImageSet, PreparedImages, draw_order
from senseapp.data.load import images_for
from senseapp.descriptions import CompressionConfig
from senseapp.measure.context import MeasurementContext
from senseapp.measure.plan import Layout, lay_out, micro_batches, settle_kernels, split
from senseapp.measure.reuse import add_images, add_weights
from senseapp.measure.sweep import CALIBRATION_IMAGES
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.onnx.metadata import told_of
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.profile import profile_model
from senseapp.networks.sources.load import load_model
from senseapp.networks.trace import EXAMPLE_IMAGES
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.reconstruct.adapt.blocks import TunedBlocks
from senseapp.reconstruct.adapt.pruned import Reconstruction
from senseapp.reconstruct.adapt.sequential_pass import SequentialPass
from senseapp.reconstruct.adapt.weights import Adaptation
from senseapp.reconstruct.apply import AppliedModel, apply_schedule, configs_for
from senseapp.reconstruct.repair import Matching, Reference, matching_of
from senseapp.records.inputs import LEAST_HELD_OUT, MOST_HELD_OUT
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup, ModelProfile
from senseapp.records.schedule import Adapting, Schedule
from senseapp.records.spec import REPAIR_IMAGES, SensitivitySpec
from senseapp.runtimes.base import Exporter, Runtime, runtime_for
from senseapp.tasks import Task, task_named


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofImages:
    """The images of a run: those that its curves were measured on, and those to prove a schedule on.

    The latter are others, where there are enough; ``note`` says which. Calibration images are taken from the former.
    With ``measured``, the layers were measured on both, so that a schedule knows them, and only fitting does not.
    """

    curves: ImageSet
    proof: ImageSet
    note: str
    measured: bool = False

    @property
    def are_apart(self) -> bool:
        """Whether nothing is fitted to the proof images."""
        return self.proof is not self.curves

    @property
    def held_out(self) -> bool:
        """Whether the run has not measured its layers on the proof images either."""
        return self.are_apart and not self.measured


def curves_and_others(
    load: Callable[[int | None, int], ImageSet], wanted: int | None, seed: int, *, measured: int, made_up: bool = False
) -> tuple[ImageSet, ImageSet]:
    """Return the images that the curves of a run were measured on, and others of the same set; these may be too few.

    ``load`` returns so many images, or all, drawn by a seed. The run was to draw ``wanted`` of them by ``seed``, None
    for all but a share, and ``measured`` its curves on so many; more can be drawn of random ones, which are
    ``made_up``.
    """
    if wanted is None:
        images = load(None, seed)
        curves, others = split(images, seed)
        if len(curves) != measured:  # the run is older than the split, or the folder has changed
            curves, others = images, images.subset([])
        return curves, others
    curves = load(wanted, seed)
    if made_up:
        return curves, load(max(wanted, LEAST_HELD_OUT), seed + 1)
    others, seen = load(wanted + MOST_HELD_OUT, seed), set(curves.names)  # a longer draw begins with the shorter one
    if not others.indicative:
        others = others.subset([index for index, name in enumerate(others.names) if name not in seen])
    return curves, others


def load_proof_images(result: RunResult, model: LoadedModel, data_roots: tuple[Path, ...] = ()) -> ProofImages:
    """Load the images of a run again, and find those that its curves have not seen."""
    spec = result.spec

    def load(count: int | None, seed: int) -> ImageSet:
        task = task_named(spec.model.task)
        return images_for(model, spec.data, task=task, num_samples=count, seed=seed, data_roots=data_roots)

    settings, made_up = spec.sensitivity, spec.data.kind == "random"
    curves, proof = curves_and_others(
        load, settings.num_samples, settings.seed, measured=result.num_samples, made_up=made_up
    )
    if len(proof) >= LEAST_HELD_OUT:
        return ProofImages(curves=curves, proof=proof, note=f"Checked on {len(proof)} images not used above.")
    note = (
        f"Measured on the {len(curves)} images that the curves were measured on, since fewer than {LEAST_HELD_OUT} "
        "others are left: expect slightly more damage on new images."
    )
    return ProofImages(curves=curves, proof=curves, note=note)


def couplings_of(model: nn.Module, result: RunResult) -> tuple[CoupledGroup, ...]:
    """Return which layers of ``model``, the network of ``result``, shrink together; as slow as the start of a run."""
    config, seed = result.compression, result.spec.sensitivity.seed
    if not config.description.removes_channels:
        return ()
    drawn = torch.randn(EXAMPLE_IMAGES, *result.profile.input_shape, generator=torch.Generator().manual_seed(seed))
    images = drawn.to(next(model.parameters()).device)
    layers = profile_model(model, images).layers
    request = CompressionRequest(model=model, layers=layers, calibration=(images,), seed=seed)
    return cast(ChannelCompressor, build_compressor(config, request)).couplings()


@dataclass
class ScheduleEvaluator:
    """The uncompressed model of a run, ``dense``, beside the images to prove schedules on.

    ``configs`` are how each kind of compression is carried out; ``onnx`` is the uploaded file that the model was read
    from, None for others. ``progress`` is told each step, and images as they are measured.
    """

    result: RunResult
    images: ProofImages
    dense: MeasurementContext
    profile: ModelProfile
    configs: Mapping[str, CompressionConfig]
    class_names: tuple[str, ...] = ()
    onnx: OpenedOnnx | None = None
    progress: Progress = field(default_factory=Progress)
    _judges: dict[int, Judge] = field(default_factory=dict, init=False)
    _exporters: dict[str, Exporter] = field(default_factory=dict, init=False)
    _originals: dict[str, bytes] = field(default_factory=dict, init=False)

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
    ) -> Self:
        """Load the model and the images of ``result`` again, where they are not given.

        ``other`` is how a second run compresses, whose levels schedules may hold too; images are read from
        ``data_roots`` only, if any are named; what ``progress`` raises ends the work.

        Raises InvalidInput if images cannot be loaded any more, or the model is not the one that was measured.
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

    def told(self, thresholds: tuple[float, float] | None = None) -> dict[str, str]:
        """Return :func:`.told_of` of the run, as it was measured: what its files say of themselves."""
        proof = self.images.proof
        return told_of(proof.preprocessing if isinstance(proof, PreparedImages) else None, self.class_names, thresholds)

    @property
    def _spec(self) -> SensitivitySpec:
        return self.result.spec.sensitivity

    def apply(self, schedule: Schedule) -> AppliedModel:
        """Return the model compressed as ``schedule`` says; see :func:`apply_schedule`."""
        applied = apply_schedule(
            self.dense.model,
            schedule,
            profile=self.profile,
            configs=self.configs,
            calibration=self.calibration(),
            seed=self._spec.seed,
        )
        lay_out(applied.model, self.dense.layout)  # compressed weights come in the default memory order
        return applied

    @cached_property
    def couplings(self) -> tuple[CoupledGroup, ...]:
        """Layers that shrink together: :func:`couplings_of` this model."""
        return couplings_of(self.dense.model, self.result)

    def calibration(self) -> list[Tensor]:
        """Return the images that the run's data-driven criteria and activation ranges looked at, in batches."""
        return self.dense.arranged(self.images.curves, 0, min(CALIBRATION_IMAGES, len(self.images.curves)))

    @cached_property
    def repair_images(self) -> ImageSet:
        """The curves' images that repairs are fitted to, in random order: all, or :data:`REPAIR_IMAGES` of them."""
        curves = self.images.curves
        return curves.subset(draw_order(len(curves), len(curves), self._spec.seed)[:REPAIR_IMAGES])

    @cached_property
    def _repair_spans(self) -> list[tuple[int, int]]:
        """Start and stop of each batch: as large as memory allows, none of them in both halves."""
        count = len(self.repair_images)
        largest = max((call.output_bytes for call in self.dense.trace.calls), default=1) // self.dense.trace.batch_size
        # The largest output of a batch takes at most 256 MiB; a pass holds a few times that.
        most = max(1, 256 * 2**20 // max(1, largest))
        return [
            span
            for low, high in ((0, count // 2), (count // 2, count))
            if high > low
            for span in micro_batches(low, high, math.ceil((high - low) / math.ceil((high - low) / most)))
        ]

    @property
    def repair_halves(self) -> tuple[tuple[range, tuple[int, int]], ...]:
        """Of each half of :attr:`repair_images`: the places of its batches in :attr:`reference`, its start and stop."""
        spans, count = self._repair_spans, len(self.repair_images)
        first = sum(low < count // 2 for low, _ in spans)
        return (range(first), (0, count // 2)), (range(first, len(spans)), (count // 2, count))

    @cached_property
    def reference(self) -> Reference:
        """Moments of the uncompressed model on :attr:`repair_images`, measured before it is changed."""
        arranged = [
            replace(self.dense, layout=replace(self.dense.layout, micro_batch=high - low)).arranged(
                self.repair_images, low, high
            )[0]
            for low, high in self._repair_spans
        ]
        return Reference(self.dense.model, arranged)

    def matching(self, applied: AppliedModel) -> Matching:
        """Return what repairs the statistics of ``applied``."""
        scale = all(config.scales_per_channel for config in self.configs.values())
        return matching_of(applied, self.reference, scale=scale)

    @property
    def usual_adapting(self) -> Adapting:
        """Default adaptation of the run's schedules: as in the measurement of its layers."""
        return "minutes" if self._spec.adapted else "off"

    def adaptation(self, applied: AppliedModel, adapting: Adapting = "minutes") -> SequentialPass | None:
        """Return what gives the layers of ``applied`` new weights; None where it has no such layers."""
        batches = self.reference.batches
        if applied.kept_channels:
            fitted = Reconstruction(self.dense, applied, batches, self.matching(applied), progress=self.progress)
            return fitted if fitted.readers else None
        adaptation = Adaptation(self.dense, applied, batches, seed=self._spec.seed, progress=self.progress)
        if not adaptation.layers:
            return None
        if adapting == "best":
            return TunedBlocks(self.dense, adaptation, batches, progress=self.progress)
        return adaptation

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
            self._judges[id(images)] = judge  # which keeps the images, so that no others come to lie at their address
        return self._judges[id(images)]

    def judged(
        self, applied: AppliedModel, images: ImageSet | None = None, start: int = 0, stop: int | None = None
    ) -> Judgement:
        """Run a compressed model on ``images`` from ``start`` to ``stop``, by default on all those for proofs."""
        judge = self.judge(self.images.proof if images is None else images)
        with applied.active():  # its layers' inputs are rounded if the schedule says so
            return judge.judged(replace(self.dense, model=applied.model), start, stop)

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
            self.progress(f"Writing the original as a file for {runtime.description.label}")
            self._originals[name] = self.exporter(runtime)(self.dense.model)
        return self._originals[name]
