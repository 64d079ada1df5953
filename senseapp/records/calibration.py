"""Result of a check of calibration images: how many are needed, and which tensors they do not cover."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.core.codec import register
from senseapp.core.texts import listed, plural
from senseapp.metrics import METRICS

BEYOND = 0.001
"""Share of a tensor's values beyond its range from which it is worth a sentence; clipping fewer rarely shows."""
_OTHER_DOMAIN = 5.0  # times as many values beyond the range as among the calibration images themselves
_MANY = 256  # values of a tensor for each image: a share of them below BEYOND can be told
# share that few values may have beyond a range, or times what halves of the calibration images miss
_OF_FEW, _BY_CHANCE = 0.05, 3.0
_SETTLED = 2.0  # times what is notable: draws of images that differ by no more do not matter


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRung:
    """Files in int8 whose ranges come from different draws of as many images.

    Attributes:
        images: of each draw.
        values: of the metric on the images that judge, one for each draw.
    """

    images: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCoverage:
    """How far the values of a tensor on other images lie beyond their range on the calibration images.

    Attributes:
        node: that computes it; empty for the input.
        layer: that the node belongs to; empty where it is of none.
        low, high: the range on the calibration images.
        seen_low, seen_high: on the others.
        beyond: share of the values on the others that lie outside the range.
        values: of the tensor for each image.
    """

    node: str
    low: float
    high: float
    seen_low: float
    seen_high: float
    beyond: float
    values: int
    layer: str = ""

    def is_covered(self, own_beyond: float) -> bool:
        """Return whether the range is wide enough, if halves of the calibration images miss ``own_beyond`` of theirs.

        A tensor of few values, such as logits, has some beyond any range by chance.
        """
        least = BEYOND if self.values >= _MANY else max(_OF_FEW, _BY_CHANCE * own_beyond)
        return self.beyond <= least

    @property
    def title(self) -> str:
        """Name of the tensor."""
        return self.layer or self.node or "the input"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationCheck:
    """A check of calibration images.

    Attributes:
        metric: that is shown; its value counts where it is a share, else its change.
        rungs: the fewest images first; the last has all of them, in one draw.
        images: that all files were judged on; held-out ones, where a run has enough.
        tensors: how many the int8 file rounds; 0 where the runtime cannot tell.
        num_uncovered: of those that are not covered.
        uncovered: these, the worst first, at most a few.
        beyond, own_beyond: mean share over all tensors, on the held-out images, and of half of the calibration images
            beyond the ranges of the other half.
        notes: sentences on what else was recognised.
    """

    metric: str
    rungs: tuple[CalibrationRung, ...]
    images: int
    tensors: int = 0
    num_uncovered: int = 0
    uncovered: tuple[TensorCoverage, ...] = ()
    beyond: float = 0.0
    own_beyond: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def enough(self) -> int | None:
        """The fewest images from which on no draw is notably off the largest rung; None if there is no such rung."""
        metric, found = METRICS[self.metric], None
        last = sum(self.rungs[-1].values) / len(self.rungs[-1].values)
        for rung in reversed(self.rungs):
            if max(abs(value - last) for value in rung.values) > _SETTLED * metric.notable:
                break
            found = rung.images
        return found if found != self.rungs[-1].images or len(self.rungs) == 1 else None

    @property
    def findings(self) -> tuple[str, ...]:
        """Findings in sentences; the first is about the number of images needed."""
        return (self._ladder(), *((self._coverage(),) if self.uncovered else ()), *self.notes)

    def _ladder(self) -> str:
        metric, first, last = METRICS[self.metric], self.rungs[0], self.rungs[-1]
        final = metric.value_text(sum(last.values) / len(last.values))
        measured = f"(measured on {plural(self.images, 'image')})"
        start = f"{metric.label} with {plural(first.images, 'calibration image')}:"
        if len(self.rungs) == 1:
            return f"{start} {final} {measured}: too few images to draw some of them."
        spread = self.spread_text(first, unit=True)
        if self.enough == first.images:
            in_draws = f"in {plural(len(first.values), 'draw')}, and {final} with all {last.images} {measured}"
            return f"{start} {spread} {in_draws}: {first.images} are enough."
        start = f"{start} {spread} by chance of the draw"
        if self.enough is None:
            return f"{start}, with all {last.images} {final} {measured}: it has not settled, so bring more images."
        return f"{start}; from {self.enough} on it is {final} {measured}."

    def spread_text(self, rung: CalibrationRung, *, unit: bool) -> str:
        """Return the range of a rung's values over its draws; one value where they are shown alike."""
        metric = METRICS[self.metric]
        low, high = (metric.value_text(value) for value in (min(rung.values), max(rung.values)))
        if low == high:
            return low if unit else low.removesuffix(metric.value_unit).strip()
        spread = metric.interval_text(min(rung.values), max(rung.values))
        return f"{spread} {metric.value_unit}".strip() if unit else spread

    def _coverage(self) -> str:
        worst = self.uncovered[0]
        where = listed(dict.fromkeys(each.title for each in self.uncovered))
        tensors = f"{self.num_uncovered} of {plural(self.tensors, 'tensor')} ({where})"
        why = "they are too few to show the whole range: bring more"
        if self.beyond > _OTHER_DOMAIN * self.own_beyond:
            why = "they look unlike the others: calibrate on images like those that the file will see"
        return (
            f"The calibration images do not cover {tensors}: in {worst.title}, {100 * worst.beyond:.2g} % of the "
            f"values on the images that judge lie beyond {worst.low:.3g} to {worst.high:.3g} (they are "
            f"{worst.seen_low:.3g} to {worst.seen_high:.3g}), and are clipped. Probably {why}."
        )


register(CalibrationCheck)
