"""torch-pruning's dependency graph of one network: tensors that shrink together, and how to restore them."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_pruning
from numpy.typing import NDArray
from torch import nn

from senseapp.compat.torch_pruning_internals import (
    Channels,
    is_output,
    map_channels,
    map_indices,
    node_name,
    nodes_of,
    parameter_name,
)
from senseapp.core.errors import MeasurementFailed, first_line_of
from senseapp.networks.network import flags_kept, state_kept
from senseapp.networks.profile import CONVOLUTIONS

MOST_POSITIONS = 2**24
"""Positions that are propagated for all layers of a network; a step counts as the positions of equal run time."""


class Untraceable(MeasurementFailed):
    """torch-pruning cannot follow these channels through the network."""


def why_untraceable(error: Exception) -> str:
    """Return the sentence on channels that cannot be followed, for any exception."""
    if isinstance(error, Untraceable):
        return str(error)
    return f"torch-pruning cannot follow its channels ({type(error).__name__}: {first_line_of(error)})."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Channels to remove from one tensor axis, that of the target of torch-pruning's edge ``dependency``.

    ``indices`` are positions on it, ascending; ``root_indices`` are, for each, the channel of the group's root that it
    corresponds to.
    """

    dependency: Any
    indices: tuple[int, ...]
    root_indices: tuple[int, ...]

    @property
    def module(self) -> nn.Module | nn.Parameter:
        """The layer, norm or free parameter that shrinks."""
        module: nn.Module | nn.Parameter = self.dependency.target.module
        return module

    @property
    def layer(self) -> nn.Module:
        """The layer or norm that shrinks, where it is known to be one."""
        layer: nn.Module = self.dependency.target.module
        return layer


class ChannelGraph:
    """torch-pruning's ``DependencyGraph`` of one model, traced once (else Untraceable); a prune never changes it.

    ``widest`` is the largest number of elements of any tensor of a pass for one image, which bounds every axis.
    """

    def __init__(self, model: nn.Module, example: torch.Tensor, widest: float = math.inf) -> None:
        self.model = model
        self._widest = widest
        self.names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
        self._graph = torch_pruning.DependencyGraph()
        with left_as_found(model):
            try:
                self._build(example)
            except Exception as error:  # the forward and the tracer may raise anything
                raise Untraceable(
                    f"torch-pruning cannot trace this network ({type(error).__name__}: {first_line_of(error)})."
                ) from error
        self._nodes = nodes_of(self._graph)
        self._widths: dict[tuple[Any, Any], float] = {}
        self._positions_left = MOST_POSITIONS
        # Wrong reshape maps make torch-pruning loop; a correct group visits each edge about once.
        self._max_steps = 4 * sum(len(node.dependencies) for node in self._nodes.values())

    def _build(self, example: torch.Tensor) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on a recursion that ends, and on deprecated names of torch
                self._graph.build_dependency(
                    self.model,
                    example.clone(),
                    unwrapped_parameters=_free_parameters(self.model),
                    ignored_layers=[module for module in self.model.modules() if mixes_neighbours(module)],
                    verbose=False,
                )
        except ZeroDivisionError:
            if not nodes_of(self._graph):
                raise
            map_indices(self._graph)

    def __contains__(self, module: nn.Module) -> bool:
        return module in self._nodes

    def cut(self, module: nn.Module, indices: tuple[int, ...], root_indices: tuple[int, ...], *, outputs: bool) -> Cut:
        """Return the cut of these input or output channels of one layer, without coupled layers."""
        pruner = self._graph.get_pruner_of_module(module)
        handler = pruner.prune_out_channels if outputs else pruner.prune_in_channels
        node = self._nodes[module]
        dependency = torch_pruning.Dependency(handler, handler, source=node, target=node)
        return Cut(dependency=dependency, indices=indices, root_indices=root_indices)

    def out_channels(self, module: nn.Module) -> int:
        """Return the number of output channels of a layer."""
        return int(self._graph.get_pruner_of_module(module).get_out_channels(module))

    def width(self, cut: Cut) -> int:
        """Return the number of channels on the axis of ``cut`` before it shrinks."""
        return int(self._width(cut.dependency))

    def is_out_cut(self, cut: Cut) -> bool:
        """Return whether the cut removes output channels of its module (norms count as both)."""
        return bool(self._graph.is_out_channel_pruning_fn(cut.dependency.handler))

    def is_in_cut(self, cut: Cut) -> bool:
        """Return whether the cut removes input channels of its module (norms count as both)."""
        return bool(self._graph.is_in_channel_pruning_fn(cut.dependency.handler))

    def owner(self, cut: Cut) -> nn.Module | None:
        """Return the module that owns the shrinking tensor; None for torch-pruning's nodes of reshapes and joins."""
        if isinstance(cut.module, nn.Parameter):
            return self.model.get_submodule(self.parameter_name(cut.module).rpartition(".")[0])
        return cut.module if cut.module in self.names else None

    def parameter_name(self, parameter: nn.Parameter) -> str:
        """Return the dotted name of a parameter that belongs to no layer known to torch-pruning."""
        return parameter_name(self._graph, parameter)

    def reaches_output(self, cut: Cut) -> bool:
        """Return whether the cut would change the number of the model's outputs."""
        node = cut.dependency.target
        return is_output(node) or (not node.outputs and self.is_out_cut(cut))

    def cuts(self, root: nn.Module, channels: Sequence[int]) -> tuple[Cut, ...]:
        """Return all cuts that follow when ``root`` loses these output channels, ``root`` first.

        This is torch-pruning's ``get_pruning_group`` without its refresh of the index maps, and with a bound on the
        work: Untraceable if the maps form a cycle, or lead outside a tensor.
        """
        first = self.cut(root, (), (), outputs=True).dependency
        start = Channels(np.asarray(channels, np.int64), np.asarray(channels, np.int64))
        merged: dict[tuple[Any, Any], tuple[Any, list[Channels]]] = {}
        for dependency, arriving in self._propagate(first, start):
            merged.setdefault((dependency.target, dependency.handler), (dependency, []))[1].append(arriving)
        return tuple(_merged(dependency, parts) for dependency, parts in merged.values())

    def _propagate(self, first: Any, start: Channels) -> Iterator[tuple[Any, Channels]]:
        """Yield each triggered edge, with the channels that reach it."""
        pending, seen, steps = [(first, start)], set(), 0
        while pending:
            dependency, channels = pending.pop()
            self._require_on_axis(dependency, channels.positions)
            yield dependency, channels
            for following in dependency.target.dependencies:
                if not following.is_triggered_by(dependency.handler):
                    continue
                mapped = _mapped(following, channels)
                key = (following.target, following.handler, mapped.positions.tobytes())
                if len(mapped.positions) and key not in seen:
                    seen.add(key)
                    pending.append((following, mapped))
            steps += 1
            # A step by itself takes as long as the propagation of 512 positions.
            self._positions_left -= len(channels.positions) + 512
            if steps > self._max_steps:
                raise Untraceable("torch-pruning follows its channels in circles.")
            if self._positions_left < 0:
                raise Untraceable("To follow the channels of this network takes out of proportion.")

    def _require_on_axis(self, dependency: Any, positions: NDArray[np.int64]) -> None:
        key = dependency.target, dependency.handler
        if key not in self._widths:
            self._widths[key] = self._width(dependency)
        if not (positions[1:] > positions[:-1]).all() or positions[-1] >= self._widths[key]:
            name = node_name(dependency.target)
            raise Untraceable(f"torch-pruning loses track of its channels on the way to {name}.")

    def _width(self, dependency: Any) -> float:
        """Return the number of channels on the axis that a dependency shrinks; infinite if unknown."""
        node = dependency.target
        pruner = self._graph.get_pruner_of_module(node.module)
        pruner.pruning_dim = node.pruning_dim
        out = self._graph.is_out_channel_pruning_fn(dependency.handler)
        width = pruner.get_out_channels(node.module) if out else pruner.get_in_channels(node.module)
        return self._widest if width is None else width


def _merged(dependency: Any, parts: Sequence[Channels]) -> Cut:
    """Return the channels from several edges as one cut; a position belongs to the first root channel to reach it."""
    positions, roots = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    if len(parts) > 1:
        positions, first = np.unique(positions, return_index=True)
        roots = roots[first]
    return Cut(dependency=dependency, indices=tuple(positions.tolist()), root_indices=tuple(roots.tolist()))


def _mapped(dependency: Any, channels: Channels) -> Channels:
    """Return the positions after an edge; its maps fail where torch-pruning missed parts of a concatenation."""
    try:
        for index_map in dependency.index_mapping:
            channels = channels if index_map is None else map_channels(index_map, channels)
    except (ValueError, TypeError) as error:
        raise Untraceable(
            "Its channels are split, shuffled or joined with others in a way that torch-pruning does not follow."
        ) from error
    return channels


def mixes_neighbours(module: nn.Module) -> bool:
    """Return whether a convolution runs along the channel axis, as in ECA; torch-pruning takes it for element-wise."""
    return isinstance(module, nn.Conv1d) and module.in_channels == module.out_channels == 1


def _free_parameters(model: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """Return the position embeddings of shape (1, C, H, W) with their channel axis; torch-pruning assumes the last."""
    owned = {id(p) for m in model.modules() if isinstance(m, CONVOLUTIONS) for p in m.parameters()}
    parameters = [p for p in model.parameters() if id(p) not in owned]
    return [(p, 1) for p in parameters if p.ndim == 4 and p.shape[0] == 1 and p.shape[2] > 1]


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Enable gradients of every parameter inside the block; restore flags, attributes and values of buffers on exit."""
    with flags_kept(model), state_kept(model), torch.inference_mode(False), torch.enable_grad():
        model.requires_grad_(True)
        yield
