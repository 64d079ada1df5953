"""Coupled channel groups: layers that lose output channels or attention heads together, and in which units."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from senseapp.compat.vision_internals import head_layout, nothing_between
from senseapp.compressions.pruning.graph import ChannelGraph, Cut, Untraceable, why_untraceable
from senseapp.networks.profile import CONVOLUTIONS


@dataclass(frozen=True, slots=True)
class ModuleHeads:
    """The heads of the attention module ``name``, of a class that is known."""

    name: str
    num_heads: int

    def remove(self, model: nn.Module, heads: Sequence[int]) -> None:
        """Remove ``heads`` from the per-head tables and numbers of the module."""
        module = model.get_submodule(self.name)
        layout = head_layout(module)
        assert layout is not None
        keep = [head for head in range(self.num_heads) if head not in set(heads)]
        for name in layout.widths:
            setattr(module, name, getattr(module, name) // self.num_heads * len(keep))
        for name, axis in layout.tables.items():
            table = module.get_parameter(name)
            index = torch.tensor(keep, device=table.device)
            setattr(module, name, nn.Parameter(table.index_select(axis, index), requires_grad=table.requires_grad))
        module.num_heads = len(keep)  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelGroup:
    """Layers, in execution order, that share one set of output channels.

    ``cuts`` are everything that shrinks when all of the root's channels are removed, the root first. ``units`` are the
    smallest sets of root channels that can be removed: one channel, one channel of each convolution group, or one
    attention head, then of the module ``heads``.
    """

    graph: ChannelGraph
    cuts: tuple[Cut, ...]
    units: tuple[tuple[int, ...], ...]
    members: tuple[str, ...]
    heads: ModuleHeads | None = None

    def channels(self, units: Sequence[int]) -> frozenset[int]:
        """Return the root channels of these units."""
        return frozenset(chain.from_iterable(self.units[unit] for unit in units))


def is_layer(module: object) -> bool:
    """Return whether a module is a convolution or a linear layer."""
    return isinstance(module, (*CONVOLUTIONS, nn.Linear))


def positions_of(cut: Cut, channels: frozenset[int]) -> tuple[int, ...]:
    """Return the positions on the axis of ``cut`` that correspond to these root channels, ascending."""
    return tuple(i for i, root in zip(cut.indices, cut.root_indices, strict=True) if root in channels)


def modules_of(group: ChannelGroup) -> tuple[str, ...]:
    """Return the names of all modules that change when ``group`` shrinks."""
    owners = [group.graph.owner(cut) for cut in group.cuts]
    names = dict.fromkeys(group.graph.names[owner] for owner in owners if owner is not None)
    if group.heads is not None:
        names[group.heads.name] = None
    return tuple(names)


def head_groups(graph: ChannelGraph) -> list[ChannelGroup]:
    """Return one group per attention module of a known class: its layers of queries, keys and values, and its heads."""
    found = []
    for name, module in graph.model.named_modules():
        known = head_layout(module) is not None and nothing_between(module) and int(module.num_heads) > 1
        if known and module.qkv in graph and module.proj in graph:
            found.append(_group_of_module(graph, name, module))
    return found


def _group_of_module(graph: ChannelGraph, name: str, module: Any) -> ChannelGroup:
    num_heads, width = int(module.num_heads), module.proj.in_features
    head_dim = width // num_heads
    channels = tuple(range(width))
    return ChannelGroup(
        graph=graph,
        cuts=(
            graph.cut(module.proj, channels, channels, outputs=False),
            graph.cut(module.qkv, tuple(range(3 * width)), channels * 3, outputs=True),
        ),
        units=tuple(tuple(range(head * head_dim, (head + 1) * head_dim)) for head in range(num_heads)),
        members=(f"{name}.qkv" if name else "qkv",),
        heads=ModuleHeads(name, num_heads),
    )


def channel_groups(
    graph: ChannelGraph,
    layers: Sequence[str],
    blocked: Mapping[str, str],
    kept: Mapping[str, str],
    claimed: set[str],
    progress: Callable[[str], None] = lambda _sentence: None,
) -> tuple[list[ChannelGroup], dict[str, str]]:
    """Return the groups of ``layers`` (in execution order), and why each layer without a group has none.

    Groups that contain a module of ``blocked``, which must keep its shape for the given reason, are left out, as are
    those with output channels of a module of ``kept``. The output channels of ``claimed`` layers belong to groups of
    another kind.
    """
    groups: list[ChannelGroup] = []
    reasons: dict[str, str] = {}
    taken = set(claimed)
    for index, name in enumerate(layers):
        if index % 20 == 0:  # not for each of a thousand layers
            progress(f"Finding which channels are coupled: layer {index + 1} of {len(layers)}")
        if name in taken or name in reasons:
            continue
        members: tuple[str, ...] = ()
        try:
            cuts = _cuts_from_widest_root(graph, graph.model.get_submodule(name))
            producing = (cut for cut in cuts if is_layer(cut.module) and graph.is_out_cut(cut))
            producers = {graph.names[cut.layer] for cut in producing}
            members = tuple(member for member in layers if member in producers)
            _require_free(graph, cuts, members, blocked, kept, taken)
            groups.append(ChannelGroup(graph=graph, cuts=cuts, units=_units(graph, cuts), members=members))
            taken.update(members)
        except Exception as error:  # a failure inside torch-pruning concerns this group only
            reasons.update(dict.fromkeys({name, *members} - taken, why_untraceable(error)))
    return groups, reasons


def _cuts_from_widest_root(graph: ChannelGraph, module: nn.Module) -> tuple[Cut, ...]:
    """Return the cuts of all output channels of ``module``, from the member of the group that has all channels."""
    tried: set[nn.Module] = set()
    while True:
        tried.add(module)
        cuts = graph.cuts(module, range(graph.out_channels(module)))
        wider = [cut.layer for cut in cuts if _is_partial(graph, cut) and cut.layer not in tried]
        if not wider:
            if any(_is_partial(graph, cut) for cut in cuts):
                raise Untraceable("Its channels are split between groups that overlap, so none can go by itself.")
            return cuts
        module = max(wider, key=graph.out_channels)


def _is_partial(graph: ChannelGraph, cut: Cut) -> bool:
    return is_layer(cut.module) and graph.is_out_cut(cut) and len(cut.indices) < graph.out_channels(cut.layer)


def _require_free(
    graph: ChannelGraph,
    cuts: Sequence[Cut],
    members: Sequence[str],
    blocked: Mapping[str, str],
    kept: Mapping[str, str],
    taken: set[str],
) -> None:
    """Raise Untraceable if anything that would shrink must keep its shape."""
    if any(graph.reaches_output(cut) for cut in cuts):
        raise Untraceable("Its output channels are the model's outputs, or are added to them; none can go.")
    for cut in cuts:
        owner = graph.owner(cut)
        if isinstance(owner, nn.MultiheadAttention):
            raise Untraceable(
                "Its channels run through nn.MultiheadAttention, whose width is at once that of its input, its heads "
                "and its output, so that channels cannot go without mixing heads."
            )
        name = None if owner is None else graph.names[owner]
        reasons = {**blocked, **kept} if is_layer(cut.module) and graph.is_out_cut(cut) else blocked
        if name is not None and name in reasons:
            raise Untraceable(
                f"It is coupled with {name or 'the network itself'}, which cannot shrink: {reasons[name]}"
            )
    if shared := taken.intersection(members):
        raise Untraceable(f"It shares only some of its channels with {min(shared)}, so it cannot be measured apart.")


def _units(graph: ChannelGraph, cuts: Sequence[Cut]) -> tuple[tuple[int, ...], ...]:
    """Return the sets of root channels whose removal keeps the groups of every convolution and norm equal in size."""
    width = len(cuts[0].indices)
    tied = graph.cuts(cuts[0].layer, [0])[0].indices  # a gate ties each channel to one in the other half of the layer
    num_sets = math.lcm(len(tied), *(_num_channel_groups(cut.module) for cut in cuts))
    if width % num_sets or tied != tuple(range(0, width, width // len(tied))):
        raise Untraceable("Its channels are tied to one another in a way that leaves no even step.")
    step = width // num_sets
    if step < 2:
        raise Untraceable(f"Its {width} channels can only go all at once: there are {num_sets} groups of {step}.")
    units = tuple(tuple(range(first, width, step)) for first in range(step))
    for cut in cuts:
        _require_even(graph, cut, positions_of(cut, frozenset(units[0])))
    return units


def _num_channel_groups(module: object) -> int:
    """Return the number of groups whose sizes must stay equal; 1 for a depthwise convolution, whose groups may go."""
    if isinstance(module, nn.GroupNorm):
        return module.num_groups
    if isinstance(module, CONVOLUTIONS) and not is_depthwise(module):
        return module.groups
    return 1


def is_depthwise(module: object) -> bool:
    """Return whether each channel is convolved by itself."""
    return isinstance(module, CONVOLUTIONS) and module.groups == module.out_channels == module.in_channels > 1


def reading_cuts(group: ChannelGroup) -> list[Cut]:
    """Return the cuts of the layers that read the channels; depthwise convolutions only pass theirs on."""
    cuts = (cut for cut in group.cuts if is_layer(cut.module) and group.graph.is_in_cut(cut))
    return [cut for cut in cuts if not is_depthwise(cut.module)]


def _require_even(graph: ChannelGraph, cut: Cut, positions: Sequence[int]) -> None:
    module = cut.module
    num_groups = _num_channel_groups(module)
    if num_groups == 1:
        return
    if isinstance(module, CONVOLUTIONS) and module.transposed:
        raise Untraceable("torch-pruning cannot prune a grouped transposed convolution.")
    width = graph.width(cut)
    offsets: list[set[int]] = [set() for _ in range(num_groups)]
    for position in positions:
        group, offset = divmod(position, width // num_groups)
        offsets[group].add(offset)
    if any(group != offsets[0] for group in offsets):
        raise Untraceable("Its channels do not fall evenly into the groups of a convolution or norm that reads them.")
