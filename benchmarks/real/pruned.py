"""What new weights for the layers that read removed channels are worth: a real network, pruned without training."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.real.photographs import MADE_FROM, SCORED_ON, tensors
from benchmarks.real.repair import Run, kl, opened
from benchmarks.results import Row
from senseapp.compressions import PruningConfig
from senseapp.data.images import TensorImages
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator, couplings_of
from senseapp.prove.repair_choice import measured
from senseapp.records.schedule import Adapting, ResourceBudget, Schedule
from senseapp.solve.methods import make_schedule
from senseapp.solve.trade_off import truly_sized

_ADAPTED_TO, _PROOFS, _SCORED = 64, 56, 112  # images
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_REMOVED = 0.3  # of the multiply-accumulates
_SHARE = 0.6


def rows() -> Iterator[Row]:
    """Yield the KL of a pruned network as it is delivered with adapted weights, beside that of the best repair."""
    curves, proof = TensorImages(tensors(_ADAPTED_TO, MADE_FROM)), TensorImages(tensors(_PROOFS, MADE_FROM, seed=1))
    run = Run(PruningConfig(), LEVELS, "macs", {})
    bench = opened(run, ProofImages(curves=curves, proof=proof, note=""))
    unseen, schedule = TensorImages(tensors(_SCORED, SCORED_ON)), pruned_schedule(bench, target=_REMOVED)
    plain = kl(bench.judged(bench.apply(schedule), unseen).changes)
    repaired, adapted = (_delivered(bench, schedule, unseen, adapting) for adapting in ("off", "minutes"))
    before = min(plain, repaired)
    yield Row(
        what=f"{100 * _REMOVED:g} % of MACs pruned, {_ADAPTED_TO} photographs to adapt to: KL on unseen ones with "
        "adapted weights, as a share of the better of repaired and not",
        wanted=f"at most {_SHARE:g}",
        found=f"{adapted / before:.2f} ({adapted:.3f} adapted, {repaired:.3f} repaired, {plain:.3f} neither)",
        holds=adapted <= _SHARE * before,
    )


def pruned_schedule(bench: ScheduleEvaluator, *, target: float) -> Schedule:
    """Return the best schedule that truly removes ``target`` of the multiply-accumulates."""

    def make(asked: float) -> Schedule:
        return make_schedule(bench.result, budget=ResourceBudget(kind="macs", target=asked), metric="kl")

    groups = couplings_of(bench.dense.model, bench.result)
    return truly_sized(make, bench.result.profile, groups, ResourceBudget(kind="macs", target=target))


def _delivered(bench: ScheduleEvaluator, schedule: Schedule, unseen: TensorImages, adapting: Adapting) -> float:
    """Return the KL on ``unseen`` of what is delivered; the choice never sees them."""
    applied = bench.apply(schedule)
    measured(bench, applied, "kl", repair=True, adapting=adapting)
    return kl(bench.judged(applied, unseen).changes)
