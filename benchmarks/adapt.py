"""What adapted weights win back: ``python -m benchmarks.adapt [--only TITLE ...]``.

A real network on photographs, and small networks trained here on digits. Schedules are solved, and weights adapted, on
some images; the choice between ways to adapt is made on those too, with a veto of others, and all is scored on images
that nothing was made from. KL is given as a share of that of the same schedule rounded, zeroed or pruned; of zeros,
schedules are solved for layers measured with adapted weights, and the share is that of the usual schedule's.

Rows are written as they are found, in place of older ones
of the same title, so that a part can be measured alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.networks import BITS, NETWORKS, PRUNED, SPARSE
from benchmarks.real.network import ARCHITECTURE
from benchmarks.results import Row
from benchmarks.scans import ADAPTED_ON, SCORED, Scan, unseen
from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.process import become_measuring
from senseapp.descriptions import BudgetKind, CompressionConfig
from senseapp.prove.evaluator import ScheduleEvaluator, couplings_of
from senseapp.prove.repair_choice import Measured, measured
from senseapp.reconstruct.apply import AppliedModel
from senseapp.records.schedule import Adapting, ResourceBudget, Schedule, ScheduleEntry
from senseapp.solve.methods import make_schedule
from senseapp.solve.trade_off import truly_sized

_MOST_SECONDS = 120
_ZEROS, _BITS = tuple(step / 10 for step in range(1, 10)), (8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)
_NEAR = 0.01  # of the original's accuracy


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schedule that is carried out plainly, as today, and with adapted weights.

    Attributes:
        wanted: most of the plain KL, or of today's loss of accuracy, that may be left.
        solve: makes the schedule, given the network and its scan.
        solved_for: the scan that the adapted schedule is solved for; None for the same.
        carried_out: how, if not as it was measured.
    """

    title: str
    scan: Scan
    wanted: float
    solve: Callable[[ScheduleEvaluator], Schedule]
    solved_for: Scan | None = None
    carried_out: CompressionConfig | None = None
    adapting: Adapting = "minutes"


def _budget(kind: BudgetKind, target: float) -> Callable[[ScheduleEvaluator], Schedule]:
    return partial(_solved, kind=kind, target=target)


def _solved(evaluator: ScheduleEvaluator, *, kind: BudgetKind, target: float) -> Schedule:
    budget = ResourceBudget(kind=kind, target=target)
    return make_schedule(evaluator.result, budget=budget, metric="kl", method="optimal")


def _two_of_four(evaluator: ScheduleEvaluator) -> Schedule:
    """Return the pattern in every layer that it fits, whose inputs come in fours."""
    entries = tuple(
        ScheduleEntry(layer=layer.name, members=(layer.name,), compression="sparsity", level=0.5)
        for layer in evaluator.profile.layers
        if layer.weight_shape[1] % 4 == 0
    )
    return Schedule(model=evaluator.profile.title, method="manual", entries=entries, metric="kl")


def _pruned(evaluator: ScheduleEvaluator, *, target: float) -> Schedule:
    """Return the best schedule that truly removes ``target`` of the multiply-accumulates."""
    groups, budget = couplings_of(evaluator.dense.model, evaluator.result), ResourceBudget(kind="macs", target=target)
    return truly_sized(
        lambda asked: _solved(evaluator, kind="macs", target=asked), evaluator.result.profile, groups, budget
    )


def _cases() -> Iterator[Case]:
    zeros = Scan(network=ARCHITECTURE, config=SparsityConfig(), levels=_ZEROS)
    bits = Scan(network=ARCHITECTURE, config=QuantizationConfig(), levels=_BITS)
    for title, target, wanted in (("4 bits", 4.0, 0.25), ("3 bits", 3.0, 0.17)):
        yield Case(title=title, scan=bits, wanted=wanted, solve=_budget("bits", target))
        blocks = f"{title}, blocks tuned"
        yield Case(title=blocks, scan=bits, wanted=wanted, solve=_budget("bits", target), adapting="best")
    for title, target, wanted in (("50 % zeros", 0.5, 0.4), ("60 % zeros", 0.6, 0.4), ("70 % zeros", 0.7, 0.5)):
        solve, adapted = _budget("params", target), replace(zeros, levels=_ZEROS[2:], adapted=True)
        yield Case(title=title, scan=zeros, wanted=wanted, solve=solve, solved_for=adapted)
    pattern = SparsityConfig(granularity="2:4")
    yield Case(title="2:4", scan=zeros, wanted=0.3, solve=_two_of_four, carried_out=pattern)
    pruned = Scan(network=ARCHITECTURE, config=PruningConfig(), levels=PRUNED)
    yield Case(title="30 % of MACs", scan=pruned, wanted=0.6, solve=partial(_pruned, target=0.3))
    rounded, channels = QuantizationConfig(activations=True), PruningConfig()
    for network in ("resnet", "mobilenet", "vit"):
        title, scan = NETWORKS[network].title, partial(Scan, network=network)
        yield Case(
            title=f"{title} 2 bits",
            scan=scan(config=QuantizationConfig(), levels=BITS),
            wanted=0.5,
            solve=_budget("bits", 2.0),
            adapting="best",
        )
        sparse = scan(config=SparsityConfig(), levels=SPARSE)
        yield Case(title=f"{title} 95 % zeros", scan=sparse, wanted=0.5, solve=_budget("params", 0.95))
        narrow, macs = scan(config=channels, levels=PRUNED), partial(_pruned, target=0.5)
        yield Case(title=f"{title} 50 % of MACs", scan=narrow, wanted=0.5, solve=macs)
    both = Scan(network="vit", config=rounded, levels=BITS)
    yield Case(title=f"{NETWORKS['vit'].title} W4A4", scan=both, wanted=0.5, solve=_budget("bits", 4.0))


def _delivered(
    case: Case, evaluator: ScheduleEvaluator, schedule: Schedule, adapting: Adapting
) -> tuple[dict[str, float], Measured]:
    """Return by metric what is lost on unseen images as delivered, and what was measured on the way."""
    applied = evaluator.apply(schedule)
    found = measured(evaluator, applied, "kl", repair=True, adapting=adapting)
    return _lost(evaluator, case, applied), found


def _lost(evaluator: ScheduleEvaluator, case: Case, applied: AppliedModel) -> dict[str, float]:
    return {change.metric: change.delta for change in evaluator.judged(applied, unseen(case.scan.network)).changes}


def rows_of(case: Case) -> Iterator[Row]:
    """Yield what is left of the damage, and, of the real network, the time that all of it took."""
    evaluator = case.scan.evaluator()
    if case.carried_out is not None:
        evaluator.configs = {**evaluator.configs, case.carried_out.kind: case.carried_out}
    schedule = case.solve(evaluator)
    plain = _lost(evaluator, case, evaluator.apply(schedule))
    if case.solved_for is not None:
        evaluator = case.solved_for.evaluator()
        schedule = case.solve(evaluator)
    evaluator.reference  # noqa: B018  # once for all schedules of a network
    wall, cpu = time.perf_counter(), time.process_time()
    adapted, found = _delivered(case, evaluator, schedule, case.adapting)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    steps = ", ".join(f"{step.title.lower()} {step.change.delta:.3f}" for step in found.steps)
    if case.scan.network != ARCHITECTURE:
        today, _ = _delivered(case, evaluator, schedule, "off")
        lost, before = adapted["top1"], min(today["top1"], plain["top1"])
        yield Row(
            what=f"{case.title}: top-1 lost, as a share of today's best",
            wanted=f"≤ {case.wanted:g}, or at most {_NEAR:g}",
            found=f"{lost / before if before > 0 else 1:.2f} ({before:.3f} today, {lost:.3f} adapted; KL held out: "
            f"{steps})",
            holds=lost <= max(case.wanted * before, _NEAR),
        )
        return
    plain_kl, kl = plain["kl"], adapted["kl"]
    if isinstance(case.scan.config, PruningConfig):
        plain_kl = min(plain_kl, _delivered(case, evaluator, schedule, "off")[0]["kl"])
    yield Row(
        what=f"{case.title}: KL on {SCORED} other photographs, as a share of that of the schedule alone",
        wanted=f"≤ {case.wanted:g}",
        found=f"{kl / plain_kl:.3f} ({plain_kl:.3f}, adapted {kl:.3f}; held out: {steps})",
        holds=kl <= case.wanted * plain_kl,
    )
    limited = case.adapting != "best"
    yield Row(
        what=f"{case.title}: time of all steps and their choice, {ADAPTED_ON} images",
        wanted=f"≤ {_MOST_SECONDS} s on two cores" if limited else "no limit",
        found=f"{wall:.0f} s, {cpu:.0f} s of processors, {torch.get_num_threads()} threads",
        holds=wall <= _MOST_SECONDS or not limited,
    )


def main() -> None:
    """Print each row and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapt", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="TITLE", help="titles of cases")
    chosen = parser.parse_args().only
    cases = [case for case in _cases() if chosen is None or case.title in chosen]
    if not cases:
        parser.error(f"--only names none of {', '.join(case.title for case in _cases())}.")
    for case in cases:
        for row in rows_of(case):
            row.keep("adapt")


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
