"""The model and the images of one run, ready to apply schedules to, repair and measure them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidSchedule, InvalidSpec
from senseapp.core.steps import Progress, ignore_progress
from senseapp.data.images import ImageSet
from senseapp.data.load import load_images
from senseapp.descriptions import CompressionConfig
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.context import MeasurementContext
from senseapp.measure.layout import Layout, lay_out, micro_batches
from senseapp.measure.plan import split
from senseapp.measure.sweep import CALIBRATION_IMAGES
from senseapp.metrics import MetricChange, change_of
from senseapp.metrics.predictions import Predictions, joined
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.sources.load import load_model
from senseapp.reconstruct.adapt.blocks import TunedBlocks
from senseapp.reconstruct.adapt.pruned import Reconstruction
from senseapp.reconstruct.adapt.sequential_pass import SequentialPass
from senseapp.reconstruct.adapt.weights import UPDATES, Adaptation
from senseapp.reconstruct.apply import AppliedModel, apply_schedule, configs_for
from senseapp.reconstruct.repair import Matching, Reference, matching_of
from senseapp.records.inputs import LEAST_HELD_OUT, MOST_HELD_OUT
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Adapting, Schedule
from senseapp.runtimes.onnxruntime.onnx_template import OnnxTemplate
from senseapp.tasks import task_named

REPAIR_IMAGES = 256
"""The most that a repair is fitted to. On EfficientNet-Lite0, 64 and 256 photographs gave the same."""
_ACTIVATION_BYTES = 256 * 2**20  # of the largest output in a batch; what a pass holds is a few times that


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofImages:
    """The images of a run: those that its curves were measured on, and those to prove a schedule on.

    The latter are others, where there are enough; ``note`` says which. Calibration images are taken from the former.
    """

    curves: ImageSet
    proof: ImageSet
    note: str


def load_proof_images(result: RunResult, model: LoadedModel, data_roots: tuple[Path, ...] = ()) -> ProofImages:
    """Load the images of a run again, and find those that its curves have not seen."""
    wanted = result.spec.sensitivity.num_samples
    if wanted is None:
        images = _load(result, model, data_roots, None)
        curves, proof = split(images, result.spec.sensitivity.seed)
        if len(curves) != result.num_samples:  # the run is older than the split, or the folder has changed
            curves, proof = images, images.subset([])
    else:
        curves = _load(result, model, data_roots, wanted)
        proof = _others(_more(result, model, data_roots, wanted), curves)
    if len(proof) >= LEAST_HELD_OUT:
        return ProofImages(curves=curves, proof=proof, note=f"Checked on {len(proof)} images not used above.")
    note = (
        f"Measured on the {len(curves)} images that the curves were measured on, since fewer than {LEAST_HELD_OUT} "
        "others are left: expect slightly more damage on new images."
    )
    return ProofImages(curves=curves, proof=curves, note=note)


def _load(
    result: RunResult, model: LoadedModel, data_roots: tuple[Path, ...], count: int | None, *, seed: int = 0
) -> ImageSet:
    return load_images(
        result.spec.data,
        model.preprocessing,
        num_classes=model.num_classes,
        task=task_named(result.spec.model.task),
        num_samples=count,
        seed=result.spec.sensitivity.seed + seed,
        data_roots=data_roots,
        class_names=model.class_names,
        with_labels=not model.fresh_head,
    )


def _more(result: RunResult, model: LoadedModel, data_roots: tuple[Path, ...], drawn: int) -> ImageSet:
    """Return the ``drawn`` images and more: a longer draw with one seed begins with the shorter one."""
    if result.spec.data.kind == "random":
        return _load(result, model, data_roots, max(drawn, LEAST_HELD_OUT), seed=1)
    try:
        return _load(result, model, data_roots, drawn + MOST_HELD_OUT)
    except InvalidSpec:  # there are fewer than that
        return _load(result, model, data_roots, None)


def _others(images: ImageSet, curves: ImageSet) -> ImageSet:
    if images.indicative:
        return images
    seen = set(curves.names)
    return images.subset([index for index, name in enumerate(images.names) if name not in seen])


@dataclass
class ScheduleEvaluator:
    """The uncompressed model of a run beside the images to prove schedules on.

    Attributes:
        dense: the uncompressed model with the proof images.
        configs: how each kind of compression is carried out.
        class_names: of the outputs; empty where unknown.
        progress: is told each step, and images as they are measured.
    """

    result: RunResult
    images: ProofImages
    dense: MeasurementContext
    profile: ModelProfile
    configs: Mapping[str, CompressionConfig]
    class_names: tuple[str, ...] = ()
    progress: Progress = field(default_factory=Progress)
    _baselines: dict[int, tuple[ImageSet, BaselineOutputs]] = field(default_factory=dict, init=False)

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
        # As the run's passes were laid out, but in float32: a proof is not rounded.
        dense.take(Layout(channels_last=result.passes.channels_last, micro_batch=result.passes.micro_batch))
        profile = replace(dense.profile, title=result.profile.title)
        if [layer.name for layer in profile.layers] != [layer.name for layer in result.profile.layers]:
            raise InvalidSchedule(f"{loaded.title} is not the model that the run measured: its layers differ.")
        configs = configs_for(spec.compression, *((other,) if other else ()))
        names = loaded.class_names or parts.curves.class_names
        return cls(result, parts, dense, profile, configs, tuple(names), Progress(progress))

    def apply(self, schedule: Schedule) -> AppliedModel:
        """Return the model compressed as ``schedule`` says; see :func:`apply_schedule`."""
        applied = apply_schedule(
            self.dense.model,
            schedule,
            profile=self.profile,
            configs=self.configs,
            calibration=self.calibration(),
            seed=self.result.spec.sensitivity.seed,
        )
        lay_out(applied.model, self.dense.layout)  # compressed weights come in the default memory order
        return applied

    @cached_property
    def original_network(self) -> bytes:
        """The uncompressed network as float ONNX."""
        self.progress("Writing the original network as ONNX")
        return self.network_of(self.dense.model)

    def network_of(self, model: nn.Module) -> bytes:
        """Return ``model``, which takes this run's images, as float ONNX."""
        return self._template.onnx_of(model)

    @cached_property
    def _template(self) -> OnnxTemplate:
        return OnnxTemplate(self.dense.model, self.dense.batches(0, 1)[0].cpu())

    def calibration(self) -> list[Tensor]:
        """Return the images that the run's data-driven criteria and activation ranges looked at, in batches."""
        curves = self.images.curves
        return self.dense.arranged(curves, 0, min(CALIBRATION_IMAGES, len(curves)))

    @cached_property
    def _shuffled_curves(self) -> tuple[ImageSet, ImageSet]:
        curves = self.images.curves
        generator = torch.Generator().manual_seed(self.result.spec.sensitivity.seed)
        order: list[int] = torch.randperm(len(curves), generator=generator).tolist()
        return curves.subset(order[:REPAIR_IMAGES]), curves.subset(sorted(order[REPAIR_IMAGES:]))

    @property
    def repair_images(self) -> ImageSet:
        """The curves' images that repairs are fitted to, in random order: all, or :data:`REPAIR_IMAGES` of them."""
        return self._shuffled_curves[0]

    @property
    def other_curves(self) -> ImageSet:
        """The other images of the curves."""
        return self._shuffled_curves[1]

    @cached_property
    def _repair_spans(self) -> list[tuple[int, int]]:
        """Start and stop of each batch: as large as memory allows, none of them in both halves."""
        count = len(self.repair_images)
        largest = max((call.output_bytes for call in self.dense.trace.calls), default=1) // self.dense.trace.batch_size
        most = max(1, _ACTIVATION_BYTES // max(1, largest))
        return [
            span
            for low, high in ((0, count // 2), (count // 2, count))
            if high > low
            for span in micro_batches(low, high, math.ceil((high - low) / math.ceil((high - low) / most)))
        ]

    @property
    def repair_halves(self) -> tuple[range, range]:
        """Positions of the batches of :attr:`reference` that hold each half of the images."""
        spans = self._repair_spans
        middle = next(index for index, (low, _) in enumerate(spans) if low >= len(self.repair_images) // 2)
        return range(middle), range(middle, len(spans))

    def span_of(self, batches: range) -> tuple[int, int]:
        """Return start and stop, among :attr:`repair_images`, of consecutive batches of :attr:`reference`."""
        return self._repair_spans[batches[0]][0], self._repair_spans[batches[-1]][1]

    @cached_property
    def reference(self) -> Reference:
        """What the uncompressed model does on :attr:`repair_images`; measured before it is changed."""
        arranged = [
            replace(self.dense, layout=replace(self.dense.layout, micro_batch=high - low)).arranged(
                self.repair_images, low, high
            )[0]
            for low, high in self._repair_spans
        ]
        return Reference(self.dense.model, arranged)

    @property
    def scales_per_channel(self) -> bool:
        """Whether repair may give each output channel of a layer a scale of its own."""
        return all(config.scales_per_channel for config in self.configs.values())

    def matching(self, applied: AppliedModel) -> Matching:
        """Return what repairs ``applied``."""
        return matching_of(applied, self.reference, scale=self.scales_per_channel)

    @property
    def usual_adapting(self) -> Adapting:
        """How schedules of the run are carried out where nobody says otherwise: as their layers were measured."""
        return "minutes" if self.result.spec.sensitivity.adapted else "off"

    def adaptations(self, applied: AppliedModel, adapting: Adapting) -> tuple[SequentialPass | TunedBlocks, ...]:
        """Return the ways to give the layers of ``applied`` new weights, each to be tried; none where it has none."""
        if adapting == "off":
            return ()
        batches, seed = self.reference.batches, self.result.spec.sensitivity.seed
        if applied.kept_channels:
            fitted = Reconstruction(self.dense, applied, batches, self.matching(applied), progress=self.progress)
            return (fitted,) if fitted.readers else ()
        found = [
            Adaptation(self.dense, applied, batches, update, seed=seed, progress=self.progress) for update in UPDATES
        ]
        if not found[0].layers:
            return ()
        tuned = (TunedBlocks(found[-1], self.progress),) if adapting == "best" else ()
        return *found, *tuned

    def repair(self, applied: AppliedModel) -> tuple[str, ...]:
        """Repair ``applied`` in place on :attr:`repair_images`, whether or not it gains; returns sentences on it."""
        matching = self.matching(applied)
        with applied.active():
            return matching.sentences(fitted=matching.fit())

    def measure(self, applied: AppliedModel, images: ImageSet | None = None) -> tuple[MetricChange, ...]:
        """Return the change of every metric, image by image, on ``images``, by default those for proofs."""
        sums = self.sums(applied, self.images.proof if images is None else images)
        return tuple(change_of(name, values) for name, values in sums.items())

    def sums(
        self, applied: AppliedModel, images: ImageSet, start: int = 0, stop: int | None = None
    ) -> dict[str, tuple[float, ...]]:
        """Return the sums, by metric, over ``images`` from ``start`` to ``stop``, that changes are computed from."""
        end = len(images) if stop is None else stop
        baseline = self._baseline(images)
        with applied.active():
            output = self._outputs(replace(self.dense, model=applied.model, images=images), start, end)
        return baseline.moments(output, start, end)

    def baseline_outputs(self, images: ImageSet) -> Predictions:
        """Return the uncompressed model's predictions of ``images``."""
        return self._baseline(images).outputs

    def outputs(self, applied: AppliedModel, images: ImageSet) -> Predictions:
        """Return the predictions of ``applied`` for ``images``."""
        with applied.active():
            return self._outputs(replace(self.dense, model=applied.model, images=images), 0, len(images))

    def _baseline(self, images: ImageSet) -> BaselineOutputs:
        if id(images) not in self._baselines:
            names = self.dense.task.metrics(has_labels=images.labels is not None, num_outputs=self.profile.num_classes)
            outputs = self._outputs(replace(self.dense, images=images), 0, len(images))
            # The images are kept as well, so that no others can come to lie at their address.
            self._baselines[id(images)] = images, BaselineOutputs(outputs, images.labels, names)
        return self._baselines[id(images)][1]

    def _outputs(self, context: MeasurementContext, start: int, stop: int) -> Predictions:
        """Return the predictions of images ``start`` to ``stop``, reporting how many are done before each pass."""
        outputs = []
        for low, high in micro_batches(start, stop, context.layout.micro_batch):
            self.progress.images(low - start, stop - start)
            outputs.append(context.outputs(low, high))
        return joined(outputs)
