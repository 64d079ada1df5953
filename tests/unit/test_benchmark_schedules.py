"""The verdict of ``make bench-schedule``: what counts as held, and what as worse than a simpler schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from benchmarks.schedule_cases import CASES, Case, Demand
from benchmarks.schedule_rows import Outcome, Row
from senseapp.compressions import PruningConfig

NUM_IMAGES = 400
LABELS = torch.arange(NUM_IMAGES) % 10


def _scores(wrong: int) -> torch.Tensor:
    """Return class scores that miss the labels of the first ``wrong`` images."""
    predicted = LABELS.clone()
    predicted[:wrong] = (predicted[:wrong] + 1) % 10
    return F.one_hot(predicted, 10).float()


def _row(demand: Demand, *, ours: tuple[int, int], uniform: tuple[int, int] | None, gamma: tuple[int, int]) -> Row:
    case = Case("resnet", PruningConfig(), (0.5,), "macs", 0.5, demand)
    found = Outcome(*map(_scores, ours))
    rivals = {"uniform": Outcome(*map(_scores, uniform)) if uniform else None, "gamma 1": Outcome(*map(_scores, gamma))}
    return Row(
        case=case,
        labels=LABELS,
        dense=_scores(0),
        rivals=rivals,
        optimal=found,
        ours=found,
        adapted=(None, None),
        rounds=(1, 1),
        cost=0.5,
    )


def test_a_loss_up_to_the_demand_holds_and_more_misses():
    row = _row(Demand(plain=0.01), ours=(4, 0), uniform=(50, 50), gamma=(50, 50))
    assert row.misses() == []
    worse = replace(row, ours=Outcome(_scores(6), _scores(0)))
    assert worse.misses() == ["plain -0.015"]
    assert str(worse).endswith("plain -0.015 |")


@pytest.mark.parametrize(("ours", "holds"), [((60, 60), True), ((61, 60), False), ((60, 61), False)])
def test_a_gain_over_uniform_excuses_a_loss(ours, holds):
    demand = Demand(plain=0.01, repaired=0.01, over_uniform=0.1)
    assert (not _row(demand, ours=ours, uniform=(100, 100), gamma=(100, 100)).misses()) is holds


def test_worse_than_a_simpler_schedule_counts_only_beyond_the_interval():
    assert _row(Demand(), ours=(3, 0), uniform=(1, 0), gamma=(9, 9)).misses() == []
    found = _row(Demand(), ours=(30, 0), uniform=(1, 0), gamma=(31, 9)).misses()
    assert found == ["worse than uniform"]


def test_adapted_schedules_are_compared_with_each_other():
    row = replace(_row(Demand(), ours=(3, 3), uniform=(9, 9), gamma=(9, 9)), adapted=(_scores(2), _scores(40)))
    assert row.misses() == ["worse than uniform, adapted"]
    assert "| 0.995 / 0.900 |" in str(row)


def test_a_method_without_a_schedule_is_no_rival():
    row = _row(Demand(), ours=(3, 3), uniform=None, gamma=(2, 2))
    assert [name for name, _ in row.comparisons()] == ["gamma 1", "gamma 1, repaired"]
    assert " – " in str(row)


def test_every_network_is_judged_at_bits_and_pruning():
    networks = {case.network for case in CASES}
    for kind in ("bits", "macs"):
        assert {case.network for case in CASES if case.kind == kind} == networks
    assert len(networks) == 3
