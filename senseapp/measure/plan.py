"""Plan of a run's passes: targets in execution order, spans of images, memory order, micro-batch and precision."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import psutil
import torch
from torch import nn

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of forward passes: memory order, images per pass, ``fp32`` or ``bf16``."""

    channels_last: bool = False
    micro_batch: int = 16
    precision: str = "fp32"


def lay_out(model: nn.Module, layout: Layout) -> nn.Module:
    """Convert the weights of ``model`` in place to the memory order of ``layout``; their values do not change.

    Channels-last applies to 4-D images only; ``Module.to`` would fail on 3-D convolutions.
    """
    if not layout.channels_last:
        return model.to(memory_format=torch.contiguous_format)
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return model


def micro_batches(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive runs of at most ``size`` images."""
    for low in range(start, stop, size):
        yield low, min(low + size, stop)


@contextmanager
def precision_context(precision: str, device: torch.device) -> Iterator[None]:
    """Run forward passes of ``precision``, the same inputs giving the same outputs to the bit.

    ``fp32`` is IEEE float32: on graphics cards torch lets convolutions round their factors to 10 bits (TF32) and choose
    kernels whose sums depend on timing, unless both are switched off. Autocast must not cache its casts of weights: it
    would not notice that weights are swapped between passes.
    """
    on_card, half = device.type == "cuda", precision != "fp32"
    exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False) if on_card else nullcontext()
    cast = torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False) if half else nullcontext()
    with exact, cast:
        yield


def settle_kernels(device: torch.device) -> None:
    """Choose kernels as :func:`precision_context` does for whatever else this process runs on ``device``.

    For processes of our own: fitting weights and gathering statistics run many passes outside of that context.
    """
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True


def usual_layout(trace: CallTrace, *, most: int, channels_last: bool, device: torch.device) -> Layout:
    """Return the layout of passes: at most ``most`` images each, in channels-last where that is possible and good.

    With oneDNN, channels-last took 0.56 to 1.04 times as long as the other order on twelve networks of all families.
    """
    largest = max((call.output_bytes for call in trace.calls), default=1) // trace.batch_size
    # On a processor, outputs stay in its caches and weights are read seldom. A card has no such caches, and it takes as
    # long to start a kernel as to run a small one.
    size, fitting = 1, 96 * 2**20 if device.type == "cpu" else 2**30
    while size < 256 and 2 * size * largest <= fitting:
        size *= 2
    return Layout(channels_last=channels_last and knows_the_order(device), micro_batch=max(1, min(max(size, 4), most)))


def knows_the_order(device: torch.device) -> bool:
    """Return whether channels-last is known to be a good order here."""
    return device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def memory_bytes(device: torch.device) -> int:
    """Return the memory of ``device``: a card's own, or this machine's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return int(psutil.virtual_memory().total)


def recorded_bytes(device: torch.device) -> int:
    """Return how many bytes of outputs may be kept besides what prefixes need; of two kinds, each."""
    # 384 MiB is what a machine of 12 GB gives; larger ones may run several jobs at once.
    return min(384 * 2**20, memory_bytes(device) // 32)


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return the clock for timing passes: on the CPU, this process's CPU time, unaffected by other processes."""
    if device.type == "cpu":
        return time.process_time
    return partial(_synchronized, device)


def _synchronized(device: torch.device) -> float:
    torch.accelerator.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True, slots=True)
class UnchangedCalls:
    """Which calls after each target do not depend on it, such as a detector's other heads; empty if they save little.

    Prefix replay repeats all that runs after the changed layer. What depends on what is followed through the operations
    of the traced pass (:mod:`senseapp.networks.dependence`), and checked: for a level of the first and last target of
    each kind, one image is computed with what the uncompressed model left, and without it, and the outputs must be
    equal bit for bit.

    Attributes:
        of: outermost calls that start at the target's position or later, by its index among those planned.
        representative: targets that are checked: the first and the last of each kind.
    """

    of: dict[int, frozenset[int]] = field(default_factory=dict)
    representative: frozenset[int] = frozenset()

    def __getitem__(self, index: int) -> frozenset[int]:
        return self.of.get(index, frozenset())

    def to_check(self, index: int, checked: Container[int]) -> bool:
        """Return whether to check a target, unless it is among those ``checked``."""
        return index in self.representative and index not in checked


def unchanged_calls(
    trace: CallTrace, planned: Sequence[PlannedTarget], *, num_images: int, budget_bytes: int
) -> UnchangedCalls:
    """Choose the calls whose outputs are kept, most multiply-accumulates saved per byte first.

    ``num_images`` are measured together, and the outputs of all of them fit into ``budget_bytes``. None are chosen
    where images decide which modules run.
    """
    few = set(representative_positions(planned))
    if trace.used_by_others or not _saves(trace, [item for item in planned if item.position in few]):
        return UnchangedCalls()
    found = [frozenset(_independent(trace, item)) for item in planned]
    saved: Counter[int] = Counter()
    for calls in found:
        saved.update({call: trace.calls[call].macs for call in calls})
    chosen, left = set(), budget_bytes * trace.batch_size / num_images
    for call in sorted(saved, key=lambda call: trace.calls[call].output_bytes / saved[call]):
        if trace.calls[call].output_bytes <= left:
            left -= trace.calls[call].output_bytes
            chosen.add(call)
    kept = {index: calls & chosen for index, calls in enumerate(found) if calls & chosen}
    seen = set(representative_positions([planned[index] for index in kept]))
    return UnchangedCalls(kept, frozenset(index for index in kept if planned[index].position in seen))


def _saves(trace: CallTrace, planned: Sequence[PlannedTarget]) -> bool:
    """Return whether enough is saved on these targets."""
    repeated = sum(item.suffix for item in planned) * trace.macs
    saved = sum(trace.calls[call].macs for item in planned for call in _independent(trace, item))
    # Below 5 % of what prefix replay repeats, watching the calls is not worth it.
    return saved > 0.05 * repeated


def _independent(trace: CallTrace, item: PlannedTarget) -> Iterator[int]:
    """Yield the outermost calls from the position of ``item`` on that multiply and do not depend on it."""
    if trace.first_event(frozenset(item.target.modules)) is None:  # other images may use it, and these do not
        return
    changed, index = trace.dependence.bits_of(item.target.modules), 0
    while index < len(trace.calls):
        call = trace.calls[index]
        independent = call.start >= item.position and not call.depends & changed
        if independent and call.macs:
            yield index
        index = call.after if independent or call.end < item.position or not call.macs else index + 1
