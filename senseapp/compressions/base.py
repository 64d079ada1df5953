"""Interface of compressions for measurement, and the weights of layers that they change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from senseapp.descriptions import CompressionConfig
from senseapp.networks.profile import CONVOLUTIONS
from senseapp.networks.trace import CallTrace
from senseapp.records.profile import CoupledGroup, LayerProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Unit of compression: a layer, or a coupled group of ``members``, called by the first in execution order.

    ``modules`` are dotted names of every module whose parameters, buffers or input change (norms included); calls
    before the first use of any of them are unchanged. ``group`` is the id of the group; empty for a single layer.
    """

    layer: str
    members: tuple[str, ...]
    modules: tuple[str, ...]
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Effect of a compression, over all members; MACs are those of one image that are removed or multiply a zero."""

    achieved_level: float
    removed_params: int = 0
    removed_macs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGrid:
    """Grid of rounded weights: ``nearest`` of value / scale, times the scale; at most ``largest`` times the scale.

    It is symmetric about 0; ``nearest`` rounds a float32 tensor elementwise. Each output channel has a scale, or, if
    ``shared``, the whole tensor. ``integers``: the grid has no gaps.
    """

    nearest: Callable[[Tensor], Tensor]
    largest: float
    shared: bool = False
    integers: bool = True


KeptWeights = Callable[[Tensor, float], Tensor]
"""Returns a mask of the weights to keep, in the shape of the importances of a split weight (:class:`WeightLayout`; its
kernel may be flat), for a share (0 to 1) of the required zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConstraint:
    """Values that a compressed layer may have: on a ``grid``, with zeros as ``kept`` selects, or both."""

    grid: WeightGrid | None = None
    kept: KeptWeights | None = None

    def __or__(self, other: UpdateConstraint) -> UpdateConstraint:
        """Return the constraint that satisfies both."""
        return UpdateConstraint(grid=other.grid or self.grid, kept=other.kept or self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A compression whose costly part is done: ``weight`` returns the compressed value of ``parameter``.

    ``inputs`` returns a context inside which the layer's inputs are compressed; None if they never are. ``constraint``
    has other weights that are equally compressed. ``scale`` is what the grid's numbers are multiplied by in the weight,
    float32, in its shape with 1 in place of each axis that a scale spans; None if the weight is no such product.
    """

    applied: Applied
    parameter: nn.Parameter
    weight: Callable[[], Tensor]
    inputs: Callable[[], AbstractContextManager[object]] | None = None
    constraint: UpdateConstraint = field(default_factory=lambda: UpdateConstraint())
    scale: Tensor | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compress the model inside the block."""
        with swapped(self.parameter, self.weight()), nullcontext() if self.inputs is None else self.inputs():
            yield


class Compressor(Protocol):
    """One compression of one model: its targets, in execution order, and why other layers cannot be compressed."""

    targets: Sequence[Target]
    not_applicable: Mapping[str, str]

    def compress(self, target: Target, level: float) -> AbstractContextManager[Applied]:
        """Compress ``target`` to ``level`` in place; restore every tensor and attribute on exit, also on error.

        Raises MeasurementFailed if this target cannot be compressed to this level, with the reason.
        """


class WeightCompressor(ABC):
    """A :class:`Compressor` that changes the values of weights (and inputs) but not their shapes."""

    targets: Sequence[Target]
    not_applicable: Mapping[str, str]

    @abstractmethod
    def prepare(self, target: Target, level: float) -> Prepared:
        """Compute the compressed weight once, for any number of :meth:`Prepared.active` blocks."""

    @contextmanager
    def compress(self, target: Target, level: float) -> Iterator[Applied]:
        """Compress ``target`` to ``level`` inside the block."""
        prepared = self.prepare(target, level)
        with prepared.active():
            yield prepared.applied


@runtime_checkable
class ChannelCompressor(Compressor, Protocol):
    """A compressor that removes channels, and can name them without removing them.

    ``ratios`` are keyed by any member of a group, whose members must agree (else InvalidSchedule, as for a layer that
    cannot be pruned); a ratio of 0 or of less than one channel leaves a group unchanged.
    """

    def readers(self, target: Target) -> Sequence[str]:
        """Return the names of the layers that read the channels of ``target``."""

    def removed_inputs(self, target: Target, level: float) -> tuple[Applied, Mapping[str, torch.Tensor]]:
        """Return the effect of ``level``, and the input channels (indices) that each reader would lose."""

    def couplings(self) -> tuple[CoupledGroup, ...]:
        """Return the axes that shrink with each target."""

    def kept_channels(self, ratios: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
        """Return the output channels that :meth:`prune` would keep, by layer or norm that would lose some."""

    def prune(self, ratios: Mapping[str, float]) -> dict[str, Applied]:
        """Remove channels of several groups permanently, in place and at once, ranked on the current model.

        Returns the effect on each group, by its first member; savings of groups that share a layer overlap and do not
        add up.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionRequest:
    """Inputs of a compressor: the network, in ``eval()`` mode, and its selected layers, in execution order.

    ``calibration`` are batches (N, C, H, W) for data-driven criteria and activation ranges; ``trace`` is an existing
    trace of the model, if there is one. In place of settings that choose single weights, ``score`` returns the
    importance of each, in the shape of the module's weight, and ``spanned`` the axes of :class:`WeightLayout` along
    which they are removed together; None: as usual. ``progress`` receives a sentence before each slow step.
    """

    model: nn.Module
    layers: tuple[LayerProfile, ...]
    calibration: Sequence[torch.Tensor]
    seed: int = 0
    trace: CallTrace | None = None
    score: Callable[[Tensor], Tensor] | None = None
    spanned: Callable[[LayerProfile], tuple[int, ...] | None] = lambda _layer: None
    progress: Callable[[str], None] = lambda _sentence: None


def build_compressor(config: CompressionConfig, request: CompressionRequest) -> Compressor:
    """Return the compressor for ``config``."""
    compressor: Compressor = config.description.load_compressor()(config, request)
    return compressor


GROUP, OUTPUT, INPUT, DEPTH, ROW, COLUMN = range(6)
"""Axes of a weight as :meth:`WeightLayout.split` returns it."""
_KERNEL_AXES = COLUMN - INPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayout:
    """Axes of a layer's weight: number of ``groups``, and whether input channels come first (I, O/G, ...)."""

    groups: int = 1
    transposed: bool = False

    def split(self, weight: Tensor) -> Tensor:
        """Return ``weight`` as (G, O/G, I/G, D, H, W), contiguous; missing axes have length 1."""
        first, second, *kernel = weight.shape
        ones = (1,) * (_KERNEL_AXES - len(kernel))
        grouped = weight.reshape(self.groups, first // self.groups, second, *ones, *kernel)
        return (grouped.transpose(OUTPUT, INPUT) if self.transposed else grouped).contiguous()

    def merge(self, split: Tensor, like: Tensor) -> Tensor:
        """Invert :meth:`split`; the result has the shape and strides of ``like``, and its own dtype."""
        grouped = split.transpose(OUTPUT, INPUT) if self.transposed else split
        return torch.empty_like(like, dtype=split.dtype).copy_(grouped.reshape(like.shape))


# Attention with another width of keys or values has one weight per input; other weights multiply all inputs.
_INPUTS_READ = {"q_proj_weight": slice(0, 1), "k_proj_weight": slice(1, 2), "v_proj_weight": slice(2, 3)}
# Suffixes under which torch.nn.utils keeps the stored part of a weight that is recomputed before each call.
_STORED_PARTS = frozenset({"orig", "v", "g"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeight:
    """The weight of one selected layer, called ``attribute`` in ``module``.

    The inputs of ``module`` are the layer's inputs; ``target.modules`` name every owner of the weight if it is tied.
    """

    profile: LayerProfile
    module: nn.Module
    attribute: str
    target: Target

    @property
    def parameter(self) -> nn.Parameter:
        """The current parameter, looked up on each access, as the model may have been cast since."""
        return self.module.get_parameter(self.attribute)

    @property
    def inputs_read(self) -> slice:
        """The inputs of ``module`` that the weight multiplies."""
        return _INPUTS_READ.get(self.attribute, slice(None))

    @property
    def layout(self) -> WeightLayout:
        """The axes of output channels, input channels and groups in the weight's shape."""
        groups = self.module.groups if isinstance(self.module, CONVOLUTIONS) else 1
        return WeightLayout(groups=groups, transposed=self.profile.channel_axis == 1)


def find_weights(model: nn.Module, layers: Sequence[LayerProfile]) -> tuple[dict[str, LayerWeight], dict[str, str]]:
    """Return the compressible weights by layer, in execution order, and why other layers cannot be compressed."""
    owners = _owners(model)
    weights: dict[str, LayerWeight] = {}
    not_applicable: dict[str, str] = {}
    first_user: dict[int, str] = {}
    for profile in layers:
        owner_name, _, attribute = profile.parameter.rpartition(".")
        module = model.get_submodule(owner_name)
        if not profile.runs:
            not_applicable[profile.name] = "The weight was not used in a forward pass, so no output depends on it."
        elif _is_derived(module, attribute):
            not_applicable[profile.name] = (
                "The weight is computed from other parameters at each call (a parametrization such as weight "
                "normalisation), so it cannot be replaced; remove the parametrization first."
            )
        elif (identity := id(module.get_parameter(attribute))) in first_user:
            not_applicable[profile.name] = (
                f"The weight is shared with {first_user[identity]}, which is measured for both."
            )
        else:
            first_user[identity] = profile.name
            target = Target(layer=profile.name, members=(profile.name,), modules=owners[identity])
            weights[profile.name] = LayerWeight(profile=profile, module=module, attribute=attribute, target=target)
    return weights, not_applicable


def _owners(model: nn.Module) -> dict[int, tuple[str, ...]]:
    """Return, by identity of each parameter, the dotted names of the modules that own it."""
    owners: dict[int, tuple[str, ...]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = (*owners.get(id(parameter), ()), name)
    return owners


def _is_derived(module: nn.Module, attribute: str) -> bool:
    """Return whether the weight is recomputed before each forward pass, which would undo swapping it."""
    stem, _, part = attribute.rpartition("_")
    return (
        attribute not in dict(module.named_parameters(recurse=False, remove_duplicate=False))
        or isinstance(module, ParametrizationList)
        or (part in _STORED_PARTS and hasattr(module, stem))
    )


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Disable gradients, but create tensors that can replace parameters, also inside ``inference_mode``."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def swapped(parameter: nn.Parameter, compressed: Tensor) -> Iterator[None]:
    """Set ``parameter`` to ``compressed`` (same shape and dtype) inside the block; restore its own storage on exit.

    The parameter stays the same object, so optimizers, tied modules and names still refer to it, and its own values,
    strides and address are never changed.
    """
    original = parameter.data
    parameter.data = compressed
    try:
        yield
    finally:
        parameter.data = original
