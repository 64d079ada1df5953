"""Plan of a distributed run: blocks of layers times spans of images, chosen by simulated time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from senseapp.records.inputs import num_held_out
from senseapp.records.spec import RunSpec

if TYPE_CHECKING:
    from senseapp.measure.sweep import Sweep

_TIMED_IMAGES = 32  # of the passes that the plan is made from
_SCAN_PASSES, _LONGEST_SCAN_SECONDS = 5, 20.0  # of the quick scan: a forward pass and two backward, besides the levels


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """The work of an exact run, and the overhead of distributing it.

    Attributes:
        shares: fraction of a forward pass that runs from each target on, by position; non-increasing.
        micro_batch: images per pass; spans of images are multiples of it.
        task_seconds: overhead of a task besides its passes: dispatch, fetching its images.
        measurement_seconds: time to compress a target once and to compute statistics, for any number of images.
        alone_seconds: time of the work that is not distributed: the trial of layouts and the quick scan.
    """

    shares: tuple[float, ...]
    num_levels: int
    num_images: int
    seconds_per_image: float
    micro_batch: int = 16
    task_seconds: float = 0.05
    measurement_seconds: float = 0.01
    start_seconds: float = 10.0
    alone_seconds: float = 20.0

    def __post_init__(self) -> None:
        if not self.shares or any(after > before + 1e-9 for before, after in pairwise(self.shares)):
            raise ValueError(f"shares must be given in the order of the forward pass, got {self.shares}")

    def passes(self, first: int, stop: int) -> float:
        """Return the forward passes per image that targets ``first`` to before ``stop`` take as one block.

        Kept outputs advance through the network once, up to the last target; each level of each target then runs the
        suffix: ``1 − share(last) + levels × Σ share``.
        """
        return 1.0 - self.shares[stop - 1] + self.num_levels * sum(self.shares[first:stop])

    def block_seconds(self, first: int, stop: int, num_images: int) -> float:
        """Return the seconds of one task: targets ``first`` to before ``stop`` on ``num_images`` images."""
        measurements = self.num_levels * (stop - first)
        return (
            self.task_seconds
            + measurements * self.measurement_seconds
            + num_images * self.seconds_per_image * self.passes(first, stop)
        )

    def baseline_seconds(self, num_images: int) -> float:
        """Return the seconds of one baseline task."""
        return self.task_seconds + num_images * self.seconds_per_image

    @property
    def local_seconds(self) -> float:
        """Seconds on one machine: nothing is sent or started, and all images form one span."""
        sweep = self.num_images * self.seconds_per_image * (1 + self.passes(0, len(self.shares)))
        return self.alone_seconds + sweep + self.num_levels * len(self.shares) * self.measurement_seconds


def costs_of(sweep: Sweep, *, num_images: int | None = None) -> RunCosts:
    """Return the costs of ``sweep`` from its timed passes, on ``num_images`` images (None: on all)."""
    context, levels, count = sweep.context, len(sweep.spec.levels), num_images or len(sweep.context.images)
    return RunCosts(
        shares=tuple(1.0 if context.replay_obstacle else item.suffix for item in sweep.planned) or (0.0,),
        num_levels=levels,
        num_images=count,
        seconds_per_image=context.seconds_per_image,
        micro_batch=context.layout.micro_batch,
        alone_seconds=min(_LONGEST_SCAN_SECONDS, (_SCAN_PASSES + levels) * count * context.seconds_per_image),
    )


def forecast_costs(spec: RunSpec, *, progress: Callable[[str], None]) -> tuple[RunCosts, int]:
    """Time a few passes, count the rest; return the costs and the most images that a worker can hold.

    Raises:
        SenseError: as for the run itself.
    """
    from senseapp.data.pictures import survey_images  # imports torch, like the modules below
    from senseapp.measure.session import Session
    from senseapp.tasks import task_named

    asked = spec.sensitivity.num_samples
    listed = spec.data.kind in ("folder", "archive")
    few = asked if asked is not None and asked <= _TIMED_IMAGES else _TIMED_IMAGES if asked or listed else None
    settings = replace(spec.sensitivity, num_samples=few, mode="exact", until_settled=False)
    session = Session.open(replace(spec, sensitivity=settings), progress=progress)
    count, model = asked or len(session.images), session.model
    if listed and not asked:
        task = task_named(spec.model.task)
        survey = survey_images(spec.data, num_classes=model.num_classes, task=task, class_names=model.class_names)
        count = survey.num_images - num_held_out(survey.num_images)
    # A worker is expected to keep 2 GiB of images and outputs.
    return costs_of(session.sweep, num_images=count), max(1, 2 * 2**30 // session.sweep.bytes_per_image())


Block = tuple[int, int]
"""Index of the first target, and of the one after the last."""


def balanced_blocks(costs: RunCosts, count: int) -> tuple[Block, ...]:
    """Return at most ``count`` blocks that minimise the cost of the costliest block.

    Targets in early layers have longer suffixes, so blocks there hold fewer of them. Adding a layer never makes a block
    cheaper, so greedy packing up to a bound needs the fewest blocks; the least bound is found by bisection.
    """
    running = [0.0, *accumulate(costs.num_levels * share for share in costs.shares)]
    low, high = 0.0, 1.000001 * costs.passes(0, len(costs.shares))  # above the cost of one block in spite of rounding
    for _ in range(50):  # halvings: to float precision
        middle = (low + high) / 2
        if _packed(costs, running, middle, count) is None:
            low = middle
        else:
            high = middle
    packed = _packed(costs, running, high, count)
    assert packed is not None  # one block of all layers is within the initial bound
    return packed


def _packed(costs: RunCosts, running: list[float], bound: float, count: int) -> tuple[Block, ...] | None:
    """Fill blocks up to ``bound`` passes; None if one layer exceeds it or more than ``count`` are needed."""
    blocks, first = [], 0
    for index, share in enumerate(costs.shares):
        if 1 - share + running[index + 1] - running[first] <= bound:
            continue
        if index == first or 1 - share + running[index + 1] - running[index] > bound:
            return None
        blocks.append((first, index))
        first = index
        if len(blocks) == count:
            return None
    return (*blocks, (first, len(costs.shares)))


def makespan(seconds: Iterable[float], workers: int) -> float:
    """Return when the last task ends, if tasks are assigned in order to the first free worker (list scheduling).

    At least the total over ``workers`` and at least as long as the longest task; at most the sum of the two (Graham,
    1966), and never longer with one worker more.

    >>> makespan([3, 1, 1, 1], 2)
    3.0
    """
    free = [0.0] * workers
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


_MOST_TASKS = 20_000  # of a plan, however many images: planning and scheduling take time for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One distribution of a run: a task is one block on one span.

    Tasks are issued span by span, so that the sums of a layer grow in the order of the images, and the images of a span
    are soon released. ``seconds`` is simulated time, of which ``baseline_seconds`` precede the measurements.
    """

    costs: RunCosts = field(repr=False)
    workers: int
    blocks: tuple[Block, ...]
    span_images: int
    seconds: float
    baseline_seconds: float

    @property
    def num_spans(self) -> int:
        """Number of spans of images."""
        return -(-self.costs.num_images // self.span_images)

    @property
    def num_tasks(self) -> int:
        """Number of tasks that measure; the baseline adds one per span."""
        return len(self.blocks) * self.num_spans

    @property
    def speed_up(self) -> float:
        """Speed-up over one machine."""
        return self.costs.local_seconds / self.seconds

    @property
    def efficiency(self) -> float:
        """Share of the workers' time that is spent on work which one machine would do as well."""
        return self.speed_up / self.workers

    def sentence(self) -> str:
        """Return the plan as one sentence."""
        return (
            f"{self.num_tasks} tasks ({len(self.blocks)} blocks of layers × {self.num_spans} spans of "
            f"{self.span_images} images) for {self.workers} workers: about {self.speed_up:.1f} times as fast as one."
        )


def choose_plan(costs: RunCosts, workers: int, *, most_images: int, span_images: int = 0) -> Plan:
    """Return the fastest plan that avoids too long tasks; ``span_images`` above 0 are those of a resumed run."""
    best: Plan | None = None
    bar = (math.inf, math.inf)  # excess seconds of the best plan's longest task; seconds that a better plan must beat
    for images in [span_images] if span_images else _span_sizes(costs, most_images):
        for blocks in _cuts(costs):
            if best is not None and len(blocks) * -(-costs.num_images // images) > _MOST_TASKS:
                break
            # Ten minutes are the most work to lose with a worker, where the layers allow it.
            excess = max(0.0, max(costs.block_seconds(*block, images) for block in blocks) - 600.0)
            if (excess, _least(costs, blocks, workers)) >= bar:
                continue
            plan = plan_of(costs, workers, blocks=blocks, span_images=images)
            if (excess, plan.seconds) < bar:
                best, bar = plan, (excess, 0.995 * plan.seconds)  # a plan with more tasks must be faster by this
    assert best is not None
    return best


def plan_of(costs: RunCosts, workers: int, *, blocks: tuple[Block, ...], span_images: int) -> Plan:
    """Return the plan with these blocks and spans, and its simulated time."""
    sizes = [min(span_images, costs.num_images - low) for low in range(0, costs.num_images, span_images)]
    baseline = costs.alone_seconds + costs.start_seconds + makespan(map(costs.baseline_seconds, sizes), workers)
    by_size = {size: [costs.block_seconds(*block, size) for block in blocks] for size in set(sizes)}
    measuring = makespan((seconds for size in sizes for seconds in by_size[size]), workers)
    return Plan(
        costs=costs,
        workers=workers,
        blocks=blocks,
        span_images=span_images,
        seconds=baseline + measuring,
        baseline_seconds=baseline,
    )


def _least(costs: RunCosts, blocks: tuple[Block, ...], workers: int) -> float:
    """Return a lower bound on the seconds of a plan with these blocks."""
    passes = 1 + sum(costs.passes(*block) for block in blocks)
    fixed = costs.alone_seconds + costs.start_seconds
    return fixed + costs.num_images * costs.seconds_per_image * passes / workers


@lru_cache(maxsize=8)
def _cuts(costs: RunCosts) -> tuple[tuple[Block, ...], ...]:
    found = dict.fromkeys(balanced_blocks(costs, count) for count in _growing(len(costs.shares)))
    return tuple(found)


def _span_sizes(costs: RunCosts, most_images: int) -> list[int]:
    """Return span sizes that cut the images evenly, largest first, at most ``most_images`` where possible."""
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
        count = max(count + 1, int(count * 1.3))  # other numbers are hardly better
    yield most
