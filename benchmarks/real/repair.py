"""What repair does to schedules of a real network: fitted and chosen on some parts of pictures, scored on others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import scans
from benchmarks.real.network import ARCHITECTURE
from benchmarks.real.photographs import MADE_FROM, SCORED_ON, tensors
from benchmarks.results import Row
from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.data.images import ImageSet, TensorImages
from senseapp.descriptions import BudgetKind, CompressionConfig
from senseapp.metrics import MetricChange
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.prove.repair_choice import measured
from senseapp.records.schedule import ResourceBudget, Schedule
from senseapp.records.spec import SensitivitySpec
from senseapp.solve.methods import make_schedule

_CURVES, _PROOFS, _SCORED = 126, 56, 112  # images: a multiple of the pictures each, so that every one counts alike
_NOTHING = 1e-6
_SHARES = {"50 % zeros": 0.65, "4 bits": 0.60}


@dataclass(frozen=True)
class Run:
    """A quick run, and the targets of the schedules made from it."""

    config: CompressionConfig
    levels: tuple[float, ...]
    kind: BudgetKind
    targets: dict[str, float]


RUNS = (
    Run(
        SparsityConfig(),
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        "params",
        {"50 % zeros": 0.5, "60 % zeros": 0.6, "70 % zeros": 0.7},
    ),
    Run(QuantizationConfig(), (8, 7, 6, 5, 4, 3, 2), "bits", {"4 bits": 4.0, "3 bits": 3.0}),
)


def rows() -> Iterator[Row]:
    """Yield what repair does to the uncompressed network, and to optimal and uniform schedules."""
    curves, proof = TensorImages(tensors(_CURVES, MADE_FROM)), TensorImages(tensors(_PROOFS, MADE_FROM, seed=1))
    images, unseen = ProofImages(curves=curves, proof=proof, note=""), TensorImages(tensors(_SCORED, SCORED_ON))
    worse: list[str] = []
    kept: list[str] = []
    for run in RUNS:
        evaluator = opened(run, images)
        if run is RUNS[0]:
            yield _identity(evaluator, unseen)
        for title, target in run.targets.items():
            methods = ("optimal", "uniform") if title in _SHARES else ("optimal",)
            for method in methods:
                schedule, name = schedule_of(evaluator, run.kind, target, method), f"{title}, {method}"
                plain, best, repaired = _on_unseen(evaluator, schedule, unseen)
                worse += [name] if best > plain else []
                kept += [name] if repaired else []
                yield _share(name, plain, best, _SHARES.get(title))
    yield Row(
        what="of these schedules, delivered worse than without repair on unseen photographs",
        wanted="none",
        found=f"{', '.join(worse) or 'none'} ({len(kept)} delivered with repair)",
        holds=not worse,
    )


def opened(run: Run, images: ProofImages) -> ScheduleEvaluator:
    """Return the network with a quick scan of ``images``."""
    model, _ = scans.opened(ARCHITECTURE)
    spec = SensitivitySpec(compression=run.config, levels=run.levels, metric="kl", mode="quick")
    return ScheduleEvaluator.open(scans.scanned(model, images.curves, spec), model=model, images=images)


def schedule_of(evaluator: ScheduleEvaluator, kind: BudgetKind, target: float, method: str) -> Schedule:
    """Return the schedule that ``method`` solves for a target."""
    return make_schedule(evaluator.result, budget=ResourceBudget(kind=kind, target=target), metric="kl", method=method)


def _on_unseen(evaluator: ScheduleEvaluator, schedule: Schedule, unseen: ImageSet) -> tuple[float, float, bool]:
    """Return the KL without repair and as delivered, and whether that is repaired; the choice never sees ``unseen``."""
    applied = evaluator.apply(schedule)
    plain = kl(evaluator.judged(applied, unseen).changes)
    found = measured(evaluator, applied, "kl", repair=True)
    return plain, kl(evaluator.judged(applied, unseen).changes), found.delivered == "repaired"


def _identity(evaluator: ScheduleEvaluator, unseen: ImageSet) -> Row:
    untouched = evaluator.apply(Schedule(model=ARCHITECTURE, method="manual", entries=()))
    evaluator.matching(untouched).fit()
    changes = {change.metric: change for change in evaluator.judged(untouched, unseen).changes}
    lost, agreement = changes["kl"].value, changes["agreement"].value
    return Row(
        what="repair on the uncompressed network: KL, agreement",
        wanted="0 and 1 to rounding",
        found=f"{lost:.2g}, {agreement:.4g}",
        holds=abs(lost) <= _NOTHING and agreement == 1,
    )


def _share(name: str, plain: float, best: float, most: float | None) -> Row:
    return Row(
        what=f"{name}: delivered KL on unseen photographs, as a share of the unrepaired schedule's",
        wanted="at most 1" if most is None else f"at most {most:g}",
        found=f"{best / plain:.2f} ({plain:.3f} without repair, {best:.3f} delivered)",
        holds=best <= plain * (1.0 if most is None else most),
    )


def kl(changes: tuple[MetricChange, ...]) -> float:
    """Return what was lost in KL."""
    return next(change.delta for change in changes if change.metric == "kl")
