"""Trial removal: groups without some of whose channels the network does not run, tested with one image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from senseapp.compat.torch_internals import restored
from senseapp.compressions.pruning.graph import ChannelGraph, left_as_found
from senseapp.compressions.pruning.groups import ChannelGroup, modules_of
from senseapp.compressions.pruning.removal import Removal, remove_units
from senseapp.core.errors import first_line_of
from senseapp.networks.trace import CallTrace, tensors_in


def unshrinkable(
    graph: ChannelGraph, groups: Sequence[ChannelGroup], example: Tensor, trace: CallTrace, _seed: int
) -> dict[int, str]:
    """Return, by index into ``groups``, why the network does not run without some of its units.

    torch-pruning does not shrink buffers with one number per channel, frozen norms, or widths that are hard-coded. All
    groups are tried at once, then halves of those that fail, with at most two passes for each group. The first of the
    images ``example``, (N, C, H, W), are those of ``trace``.
    """
    images = example[: trace.batch_size]
    expected = [tensor.shape for tensor in tensors_in(trace.output)]
    found: dict[int, str] = {}
    pending = [range(len(groups))] if groups else []
    with left_as_found(graph.model), torch.no_grad():
        while pending:
            part = pending.pop()
            fault = _fault([_some_of(groups[index], index) for index in part], images, expected)
            if fault and len(part) == 1:
                found[part[0]] = fault
            elif fault:
                pending += [part[: len(part) // 2], part[len(part) // 2 :]]
    return found


def _some_of(group: ChannelGroup, index: int) -> Removal:
    """Choose the number of units to remove: different for neighbours, so that a missed coupling is detected."""
    return group, range(1 + index % max(1, len(group.units) // 2))


def _fault(removals: Sequence[Removal], images: Tensor, expected: Sequence[torch.Size]) -> str:
    """Return why the network fails without these units, in a sentence; empty if it runs."""
    model = removals[0][0].graph.model
    with restored(model.get_submodule(name) for group, _ in removals for name in modules_of(group)):
        try:
            remove_units(removals)
            found = [tensor.shape for tensor in tensors_in(model(images.clone()))]
        except Exception as error:  # the forward may raise anything
            return f"The network does not run without some of its channels: {first_line_of(error)}."
    return "" if found == expected else "The shape of the network's output would change."
