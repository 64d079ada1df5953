"""What schedules keep, on images that no curve has seen: ``make bench-schedule``.

Three small networks are trained on the digits that ship with senseapp (weights are kept in ``.cache``). For each case
the curves are measured on one half of the held-out digits, and every schedule on the other half: uniform, the classic
gamma rule and the optimal one, at equal true cost, without and with repair. No training follows compression.

    python -m benchmarks.schedules [--networks NAME,NAME] [--seed N]

Scores are top-1 without → with repair, on 449 digits (one is 0.002). *Proven* is the optimal schedule as ``prove``
leaves it. *Adapted* are the uniform and the optimal schedule with adapted weights. *Least gain* is the paired
difference of top-1 to the rival that comes nearest, with its 95 % interval. The table of another seed than the usual
one has the seed in its name.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.networks import trained
from benchmarks.results import keep
from benchmarks.schedule_cases import CASES, Case
from benchmarks.schedule_rows import Outcome, Row
from senseapp.compressions import PruningConfig
from senseapp.core.errors import SenseError
from senseapp.core.process import become_measuring
from senseapp.data.images import TensorImages
from senseapp.data.load import load_demo_images
from senseapp.descriptions import CompressionConfig
from senseapp.measure.sweep import Sweep
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.sources.demo import DEMO_PREPROCESSING
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.proof_images import ProofImages
from senseapp.prove.prove import prove, true_figure
from senseapp.prove.repair_choice import measured
from senseapp.reconstruct.apply import AppliedModel
from senseapp.records.measurement import RunResult, latest
from senseapp.records.schedule import ResourceBudget, Schedule
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.methods import make_schedule
from senseapp.solve.trade_off import with_true_size
from senseapp.tasks import CLASSIFICATION

USUAL_SEED = 1
GAMMAS = (1.0, 1.5)


def halves() -> tuple[TensorImages, TensorImages]:
    """Return the held-out digits in two halves: for curves, and for proofs."""
    held_out = load_demo_images("heldout")
    order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0)).tolist()
    return held_out.subset(sorted(order[: len(order) // 2])), held_out.subset(sorted(order[len(order) // 2 :]))


def bench_of(network: nn.Module, title: str, config: CompressionConfig, levels: tuple[float, ...]) -> ScheduleEvaluator:
    """Measure the curves, and return what schedules are proven on."""
    curves, proof = halves()
    spec = SensitivitySpec(compression=config, levels=levels)
    sweep = Sweep.open(network, curves, spec, task=CLASSIFICATION)
    result = RunResult(
        spec=RunSpec(sensitivity=spec),
        profile=replace(sweep.context.profile, title=title),
        metric=sweep.metric,
        baseline=sweep.baseline.values(),
        measurements=latest(sweep.measure()),
        num_samples=len(curves),
    )
    model = LoadedModel(module=network, title=title, preprocessing=DEMO_PREPROCESSING, num_classes=10, pretrained=True)
    return ScheduleEvaluator.open(
        result, model=model, images=ProofImages(curves=curves, proof=proof, note="other half")
    )


def solved(evaluator: ScheduleEvaluator, case: Case, method: str, gamma: float = 1.5) -> Schedule | None:
    """Return a schedule that truly meets the target, or None where the method has none."""

    def make(asked: float) -> Schedule:
        budget = ResourceBudget(kind=case.kind, target=asked)
        return make_schedule(evaluator.result, budget=budget, method=method, gamma=gamma)

    try:
        if not isinstance(case.config, PruningConfig):
            return make(case.target)
        return with_true_size(
            make, lambda tried: true_figure(evaluator, evaluator.reconstruction.apply(tried), case.kind), case.target
        )
    except SenseError:
        return None


def scores(evaluator: ScheduleEvaluator, applied: AppliedModel) -> Tensor:
    with applied.active():
        return replace(evaluator.dense, model=applied.model).baseline()


def outcome(evaluator: ScheduleEvaluator, schedule: Schedule | None) -> Outcome | None:
    if schedule is None:
        return None
    applied = evaluator.reconstruction.apply(schedule)
    plain = scores(evaluator, applied)
    evaluator.reconstruction.repair(applied)
    return Outcome(plain, scores(evaluator, applied))


def adapted(evaluator: ScheduleEvaluator, schedule: Schedule | None) -> Tensor | None:
    """Return the scores with adapted weights, where they measure better on images of the curves."""
    if schedule is None:
        return None
    applied = evaluator.reconstruction.apply(schedule)
    measured(evaluator, applied, schedule.metric, repair=True, images=evaluator.images.curves, adapting="minutes")
    return scores(evaluator, applied)


def row_of(evaluator: ScheduleEvaluator, case: Case) -> Row:
    """Try every schedule of ``case``."""
    uniform = solved(evaluator, case, "uniform")
    rivals = {"uniform": outcome(evaluator, uniform)}
    rivals |= {f"gamma {gamma:g}": outcome(evaluator, solved(evaluator, case, "gamma", gamma)) for gamma in GAMMAS}
    optimal = solved(evaluator, case, "optimal")
    first = outcome(evaluator, optimal)
    assert optimal is not None
    assert first is not None
    plain, repaired = (prove(evaluator, optimal, repair=repair) for repair in (False, True))
    assert evaluator.images.proof.labels is not None
    return Row(
        case=case,
        labels=evaluator.images.proof.labels,
        dense=evaluator.dense.baseline(),
        rivals=rivals,
        optimal=first,
        ours=Outcome(scores(evaluator, plain.applied), scores(evaluator, repaired.applied)),
        adapted=(adapted(evaluator, uniform), adapted(evaluator, optimal)),
        cost=true_figure(evaluator, plain.applied, case.kind),
    )


def rows(names: Sequence[str], seed: int) -> Iterator[Row]:
    """Measure each network's curves once per compression, and yield its cases."""
    for name in names:
        network = trained(name, seed=seed)
        benches: dict[CompressionConfig, ScheduleEvaluator] = {}
        for case in CASES:
            if case.network == name:
                if case.config not in benches:
                    benches[case.config] = bench_of(network, name, case.config, case.levels)
                yield row_of(benches[case.config], case)


def main() -> None:
    """Keep a row of each case of the networks named, or of all."""
    every = list(dict.fromkeys(case.network for case in CASES))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedules", description=__doc__)
    parser.add_argument("--networks", default=",".join(every), help="comma-separated")
    parser.add_argument("--seed", type=int, default=USUAL_SEED, help="of the training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for row in rows(options.networks.split(","), options.seed):
        keep("schedules" if options.seed == USUAL_SEED else f"schedules_seed_{options.seed}", row.cells())


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
