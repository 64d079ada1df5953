"""Finding the weight of a layer, and putting another tensor in its place for a while."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from senseapp.layers.compressible import CONVOLUTIONS
from senseapp.results import LayerProfile
from senseapp.transforms.base import Applied, Prepared, Target
from senseapp.transforms.layout import WeightLayout

# Attention with keys or values of another width has one weight per input; other weights multiply all inputs.
_INPUTS_READ = {"q_proj_weight": slice(0, 1), "k_proj_weight": slice(1, 2), "v_proj_weight": slice(2, 3)}
# Suffixes under which torch.nn.utils keeps the stored part of a weight that is recomputed before each call.
_STORED_PARTS = frozenset({"orig", "v", "g"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeight:
    """The weight of one selected layer.

    Attributes:
        profile: the layer.
        module: the module that owns the weight; its inputs are the layer's inputs.
        attribute: the weight's name in ``module``.
        target: what is compressed; its ``modules`` name every owner of the weight if it is tied.
    """

    profile: LayerProfile
    module: nn.Module
    attribute: str
    target: Target

    @property
    def parameter(self) -> nn.Parameter:
        """The weight itself, looked up anew, as the model may have been cast since."""
        return self.module.get_parameter(self.attribute)

    @property
    def inputs_read(self) -> slice:
        """Which of the inputs of ``module`` the weight multiplies."""
        return _INPUTS_READ.get(self.attribute, slice(None))

    @property
    def layout(self) -> WeightLayout:
        """Where output channels, input channels and groups are in the weight's shape."""
        groups = self.module.groups if isinstance(self.module, CONVOLUTIONS) else 1
        return WeightLayout(groups=groups, transposed=self.profile.channel_axis == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWeights:
    """What can be compressed one by one.

    Attributes:
        weights: by layer name, in execution order.
        not_applicable: layer name to the sentence that says why its weight cannot be compressed.
    """

    weights: dict[str, LayerWeight]
    not_applicable: dict[str, str]


def find_weights(model: nn.Module, layers: Sequence[LayerProfile]) -> FoundWeights:
    """Find the weight of each layer; leave out those that never run, are tied to an earlier one, or are derived."""
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
    return FoundWeights(weights=weights, not_applicable=not_applicable)


def _owners(model: nn.Module) -> dict[int, tuple[str, ...]]:
    """Return, by identity of each parameter, the dotted names of the modules that own it."""
    owners: dict[int, tuple[str, ...]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = (*owners.get(id(parameter), ()), name)
    return owners


def _is_derived(module: nn.Module, attribute: str) -> bool:
    """Tell whether the weight that the forward pass reads is recomputed, so that swapping would be undone."""
    stem, _, part = attribute.rpartition("_")
    stored_part = part in _STORED_PARTS and hasattr(module, stem)
    return (
        attribute not in dict(module.named_parameters(recurse=False, remove_duplicate=False))
        or isinstance(module, ParametrizationList)
        or stored_part
    )


class PreparedCompressor(ABC):
    """Compresses by preparing first; what all compressions of weights share."""

    @abstractmethod
    def prepare(self, target: Target, level: float) -> Prepared:
        """Compute the compressed weight of ``target``; see :class:`~senseapp.transforms.base.WeightCompressor`."""

    @contextmanager
    def compress(self, target: Target, level: float) -> Iterator[Applied]:
        """Compress ``target`` to ``level`` inside.

        Raises:
            MeasurementFailed: this target cannot be compressed to this level, with the reason.
        """
        prepared = self.prepare(target, level)
        with prepared.active():
            yield prepared.applied


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Compute without a graph, yet with tensors that may stand in for parameters, also inside ``inference_mode``."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def swapped(parameter: nn.Parameter, compressed: Tensor) -> Iterator[None]:
    """Let ``parameter`` hold ``compressed`` (same shape and dtype) inside; give its own storage back on exit.

    The parameter stays the same object, so optimizers, tied modules and names keep pointing at it, and its own
    values, strides and address are never written to.
    """
    original = parameter.data
    parameter.data = compressed
    try:
        yield
    finally:
        parameter.data = original
