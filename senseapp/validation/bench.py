"""One run's model and images, ready to try schedules on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from senseapp.data import ImageSet
from senseapp.errors import InvalidSchedule
from senseapp.evaluate import change_of, metric_names
from senseapp.models.load import load_model
from senseapp.models.loaded import LoadedModel
from senseapp.results import MetricChange, ModelProfile, Schedule, SensitivityResult
from senseapp.sensitivity.layout import Layout, lay_out, micro_batches
from senseapp.sensitivity.tally import Yardstick
from senseapp.sensitivity.workbench import Workbench
from senseapp.spec import CompressionConfig
from senseapp.validation.apply import AppliedModel, apply_schedule, configs_for
from senseapp.validation.progress import Telling
from senseapp.validation.proof_images import ProofImages, load_proof_images
from senseapp.validation.repair import repair

__all__ = ["TestBench"]

_CALIBRATION_IMAGES = 64  # as many as the run looked at
_REPAIR_IMAGES = 256
_REPAIR_BATCH = 64


@dataclass(slots=True)
class TestBench:
    """The uncompressed model of a run beside the images to prove schedules on.

    Attributes:
        result: the run.
        images: its images, in two parts.
        dense: the uncompressed model with the proof images.
        profile: of the model.
        configs: how each kind of compression is carried out.
        telling: is told each step, and images as they are measured.
    """

    __test__ = False  # its name is no invitation to pytest

    result: SensitivityResult
    images: ProofImages
    dense: Workbench
    profile: ModelProfile
    configs: Mapping[str, CompressionConfig]
    telling: Telling = field(default_factory=Telling)
    _yardsticks: dict[int, Yardstick] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        result: SensitivityResult,
        *,
        other: CompressionConfig | None = None,
        data_roots: tuple[Path, ...] = (),
        model: LoadedModel | None = None,
        images: ProofImages | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> TestBench:
        """Load the model and the images of ``result`` again.

        Args:
            result: the run.
            other: how a second run compresses, whose levels schedules may hold too.
            data_roots: folders that images may be read from; empty allows any.
            model: loaded already; None loads the one that the run names.
            images: likewise.
            progress: told what is done; whatever it raises ends the work.

        Raises:
            InvalidInput: the model or the images cannot be loaded any more.
            InvalidSchedule: the model is not the one that the run measured.
        """
        loaded = load_model(result.spec.model) if model is None else model
        parts = load_proof_images(result, loaded, data_roots) if images is None else images
        dense = Workbench.prepare(loaded.module, parts.proof, device=result.spec.sensitivity.device, own=model is None)
        dense.take(_layout_of(result))
        profile = replace(dense.profile, title=result.profile.title)
        if [layer.name for layer in profile.layers] != [layer.name for layer in result.profile.layers]:
            raise InvalidSchedule(f"{loaded.title} is not the model that the run measured: its layers differ.")
        configs = configs_for(result.spec.sensitivity.compression, *((other,) if other else ()))
        return cls(result, parts, dense, profile, configs, Telling(progress) if progress else Telling())

    def apply(self, schedule: Schedule) -> AppliedModel:
        """Return the model compressed as ``schedule`` says; see :func:`apply_schedule`.

        Raises:
            InvalidSchedule: it belongs to another model, or a layer cannot be compressed in that way.
        """
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

    def calibration(self) -> list[Tensor]:
        """Return the images that the run's data-driven criteria and activation ranges looked at, in batches."""
        curves = self.images.curves
        return self.dense.arranged(curves, 0, min(_CALIBRATION_IMAGES, len(curves)))

    def repair(self, applied: AppliedModel) -> tuple[str, ...]:
        """Repair ``applied`` in place on images of the curves, without their labels; see :func:`repair`."""
        return repair(applied, self.dense.model, self.repair_batches(), config=self.configs["quantization"])

    def measure(self, applied: AppliedModel, images: ImageSet | None = None) -> tuple[MetricChange, ...]:
        """Return the change of every metric, paired image by image with the uncompressed model.

        Args:
            applied: the compressed model.
            images: to measure on; None takes those for proofs.
        """
        measured_on = self.images.proof if images is None else images
        yardstick = self._yardstick(measured_on)
        compressed = replace(self.dense, model=applied.model, images=measured_on)
        with applied.active():
            logits = self._outputs(compressed)
        moments = yardstick.moments(logits, 0, len(measured_on))
        return tuple(change_of(name, sums) for name, sums in moments.items())

    def _yardstick(self, images: ImageSet) -> Yardstick:
        if id(images) not in self._yardsticks:
            names = metric_names(has_labels=images.labels is not None, num_classes=self.profile.num_classes)
            baseline = self._outputs(replace(self.dense, images=images))
            self._yardsticks[id(images)] = Yardstick(baseline, images.labels, names)
        return self._yardsticks[id(images)]

    def _outputs(self, workbench: Workbench) -> Tensor:
        """Return the output for all images, telling how many are through before each pass."""
        total = len(workbench.images)
        outputs = []
        for low, high in micro_batches(0, total, workbench.layout.micro_batch):
            self.telling.images(low, total)
            outputs.append(workbench.logits(low, high))
        return torch.cat(outputs)

    def repair_batches(self, most: int = _REPAIR_IMAGES) -> list[Tensor]:
        """Return at most ``most`` images of the curves in batches of one size, so that each image counts alike."""
        curves = self.images.curves
        count = min(most, _REPAIR_IMAGES, len(curves))
        size = min(_REPAIR_BATCH, count)
        number = count // size
        wide = replace(self.dense, layout=replace(self.dense.layout, micro_batch=size))
        return wide.arranged(curves, 0, number * size)


def _layout_of(result: SensitivityResult) -> Layout:
    """Return how the run's passes were laid out, in float32: a proof is not rounded."""
    ran = result.environment
    return Layout(
        channels_last=ran.get("memory_layout") == "channels_last",
        micro_batch=int(ran.get("micro_batch", Layout().micro_batch)),
    )
