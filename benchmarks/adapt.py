"""What adapted weights win back on a real network: ``python -m benchmarks.adapt``.

Schedules are solved, and weights adapted, on 64 photographs; the choice between ways to adapt is made on those too, and
scored on others. KL is given as a share of that of the same schedule rounded or zeroed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.real.photographs import MADE_FROM, SCORED_ON, tensors
from benchmarks.real.repair import RUNS, kl, opened, schedule_of
from benchmarks.real.rows import Row, table
from benchmarks.results import write_section
from senseapp.compressions import SparsityConfig
from senseapp.core.process import become_measuring
from senseapp.data.images import TensorImages
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.schedules.evaluator import ProofImages, ScheduleEvaluator
from senseapp.schedules.repair_choice import measured

TITLE = "Adapted weights (`python -m benchmarks.adapt`)"
_ADAPTED_ON, _PROOFS, _SCORED = 64, 56, 112
_MOST_SECONDS = 120
_WANTED = {"4 bits": 0.25, "3 bits": 0.17, "50 % zeros": 0.40, "60 % zeros": 0.40, "70 % zeros": 0.50, "2:4": 0.30}


@dataclass(frozen=True)
class _Case:
    """A schedule, and what it is carried out with."""

    title: str
    evaluator: ScheduleEvaluator
    schedule: Schedule


def _cases() -> Iterator[_Case]:
    curves, proof = TensorImages(tensors(_ADAPTED_ON, MADE_FROM)), TensorImages(tensors(_PROOFS, MADE_FROM, seed=1))
    images = ProofImages(curves=curves, proof=proof, note="")
    for run in RUNS:
        evaluator = opened(run, images)
        for title, target in run.targets.items():
            yield _Case(title, evaluator, schedule_of(evaluator, run.kind, target, "optimal"))
        if isinstance(run.config, SparsityConfig):
            evaluator.configs = {**evaluator.configs, run.config.kind: SparsityConfig(granularity="2:4")}
            yield _Case("2:4", evaluator, _two_of_four(evaluator))


def _two_of_four(evaluator: ScheduleEvaluator) -> Schedule:
    """Return the pattern in every layer that it fits, whose inputs come in fours."""
    entries = tuple(
        ScheduleEntry(layer=layer.name, members=(layer.name,), compression="sparsity", level=0.5)
        for layer in evaluator.profile.layers
        if layer.weight_shape[1] % 4 == 0
    )
    return Schedule(model=evaluator.profile.title, method="manual", entries=entries, metric="kl")


def rows() -> Iterator[Row]:
    """Yield KL as a share for each schedule, and the longest time that adapting took."""
    unseen, longest = TensorImages(tensors(_SCORED, SCORED_ON)), 0.0
    for case in _cases():
        applied = case.evaluator.apply(case.schedule)
        plain = kl(case.evaluator.measure(applied, unseen))
        started = time.perf_counter()
        found = measured(
            case.evaluator, applied, "kl", repair=True, images=case.evaluator.images.proof, adapting="minutes"
        )
        longest = max(longest, time.perf_counter() - started)
        adapted, wanted = kl(case.evaluator.measure(applied, unseen)), _WANTED[case.title]
        steps = ", ".join(f"{step.title.lower()} {step.change.delta:.3f}" for step in found.steps)
        yield Row(
            what=f"{case.title}: KL on {_SCORED} other photographs, as a share of that of the schedule alone",
            wanted=f"≤ {wanted:g}",
            found=f"{adapted / plain:.3f} ({plain:.3f}, adapted {adapted:.3f}; held out: {steps})",
            holds=adapted <= wanted * plain,
        )
    yield Row(
        what=f"Longest time of all steps and their choice, {_ADAPTED_ON} images, {torch.get_num_threads()} threads",
        wanted=f"≤ {_MOST_SECONDS} s",
        found=f"{longest:.0f} s",
        holds=longest <= _MOST_SECONDS,
    )


def main() -> None:
    """Print each row, and write them all."""
    found = []
    for row in rows():
        print(f"{'holds' if row.holds else 'FAILS'}  {row.what}: {row.found} (wanted {row.wanted})", flush=True)
        found.append(row)
    write_section(TITLE, table(found))


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
