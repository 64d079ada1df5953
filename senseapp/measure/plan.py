"""Plan of a run's passes: targets in execution order, spans of images, memory order, micro-batch and precision."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import psutil
import torch
from torch import nn

from senseapp.compressions.base import Applied, Target
from senseapp.core.registry import grouped
from senseapp.data.images import ImageSet
from senseapp.networks.trace import CallTrace
from senseapp.records.inputs import num_held_out
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.records.spec import SensitivitySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTarget:
    """A target, the first event that depends on it, and the share of a pass's MACs that runs from there on."""

    target: Target
    position: int
    suffix: float

    def measurement(
        self, level: float, status: Status, applied: Applied | None = None, **found: Any
    ) -> LayerMeasurement:
        """Return a measurement of the target, with what was ``applied`` and ``found``."""
        target = self.target
        fields: dict[str, Any] = {"layer": target.layer, "group": target.group, "members": target.members}
        fields |= asdict(applied) if applied else {}
        return LayerMeasurement(level=level, status=status, **fields, **found)


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
    kinds = grouped((re.sub(r"\d+", "#", item.target.layer), item.position) for item in planned)
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


def automatic_precision(spec: SensitivitySpec, device: torch.device) -> tuple[str, str]:
    """Return the precision that ``auto`` means, and the reason as one sentence.

    It is bfloat16 where matrix products are clearly faster in it, if the compression changes more than bfloat16 rounds
    away: measured so, layers rank as in float32 (Spearman .99 and more at 30 to 70 % sparsity and at 3 and 4 bits, on a
    network of digits and EfficientNet-Lite0).
    """
    # bfloat16 has 8 significant bits: on a finer grid than 4 its own rounding is not small beside the compression.
    if spec.compression.description.sets_bits and max(spec.levels) > 4:
        return "fp32", "Precision auto kept float32: bfloat16 would hide what more than 4 bits change."
    gain = product_seconds(device, torch.float32) / product_seconds(device, torch.bfloat16)
    if gain < 1.2:  # no tested network gains where products do not
        return "fp32", f"Precision auto kept float32: matrix products in bfloat16 are {gain:.1f} times as fast here."
    return "bf16", f"Precision auto took bfloat16: matrix products are {gain:.1f} times as fast here."


def product_seconds(device: torch.device, dtype: torch.dtype) -> float:
    """Return the time of a matrix product: on the CPU, this process's own, unaffected by other processes."""
    width = 384 if device.type == "cpu" else 4096  # about a millisecond
    factor = torch.ones(width, width, dtype=dtype, device=device)
    clock, seconds = time.process_time if device.type == "cpu" else time.perf_counter, []
    for _ in range(6):  # the first one prepares the kernel
        started = clock()
        factor @ factor
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        seconds.append(clock() - started)
    return min(seconds)
