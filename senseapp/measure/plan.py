"""Targets in execution order, spans of images that are measured together, and held-out images for proofs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from senseapp.compressions.base import Target
from senseapp.data.images import ImageSet
from senseapp.networks.trace import CallTrace
from senseapp.records.inputs import num_held_out


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTarget:
    """A target, the first event that depends on it, and the share of a pass's MACs that runs from there on."""

    target: Target
    position: int
    suffix: float


def plan_targets(targets: Sequence[Target], trace: CallTrace) -> list[PlannedTarget]:
    """Return the targets by the first event that depends on them, so that kept prefixes only ever grow."""
    events = sorted((use.first_event, use.macs) for use in trace.uses.values())
    total = sum(macs for _, macs in events) or 1
    planned = []
    for target in targets:
        position = trace.first_event(frozenset(target.modules))
        if position is None:
            position = 0  # does not run in the trace: measured by whole passes
        after = sum(macs for event, macs in events if event >= position)
        planned.append(PlannedTarget(target=target, position=position, suffix=after / total))
    return sorted(planned, key=lambda item: item.position)


def representative_positions(planned: Sequence[PlannedTarget]) -> list[int]:
    """Return representative positions: the first and last of each kind of place in the network.

    Whether a model can be replayed is a property of its code. Layers whose names differ only in their numbers
    (``layer1.0.conv2``, ``layer3.4.conv2``) are run by the same code.
    """
    kinds: dict[str, list[int]] = {}
    for item in planned:
        kinds.setdefault(re.sub(r"\d+", "#", item.target.layer), []).append(item.position)
    return sorted({position for found in kinds.values() for position in (found[0], found[-1])})


def chunk_spans(
    num_images: int, *, bytes_per_image: int, budget_bytes: int, micro_batch: int, settle_from: int = 0, most: int = 0
) -> list[tuple[int, int]]:
    """Cut the images into chunks whose kept prefixes fit the memory budget, of at most ``most`` images if above 0.

    Chunks are multiples of ``micro_batch``, so that their sizes do not change any pass. With ``settle_from`` above 0
    they double in size from about that many images on, so that a run can stop once its ranking is settled.
    """
    fits = max(1, budget_bytes // max(1, bytes_per_image) // micro_batch) * micro_batch
    if most:
        fits = min(fits, _multiple(most, micro_batch))
    size = min(fits, _multiple(settle_from, micro_batch)) if settle_from else fits
    spans, start = [], 0
    while start < num_images:
        stop = min(start + size, num_images)
        spans.append((start, stop))
        start = stop
        size = min(fits, 2 * size) if settle_from else fits
    return spans


def _multiple(count: int, unit: int) -> int:
    return max(1, round(count / unit)) * unit


def split(images: ImageSet, seed: int) -> tuple[ImageSet, ImageSet]:
    """Return the images for the curves and the held-out images, each in their original order.

    Random inputs are never split, since more can be drawn.
    """
    kept = 0 if images.indicative else num_held_out(len(images))
    if not kept:
        return images, images.subset([])
    order: list[int] = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).tolist()
    return images.subset(sorted(order[kept:])), images.subset(sorted(order[:kept]))
