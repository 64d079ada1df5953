"""Who does what: blocks of layers times spans of images, chosen so that everybody is done at about the same time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from senseapp.distributed.blocks import Block, balanced_blocks
from senseapp.distributed.costs import RunCosts
from senseapp.distributed.simulate import makespan

_MOST_TASKS = 20_000
_GROWTH = 1.3  # between the numbers of blocks, and of spans, that are tried
_WORTH = 0.995  # a plan with more tasks must be faster by this
_LONGEST_TASK_SECONDS = 600.0  # what a lost worker costs at most, where the layers allow it


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to share a run out.

    A task is one block on one span. Tasks are handed out span by span, so that the sums of a layer grow in the order
    of the images, and an image that was sent is soon not needed any more.

    Attributes:
        costs: of the run.
        workers: that work at the same time.
        blocks: of targets, in order.
        span_images: images of a span; the last may have fewer.
        seconds: from the start to the last measurement, by simulation.
        baseline_seconds: of these, until the uncompressed model is measured.
    """

    costs: RunCosts = field(repr=False)
    workers: int
    blocks: tuple[Block, ...]
    span_images: int
    seconds: float
    baseline_seconds: float

    @property
    def num_spans(self) -> int:
        """Spans of images."""
        return -(-self.costs.num_images // self.span_images)

    @property
    def num_tasks(self) -> int:
        """Tasks that measure; as many as there are spans measure the baseline before."""
        return len(self.blocks) * self.num_spans

    @property
    def speed_up(self) -> float:
        """How many times as fast as one machine by itself."""
        return self.costs.local_seconds / self.seconds

    @property
    def efficiency(self) -> float:
        """Share of the workers' time that goes into what one machine would have to do as well."""
        return self.speed_up / self.workers

    def sentence(self) -> str:
        """Return the plan as people read it."""
        return (
            f"{self.num_tasks} tasks ({len(self.blocks)} blocks of layers × {self.num_spans} spans of "
            f"{self.span_images} images) for {self.workers} workers: about {self.speed_up:.1f} times as fast as one."
        )


def choose_plan(costs: RunCosts, workers: int, *, most_images: int, span_images: int = 0) -> Plan:
    """Return the plan that is done first.

    Args:
        costs: of the run.
        workers: that work at the same time.
        most_images: that a worker has memory for at once.
        span_images: of the run that is resumed, which keeps its spans; 0 for a new one.
    """
    best: Plan | None = None
    bar = (math.inf, math.inf)  # seconds by which the best plan's tasks are too long; what a better one must beat
    for images in [span_images] if span_images else _span_sizes(costs, most_images):
        for blocks in _cuts(costs):
            if best is not None and len(blocks) * -(-costs.num_images // images) > _MOST_TASKS:
                break
            excess = max(0.0, max(costs.block_seconds(*block, images) for block in blocks) - _LONGEST_TASK_SECONDS)
            if (excess, _least(costs, blocks, workers)) >= bar:
                continue
            plan = plan_of(costs, workers, blocks=blocks, span_images=images)
            if (excess, plan.seconds) < bar:
                best, bar = plan, (excess, _WORTH * plan.seconds)
    assert best is not None
    return best


def plan_of(costs: RunCosts, workers: int, *, blocks: tuple[Block, ...], span_images: int) -> Plan:
    """Return the plan with these blocks and spans, its time simulated."""
    sizes = [min(span_images, costs.num_images - low) for low in range(0, costs.num_images, span_images)]
    begin = costs.alone_seconds + costs.start_seconds
    ready = [begin + costs.send_seconds_per_image * sum(sizes[: number + 1]) for number in range(len(sizes))]
    baseline = makespan([costs.baseline_seconds(size) for size in sizes], workers, ready=ready, start=begin)
    by_size = {size: [costs.block_seconds(*block, size) for block in blocks] for size in set(sizes)}
    shift = baseline - begin
    end = makespan(
        [seconds for size in sizes for seconds in by_size[size]],
        workers,
        ready=[moment + shift for moment in ready for _ in blocks],
        start=baseline,
    )
    return Plan(
        costs=costs, workers=workers, blocks=blocks, span_images=span_images, seconds=end, baseline_seconds=baseline
    )


def _least(costs: RunCosts, blocks: tuple[Block, ...], workers: int) -> float:
    """Return what no plan with these blocks can be faster than."""
    passes = 1 + sum(costs.passes(*block) for block in blocks)
    fixed = costs.alone_seconds + costs.start_seconds
    return fixed + costs.num_images * costs.seconds_per_image * passes / workers


@lru_cache(maxsize=8)
def _cuts(costs: RunCosts) -> tuple[tuple[Block, ...], ...]:
    """Return cuts of the layers into ever more blocks."""
    found = dict.fromkeys(balanced_blocks(costs, count) for count in _growing(len(costs.shares)))
    return tuple(found)


def _span_sizes(costs: RunCosts, most_images: int) -> list[int]:
    """Return sizes that cut the images evenly, the largest first; none exceeds ``most_images`` but by need."""
    unit = costs.micro_batch
    batches = -(-costs.num_images // unit)
    most = max(1, most_images // unit)
    sizes = [min(most, -(-batches // count)) * unit for count in _growing(batches)]
    affordable = -(-costs.num_images // _MOST_TASKS)
    return list(dict.fromkeys(size for size in sizes if size >= affordable)) or [most * unit]


def _growing(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count = max(count + 1, int(count * _GROWTH))
    yield most
