"""Plan of a distributed run: blocks of layers times spans of images, chosen by predicted time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from senseapp.data.pictures import survey_images
from senseapp.measure.session import Session
from senseapp.measure.sweep import Sweep
from senseapp.records.inputs import num_held_out
from senseapp.records.spec import RunSpec
from senseapp.tasks import task_named

_TIMED_IMAGES = 32  # of the passes that the plan is made from


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """The work of an exact run, and the overhead of distributing it.

    Attributes:
        shares: fraction of a forward pass that runs from each target on, by position; non-increasing.
        micro_batch: images per pass; spans of images are multiples of it.
        task_seconds: overhead of a task besides its passes: dispatch, fetching its images.
        measurement_seconds: time to compress a target once and to compute statistics, for any number of images.
        alone_seconds: time of the work that is not distributed: the quick scan.
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
        return (
            self.task_seconds
            + self.num_levels * (stop - first) * self.measurement_seconds
            + num_images * self.seconds_per_image * self.passes(first, stop)
        )

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
        # The quick scan: a forward pass and two backward besides the levels, of a limited number of images.
        alone_seconds=min(20.0, (5 + levels) * count * context.seconds_per_image),
    )


def forecast_costs(spec: RunSpec, *, progress: Callable[[str], None]) -> tuple[RunCosts, int]:
    """Time a few passes, count the rest; return the costs and the most images that a worker can hold.

    Raises SenseError as the run itself does.
    """
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


def even_blocks(costs: RunCosts, count: int) -> tuple[Block, ...]:
    """Return at most ``count`` blocks of about equal work.

    Targets in early layers have longer suffixes, so blocks there hold fewer of them.
    """
    done = np.cumsum(costs.shares)
    wanted = done[-1] * np.arange(1, count) / count
    inner = (int(each) for each in np.searchsorted(done, wanted, side="right"))
    return tuple(pairwise(sorted({0, *inner, len(costs.shares)})))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One distribution of a run: a task is one block on one span.

    Tasks are issued span by span, so that the sums of a layer grow in the order of the images, and the images of a span
    are soon released. ``seconds`` is a prediction, of which ``baseline_seconds`` precede the measurements.
    """

    costs: RunCosts = field(repr=False)
    workers: int
    blocks: tuple[Block, ...]
    span_images: int

    @property
    def baseline_seconds(self) -> float:
        """Predicted seconds before the measurements: work that is not distributed, start of workers, baseline."""
        costs, size = self.costs, min(self.span_images, self.costs.num_images)
        work = self.num_spans * costs.task_seconds + costs.num_images * costs.seconds_per_image
        longest = costs.task_seconds + size * costs.seconds_per_image
        return costs.alone_seconds + costs.start_seconds + self._shared(work, longest)

    @property
    def seconds(self) -> float:
        """Predicted seconds of the run."""
        work = self.num_spans * sum(self.costs.block_seconds(*block, 0) for block in self.blocks)
        passes = sum(self.costs.passes(*block) for block in self.blocks)
        work += self.costs.num_images * self.costs.seconds_per_image * passes
        return self.baseline_seconds + self._shared(work, self.longest_seconds)

    @property
    def longest_seconds(self) -> float:
        """Predicted seconds of the longest task."""
        size = min(self.span_images, self.costs.num_images)
        return max(self.costs.block_seconds(*block, size) for block in self.blocks)

    def _shared(self, work: float, longest: float) -> float:
        """Return the most seconds that tasks take if each goes to the first free worker (Graham 1966)."""
        return (work - longest) / self.workers + longest

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
    sizes = [span_images] if span_images else _span_sizes(costs, most_images)
    cuts = list(dict.fromkeys(even_blocks(costs, count) for count in _growing(len(costs.shares))))
    plans = [Plan(costs=costs, workers=workers, blocks=cut, span_images=size) for size in sizes for cut in cuts]
    # Planning and scheduling take time for each task.
    few = [plan for plan in plans if plan.num_tasks <= 20_000] or plans[:1]
    # Ten minutes are the most work to lose with a worker, where the layers allow it.
    return min(few, key=lambda plan: (max(0.0, plan.longest_seconds - 600.0), plan.seconds))


def _span_sizes(costs: RunCosts, most_images: int) -> list[int]:
    """Return span sizes that cut the images evenly, largest first, at most ``most_images`` where possible."""
    unit = costs.micro_batch
    batches = -(-costs.num_images // unit)
    most = max(1, most_images // unit)
    return list(dict.fromkeys(min(most, -(-batches // count)) * unit for count in _growing(batches)))


def _growing(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count = max(count + 1, int(count * 1.3))  # other numbers are hardly better
    yield most
