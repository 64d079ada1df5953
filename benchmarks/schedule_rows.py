"""What one case of ``make bench-schedule`` found, judged against its demand, as a row of the results."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from benchmarks.schedule_cases import Case
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.metrics import MetricChange, change_of


@dataclass(frozen=True)
class Outcome:
    """Class scores of the proof images (N, classes), without and with repair."""

    plain: Tensor
    repaired: Tensor


@dataclass(frozen=True)
class Row:
    """All schedules of one case.

    ``ours`` is the optimal one as it is proven, solved again where that was needed; ``adapted`` are the scores of the
    uniform and of the optimal one with adapted weights, (N, classes).
    """

    case: Case
    labels: Tensor
    dense: Tensor
    rivals: dict[str, Outcome | None]
    optimal: Outcome
    ours: Outcome
    adapted: tuple[Tensor | None, Tensor | None]
    cost: float

    def top1(self, scores: Tensor) -> float:
        return float((scores.argmax(1) == self.labels).double().mean())

    def gain(self, rival: Tensor, ours: Tensor) -> MetricChange:
        """Return the change of top-1 from ``rival`` to ``ours``, paired image by image."""
        sums = BaselineOutputs(rival, self.labels, ("top1",)).moments(ours, 0, len(self.labels))
        return change_of("top1", sums["top1"])

    def comparisons(self) -> list[tuple[str, MetricChange]]:
        """Return how ours compares with each rival, without and with repair."""
        met = {name: rival for name, rival in self.rivals.items() if rival is not None}
        found = [(name, self.gain(rival.plain, self.ours.plain)) for name, rival in met.items()] + [
            (f"{name}, repaired", self.gain(rival.repaired, self.ours.repaired)) for name, rival in met.items()
        ]
        uniform, ours = self.adapted
        if uniform is not None and ours is not None:
            found.append(("uniform, adapted", self.gain(uniform, ours)))
        return found

    def misses(self) -> list[str]:
        """Return what the case demands and does not get; losses are read to one image."""
        demand, uniform, dense = self.case.demand, self.rivals["uniform"], self.top1(self.dense)
        stages = (("plain", demand.plain), ("repaired", demand.repaired))
        missed = []
        for stage, allowed in stages:
            found = self.top1(getattr(self.ours, stage))
            other = 0.0 if uniform is None else self.top1(getattr(uniform, stage))
            excused = demand.over_uniform is not None and found >= other + demand.over_uniform
            if allowed is not None and found < dense - allowed - 1e-9 and not excused:
                missed.append(f"{stage} {found - dense:+.3f}")
        return missed + [f"worse than {name}" for name, change in self.comparisons() if change.ci_low > 0]

    def cells(self) -> dict[str, object]:
        """Return it as a row of the results."""

        def shown(outcome: Outcome | None) -> str:
            if outcome is None:
                return "–"
            return f"{self.top1(outcome.plain):.3f} → {self.top1(outcome.repaired):.3f}"

        name, worst = max(self.comparisons(), key=lambda named: named[1].delta)
        gain, low, high = (f"{-figure + 0.0:+.3f}" for figure in (worst.delta, worst.ci_high, worst.ci_low))
        return {
            "case": self.case,
            "dense": f"{self.top1(self.dense):.3f}",
            "uniform": shown(self.rivals["uniform"]),
            "gamma (best)": max(shown(outcome) for name, outcome in self.rivals.items() if name != "uniform"),
            "optimal": shown(self.optimal),
            "proven": shown(self.ours),
            "adapted: uniform / optimal": " / ".join(
                "–" if each is None else f"{self.top1(each):.3f}" for each in self.adapted
            ),
            "true cost": f"{self.cost:.3f}",
            "least gain over another": f"{gain} ({low} to {high}; {name})",
            "demand": self.case.demand,
            "holds": "; ".join(self.misses()) or "yes",
        }
