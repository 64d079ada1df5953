from dataclasses import replace

import pytest

from senseapp.core.errors import InfeasibleBudget, InvalidSchedule, InvalidSpec
from senseapp.records.schedule import Limits, ResourceBudget
from senseapp.solve.methods import make_schedule, mixed_schedule
from senseapp.solve.problem import budget_of
from tests.schedule_cases import SIZES, quantized_run, run_of, sparse_run

BYTES = ResourceBudget(kind="bytes", target=0.93)


def levels(schedule):
    found = {}
    for entry in schedule.entries:
        found.setdefault(entry.layer, {})[entry.compression] = entry.level
    return found


def test_both_compressions_together_go_beyond_either():
    schedule = mixed_schedule(sparse_run(), quantized_run(), budget=BYTES)
    assert schedule.achieved["bytes"] >= 0.93 - 1e-9
    assert schedule.predicted_damage <= make_schedule(quantized_run(), budget=BYTES).predicted_damage
    with pytest.raises(InfeasibleBudget):
        make_schedule(sparse_run(), budget=BYTES)


def test_a_layer_with_both_has_two_entries_and_added_damage():
    schedule = mixed_schedule(sparse_run(), quantized_run(), budget=BYTES)
    both = [layer for layer, found in levels(schedule).items() if len(found) == 2]
    assert both
    assert schedule.predicted_damage == pytest.approx(sum(entry.predicted_damage for entry in schedule.entries))
    assert [entry.compression for entry in schedule.entries if entry.layer == both[0]] == ["sparsity", "quantization"]
    assert "added" in schedule.notes[-1]


def test_bytes_are_those_of_the_chosen_levels():
    schedule = mixed_schedule(sparse_run(), quantized_run(), budget=BYTES)
    kept = 0.0
    for layer, found in levels(schedule).items():
        size, bits, zeros = SIZES[layer], found.get("quantization", 32), found.get("sparsity", 0.0)
        kept += size * min(bits / 8, 1 / 8 + (1 - zeros) * bits / 8)
    assert schedule.achieved["bytes"] == pytest.approx(1 - kept / (4 * sum(SIZES.values())))
    assert budget_of(schedule, sparse_run(), quantized_run()) == pytest.approx(schedule.achieved)


def test_limits_hold_per_compression():
    limits = {"quantization": Limits(min_level=4, max_level=8), "sparsity": Limits(max_level=0.5, fixed={"fc": 0.25})}
    schedule = mixed_schedule(
        sparse_run(), quantized_run(), budget=ResourceBudget(kind="bytes", target=0.85), limits=limits
    )
    found = levels(schedule)
    assert all(4 <= each["quantization"] <= 8 for each in found.values())
    assert all(each.get("sparsity", 0.0) <= 0.5 for each in found.values())
    assert found["fc"]["sparsity"] == 0.25


def test_an_impossible_budget_names_the_nearest():
    with pytest.raises(InfeasibleBudget, match="weight bytes") as caught:
        mixed_schedule(sparse_run(), quantized_run(), budget=ResourceBudget(kind="bytes", target=0.99))
    assert 0.93 < caught.value.nearest < 0.99


def test_runs_that_do_not_fit_are_refused():
    with pytest.raises(InvalidSpec, match="one sparsity and one quantization run"):
        mixed_schedule(sparse_run(), sparse_run(), budget=BYTES)
    assert mixed_schedule(quantized_run(), sparse_run(), budget=BYTES) == mixed_schedule(
        sparse_run(), quantized_run(), budget=BYTES
    )
    other = run_of({"a": 10}, {"a": (0.1,)}, (4,), compression="quantization")
    with pytest.raises(InvalidSchedule, match="different models"):
        mixed_schedule(sparse_run(), other, budget=BYTES)
    top1 = tuple(
        replace(item, changes=(replace(item.changes[0], metric="top1"),)) for item in quantized_run().measurements
    )
    with pytest.raises(InvalidSpec, match="one metric"):
        mixed_schedule(sparse_run(), replace(quantized_run(), measurements=top1, metric="top1"), budget=BYTES)
