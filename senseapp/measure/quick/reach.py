"""Inner products of the changes that layers cause with directions of the output, and which parts of it they reach.

A layer in the head of one feature map of a detector moves the boxes of that map alone. An inner product sums over all
boxes, so that it cannot tell this from small moves of every box. But the gradient of the boxes of another map is
exactly zero at such a layer: one image and a backward pass for each part of the output show what a layer reaches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from senseapp.measure.plan import precision_context
from senseapp.measure.quick.recorder import Calls, Recorder
from senseapp.measure.quick.responses import Key, Responses

if TYPE_CHECKING:
    from senseapp.measure.sweep import Sweep


def inner_products(
    sweep: Sweep,
    responses: Responses,
    recorder: Recorder,
    output: Tensor,
    calls: Calls,
    vectors: Sequence[Tensor],
    *,
    again: bool = False,
) -> dict[Key, Tensor]:
    """Return v·δz of each key with observed calls, (N, directions), for directions v and the change δz of the output.

    ``output`` is that of the N images of ``calls``, with its graph, which further directions may use ``again``. Each of
    ``vectors`` is one direction, shaped like it.
    """

    def observe(name: str) -> None:
        with torch.inference_mode(), precision_context(sweep.context.layout.precision, sweep.context.device):
            responses.observe(name, calls[name], len(output), len(vectors), again=again)

    with precision_context("fp32", sweep.context.device):  # autocast is for forward passes only
        recorder.backward(output, [vector.to(output.device) for vector in vectors], calls, observe, again=again)
    return responses.collect()


@dataclass(frozen=True, slots=True)
class Reach:
    """Which places of the output of one image a compressed layer changes, as far as its task tells parts apart.

    Attributes:
        places: bool, shaped as the output of one image; each is the reach of one layer or more.
        of_layer: the index of a layer's ``places``, without layers whose reach is not known.
    """

    places: tuple[Tensor, ...] = ()
    of_layer: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def find(cls, sweep: Sweep, responses: Responses, recorder: Recorder) -> Reach:
        """Find the reach of every layer from one image."""
        task = sweep.context.task
        parts = task.output_parts(task.output(sweep.context.trace.output)[:1].detach().float().cpu())
        if not parts:
            return cls()
        with precision_context(sweep.context.layout.precision, sweep.context.device):
            raw, calls = recorder.run(sweep.context.model, torch.cat(sweep.context.batches(0, 1)))
        found: dict[str, Tensor] = {}
        for (layer, _), products in inner_products(sweep, responses, recorder, task.output(raw), calls, parts).items():
            found[layer] = found.get(layer, torch.zeros(len(parts), dtype=torch.bool)) | (products[0] != 0)
        distinct = list(dict.fromkeys(tuple(reached.tolist()) for reached in found.values()))
        masks = torch.stack([part != 0 for part in parts])
        places = tuple(masks[list(reached)].any(dim=0) for reached in distinct)
        return cls(places, {layer: distinct.index(tuple(reached.tolist())) for layer, reached in found.items()})
