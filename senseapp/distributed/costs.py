"""What one run costs, piece by piece: the figures that a plan is made from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from senseapp.sensitivity import Sweep


_SCAN_PASSES, _LONGEST_SCAN_SECONDS = 5, 20.0  # of the quick scan: a forward pass and two backward, besides the levels


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """The work of an exact run, and what sharing it out adds.

    Attributes:
        shares: of a forward pass that runs from each target on, by position; never rising.
        num_levels: levels measured on each target.
        num_images: images measured on.
        seconds_per_image: of one whole forward pass, on one worker.
        micro_batch: images of one pass; images are shared out in multiples of it.
        send_seconds_per_image: to prepare one image and bring it to a worker; one after the other, by the machine
            that asks.
        task_seconds: that a task takes besides its passes: to be handed out, to fetch its images.
        measurement_seconds: to compress a target once, and for its statistics, however few images there are.
        start_seconds: until a worker has loaded the engine and the model, once.
        alone_seconds: of work that is not shared out: the trial of layouts and the quick scan.
    """

    shares: tuple[float, ...]
    num_levels: int
    num_images: int
    seconds_per_image: float
    micro_batch: int = 16
    send_seconds_per_image: float = 0.0
    task_seconds: float = 0.05
    measurement_seconds: float = 0.01
    start_seconds: float = 10.0
    alone_seconds: float = 20.0

    def __post_init__(self) -> None:
        if not self.shares or any(after > before + 1e-9 for before, after in pairwise(self.shares)):
            raise ValueError(f"shares must be given in the order of the forward pass, got {self.shares}")

    def passes(self, first: int, stop: int) -> float:
        """Return the forward passes per image that targets ``first`` to before ``stop`` take as one block.

        Kept outputs are advanced through the network once, up to the last target; each level of each target then runs
        what follows it: ``1 − share(last) + levels × Σ share``.
        """
        return 1.0 - self.shares[stop - 1] + self.num_levels * sum(self.shares[first:stop])

    def block_seconds(self, first: int, stop: int, num_images: int) -> float:
        """Return how long one task takes: targets ``first`` to before ``stop`` on ``num_images`` images."""
        measurements = self.num_levels * (stop - first)
        return (
            self.task_seconds
            + measurements * self.measurement_seconds
            + num_images * self.seconds_per_image * self.passes(first, stop)
        )

    def baseline_seconds(self, num_images: int) -> float:
        """Return how long one task of the baseline takes."""
        return self.task_seconds + num_images * self.seconds_per_image

    @property
    def local_seconds(self) -> float:
        """How long one machine takes by itself: nothing is sent or started, and all images are one span."""
        sweep = self.num_images * self.seconds_per_image * (1 + self.passes(0, len(self.shares)))
        return self.alone_seconds + sweep + self.num_levels * len(self.shares) * self.measurement_seconds

    def running_passes(self) -> list[float]:
        """Return ``levels × Σ share`` over the first n targets, for n from 0."""
        return [0.0, *accumulate(self.num_levels * share for share in self.shares)]


def costs_of(sweep: Sweep, *, num_images: int | None = None) -> RunCosts:
    """Return what ``sweep`` costs by its timed passes, on all its images unless a number is given."""
    count, levels, pace = num_images or len(sweep.bench.images), len(sweep.spec.levels), sweep.bench.seconds_per_image
    return RunCosts(
        shares=tuple(1.0 if sweep.bench.unsafe else item.suffix for item in sweep.planned) or (0.0,),
        num_levels=levels,
        num_images=count,
        seconds_per_image=pace,
        micro_batch=sweep.bench.layout.micro_batch,
        alone_seconds=min(_LONGEST_SCAN_SECONDS, (_SCAN_PASSES + levels) * count * pace),
    )
