"""Schedules applied to the uncompressed network of a run, and repair of the compressed network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from senseapp.core.steps import Progress
from senseapp.data.images import ImageSet
from senseapp.descriptions import CompressionConfig
from senseapp.measure.context import MeasurementContext
from senseapp.measure.plan import lay_out, micro_batches
from senseapp.measure.sweep import CALIBRATION_IMAGES
from senseapp.networks.network import Network
from senseapp.reconstruct.adapt.blocks import TunedBlocks
from senseapp.reconstruct.adapt.pruned import Reconstruction
from senseapp.reconstruct.adapt.sequential_pass import SequentialPass
from senseapp.reconstruct.adapt.weights import Adaptation
from senseapp.reconstruct.apply import AppliedModel, apply_schedule
from senseapp.reconstruct.repair import Matching, Reference, matching_of
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Adapting, Schedule
from senseapp.records.spec import REPAIR_IMAGES, SensitivitySpec


@dataclass
class Reconstructor:
    """Carries schedules out in copies of one network, and repairs them on the images of its curves.

    Attributes:
        dense: the uncompressed network.
        curves: the images that the run's curves were measured on.
        configs: how each kind of compression is carried out.
        spec: what the run measured.
        progress: is told each step.
    """

    dense: MeasurementContext
    curves: ImageSet
    profile: ModelProfile
    configs: Mapping[str, CompressionConfig]
    spec: SensitivitySpec
    progress: Progress = field(default_factory=Progress)

    def apply(self, schedule: Schedule) -> AppliedModel:
        """Return the model compressed as ``schedule`` says; see :func:`apply_schedule`."""
        applied = apply_schedule(
            self.dense.model,
            schedule,
            profile=self.profile,
            configs=self.configs,
            calibration=self.calibration(),
            seed=self.spec.seed,
        )
        lay_out(applied.model, self.dense.layout)  # compressed weights come in the default memory order
        return applied

    @contextmanager
    def network(self, applied: AppliedModel) -> Iterator[Network]:
        """Yield the network of ``applied``; in the block its layers' inputs are rounded if the schedule says so."""
        with applied.active():
            yield replace(self.dense, model=applied.model)

    def calibration(self) -> list[Tensor]:
        """Return the images that the run's data-driven criteria and activation ranges looked at, in batches."""
        return self.dense.arranged(self.curves, 0, min(CALIBRATION_IMAGES, len(self.curves)))

    @cached_property
    def repair_images(self) -> ImageSet:
        """The curves' images that repairs are fitted to, in random order: all, or :data:`REPAIR_IMAGES` of them."""
        generator = torch.Generator().manual_seed(self.spec.seed)
        order: list[int] = torch.randperm(len(self.curves), generator=generator).tolist()
        return self.curves.subset(order[:REPAIR_IMAGES])

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
        """Moments of the uncompressed model on :attr:`repair_images`, measured before it is changed."""
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
        """Default adaptation of the run's schedules: as in the measurement of its layers."""
        return "minutes" if self.spec.adapted else "off"

    def adaptation(self, applied: AppliedModel, adapting: Adapting = "minutes") -> SequentialPass | None:
        """Return what gives the layers of ``applied`` new weights; None where it has no such layers."""
        batches = self.reference.batches
        if applied.kept_channels:
            fitted = Reconstruction(self.dense, applied, batches, self.matching(applied), progress=self.progress)
            return fitted if fitted.readers else None
        adaptation = Adaptation(self.dense, applied, batches, seed=self.spec.seed, progress=self.progress)
        if not adaptation.layers:
            return None
        if adapting == "best":
            return TunedBlocks(self.dense, adaptation, batches, progress=self.progress)
        return adaptation

    def repair(self, applied: AppliedModel) -> tuple[str, ...]:
        """Repair ``applied`` in place on :attr:`repair_images`, whether or not it gains; returns sentences on it."""
        matching = self.matching(applied)
        with applied.active():
            return matching.sentences(fitted=matching.fit())
