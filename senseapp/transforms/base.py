"""What every compression promises to the code that measures it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from senseapp.compressions import CompressionConfig
from senseapp.layers import CallTrace
from senseapp.results import LayerProfile
from senseapp.results.coupling import CoupledGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is compressed as one: a layer, or a coupled group of layers.

    Attributes:
        layer: the name it is reported by; for a group, the first member in execution order.
        members: compressible layers that change together, ``layer`` included.
        modules: dotted names of every module whose parameters, buffers or input change (norms included);
            everything that runs before the first use of any of them is unchanged.
        group: id of the group; empty for a single layer.
    """

    layer: str
    members: tuple[str, ...]
    modules: tuple[str, ...]
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a compression truly did.

    Attributes:
        achieved_level: the level reached (fraction, or bits).
        removed_params: weights zeroed or removed, over all members; 0 for quantization.
        removed_macs: multiply-accumulates for one image that are gone or multiply a zero weight.
    """

    achieved_level: float
    removed_params: int = 0
    removed_macs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A compression whose costly part is done.

    Attributes:
        applied: what it does.
        active: returns a context inside which the model is compressed; may be entered as often as wanted.
        weight: returns what stands in for the layer's weight inside; None where anything else changes there.
        release: lets go of the memory that only spares computing a little again, until it is needed.
    """

    applied: Applied
    active: Callable[[], AbstractContextManager[object]]
    weight: Callable[[], torch.Tensor] | None = None
    release: Callable[[], None] = lambda: None


class Compressor(Protocol):
    """One compression of one model: lists what can be compressed, and compresses it for a while.

    Attributes:
        targets: in execution order of their first use.
        not_applicable: layer name to the sentence that says why it has no measurement.
    """

    targets: Sequence[Target]
    not_applicable: Mapping[str, str]

    def compress(self, target: Target, level: float) -> AbstractContextManager[Applied]:
        """Compress ``target`` to ``level`` in place; restore every tensor and attribute on exit, also on error.

        Raises:
            MeasurementFailed: this target cannot be compressed to this level, with the reason.
        """
        ...


@runtime_checkable
class WeightCompressor(Compressor, Protocol):
    """A compressor that changes the values of weights (and inputs) but no shape."""

    def prepare(self, target: Target, level: float) -> Prepared:
        """Compute the compressed weight once, for any number of :meth:`Prepared.active` blocks.

        Raises:
            MeasurementFailed: this target cannot be compressed to this level, with the reason.
        """
        ...


@runtime_checkable
class ChannelCompressor(Compressor, Protocol):
    """A compressor that removes channels, and can say which without removing them.

    Where it takes ``ratios``, they are by any member of a group, whose members must agree; a ratio of 0 or of less than
    one channel leaves a group as it is.
    """

    def readers(self, target: Target) -> Sequence[str]:
        """Return the names of the layers that read the channels of ``target``."""
        ...

    def removed_inputs(self, target: Target, level: float) -> tuple[Applied, Mapping[str, torch.Tensor]]:
        """Return what ``level`` would do, and which input channels (indices) each reader would lose.

        Raises:
            MeasurementFailed: this target cannot be compressed to this level, with the reason.
        """
        ...

    def couplings(self) -> tuple[CoupledGroup, ...]:
        """Return what shrinks with each target."""
        ...

    def kept_channels(self, ratios: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
        """Return which output channels :meth:`prune` would keep, by layer or norm that would lose some.

        Raises:
            InvalidSchedule: as :meth:`prune` would.
        """
        ...

    def prune(self, ratios: Mapping[str, float]) -> dict[str, Applied]:
        """Remove channels of several groups for good, in place and all at once, ranked on the model as it is.

        Returns:
            What each group lost, by its first member. Savings of groups that share a layer overlap and do not add up.

        Raises:
            InvalidSchedule: a layer that cannot be pruned has a ratio, or coupled layers have different ones.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionRequest:
    """What a compressor is built from.

    Attributes:
        model: the network, in ``eval()`` mode.
        layers: the layers selected, in execution order.
        calibration: batches (N, C, H, W) that data-driven criteria and activation ranges may look at.
        seed: of everything drawn at random.
        trace: a pass of the model that was watched already; None lets those who need one watch it.
    """

    model: nn.Module
    layers: tuple[LayerProfile, ...]
    calibration: tuple[torch.Tensor, ...]
    seed: int = 0
    trace: CallTrace | None = None


def build_compressor(config: CompressionConfig, request: CompressionRequest) -> Compressor:
    """Return the compressor that the description of ``config`` names."""
    built: Compressor = config.description.load_compressor()(config, request)
    return built
