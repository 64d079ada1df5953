"""What adapted weights win back of a real network on photographs: ``python -m benchmarks.adapt [--only TITLE ...]``.

Schedules are solved, and weights adapted, on some images; the choice between ways to adapt is made on those too, with a
veto of others, and all is scored on images that nothing was made from. KL is given as a share of that of the same
schedule rounded or zeroed; of zeros, schedules are solved for layers measured with adapted weights, and the share is
that of the usual schedule's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from benchmarks.real.network import ARCHITECTURE
from benchmarks.results import Row
from benchmarks.scans import ADAPTED_ON, SCORED, Scan, unseen
from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.core.process import become_measuring
from senseapp.descriptions import BudgetKind
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.repair_choice import measured
from senseapp.reconstruct.apply import AppliedModel
from senseapp.records.schedule import ResourceBudget, Schedule
from senseapp.solve.methods import make_schedule

_MOST_SECONDS = 120
_LEVELS = tuple(step / 10 for step in range(1, 10))
_ZEROS = Scan(network=ARCHITECTURE, config=SparsityConfig(), levels=_LEVELS)
_BITS = Scan(network=ARCHITECTURE, config=QuantizationConfig(), levels=(8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0))


@dataclass(frozen=True, slots=True)
class Case:
    """A schedule that is carried out plainly, and with adapted weights.

    Attributes:
        wanted: most of the plain KL that may be left.
    """

    title: str
    scan: Scan
    kind: BudgetKind
    target: float
    wanted: float

    def solved(self, evaluator: ScheduleEvaluator) -> Schedule:
        """Return the best schedule for a network and its scan."""
        budget = ResourceBudget(kind=self.kind, target=self.target)
        return make_schedule(evaluator.result, budget=budget, metric="kl", method="optimal")


CASES = (
    Case("4 bits", _BITS, "bits", 4.0, wanted=0.25),
    Case("3 bits", _BITS, "bits", 3.0, wanted=0.17),
    Case("50 % zeros", _ZEROS, "params", 0.5, wanted=0.4),
    Case("60 % zeros", _ZEROS, "params", 0.6, wanted=0.4),
    Case("70 % zeros", _ZEROS, "params", 0.7, wanted=0.5),
)


def _lost(evaluator: ScheduleEvaluator, applied: AppliedModel) -> float:
    changes = evaluator.judged(applied, unseen(ARCHITECTURE)).changes
    return next(change.delta for change in changes if change.metric == "kl")


def rows_of(case: Case) -> Iterator[Row]:
    """Yield what is left of the damage, and the time that all of it took."""
    evaluator = case.scan.evaluator()
    schedule = case.solved(evaluator)
    plain = _lost(evaluator, evaluator.apply(schedule))
    if case.scan is _ZEROS:
        evaluator = replace(_ZEROS, levels=_LEVELS[2:], adapted=True).evaluator()
        schedule = case.solved(evaluator)
    evaluator.reference  # noqa: B018  # once for all schedules of a network
    wall, cpu = time.perf_counter(), time.process_time()
    applied = evaluator.apply(schedule)
    found = measured(evaluator, applied, "kl", repair=True, adapting="minutes")
    adapted = _lost(evaluator, applied)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    steps = ", ".join(f"{step.title.lower()} {step.change.delta:.3f}" for step in found.steps)
    yield Row(
        what=f"{case.title}: KL on {SCORED} other photographs, as a share of that of the schedule alone",
        wanted=f"≤ {case.wanted:g}",
        found=f"{adapted / plain:.3f} ({plain:.3f}, adapted {adapted:.3f}; held out: {steps})",
        holds=adapted <= case.wanted * plain,
    )
    yield Row(
        what=f"{case.title}: time of all steps and their choice, {ADAPTED_ON} images",
        wanted=f"≤ {_MOST_SECONDS} s on two cores",
        found=f"{wall:.0f} s, {cpu:.0f} s of processors, {torch.get_num_threads()} threads",
        holds=wall <= _MOST_SECONDS,
    )


def main() -> None:
    """Print each row and write it, in place of an older one of the same title."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapt", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[case.title for case in CASES], help="titles of cases")
    chosen = parser.parse_args().only
    for case in CASES:
        for row in rows_of(case) if chosen is None or case.title in chosen else ():
            row.keep("adapt")


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
