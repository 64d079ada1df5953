"""What repair does to schedules of a real network: fitted and chosen on some parts of pictures, scored on others."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import scans
from benchmarks.real.network import ARCHITECTURE
from benchmarks.real.photographs import MADE_FROM, SCORED_ON, tensors
from benchmarks.results import Row
from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.descriptions import BudgetKind, CompressionConfig
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.prove.repair_choice import measured
from senseapp.reconstruct.apply import AppliedModel
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import SensitivitySpec
from senseapp.solve.methods import make_schedule

_CURVES, _PROOFS, _SCORED = 126, 56, 112  # images: a multiple of the pictures each, so that every one counts alike
_ZEROS = SparsityConfig(), tuple(step / 10 for step in range(1, 10))
_BITS = QuantizationConfig(), (8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)
RUNS: tuple[tuple[tuple[CompressionConfig, tuple[float, ...]], BudgetKind, dict[str, tuple[float, float]]], ...] = (
    (_ZEROS, "params", {"50 % zeros": (0.5, 0.65), "60 % zeros": (0.6, 1.0), "70 % zeros": (0.7, 1.0)}),
    (_BITS, "bits", {"4 bits": (4.0, 0.6), "3 bits": (3.0, 1.0)}),
)
"""Compression with its levels, and by title the targets of schedules and the most of the KL that may be left."""


def rows() -> Iterator[Row]:
    """Yield what repair leaves of the KL of optimal schedules."""
    curves, proof = TensorImages(tensors(_CURVES, MADE_FROM)), TensorImages(tensors(_PROOFS, MADE_FROM, seed=1))
    images, unseen = ProofImages(curves=curves, proof=proof, note=""), TensorImages(tensors(_SCORED, SCORED_ON))
    model, _ = scans.opened(ARCHITECTURE)
    for (config, levels), kind, targets in RUNS:
        spec = SensitivitySpec(compression=config, levels=levels, metric="kl", mode="quick")
        evaluator = ScheduleEvaluator.open(scans.scanned(model, curves, spec), model=model, images=images)
        for title, (target, most) in targets.items():
            budget = ResourceBudget(kind=kind, target=target)
            applied = evaluator.apply(make_schedule(evaluator.result, budget=budget, metric="kl", method="optimal"))
            plain = _kl(evaluator, applied, unseen)
            measured(evaluator, applied, "kl", repair=True)  # chooses without the unseen images
            best = _kl(evaluator, applied, unseen)
            yield Row(
                what=f"{title}, optimal: delivered KL on unseen photographs, as a share of the unrepaired schedule's",
                wanted=f"at most {most:g}",
                found=f"{best / plain:.2f} ({plain:.3f} without repair, {best:.3f} delivered)",
                holds=best <= plain * most,
            )


def _kl(evaluator: ScheduleEvaluator, applied: AppliedModel, images: TensorImages) -> float:
    return next(change.delta for change in evaluator.judged(applied, images).changes if change.metric == "kl")
