"""Schedules for a budget of time, against brute force."""

import itertools

import numpy as np
import pytest

from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.records.deployment import FLOAT, INT8, MILLISECONDS, Conversion, LayerTime, LayerTimes
from senseapp.records.schedule import Limits
from senseapp.solve.curve_set import curves_of
from senseapp.solve.time_budget import predicted_seconds, saves_no_time, schedule_within
from tests.cases import first_of
from tests.schedule_cases import run_of

LAYERS = ("a", "b", "c", "d", "fc")
BITS = (8.0, 4.0)
SIZES = dict.fromkeys(LAYERS, 100)


def a_case(seed: int):
    generator = np.random.default_rng(seed)
    damages = {layer: np.sort(generator.exponential(0.1, 2)).tolist() for layer in LAYERS}
    times = [
        LayerTime(layer=layer, level=level, seconds=float(generator.uniform(*ends)))
        for layer in LAYERS
        for level, ends in ((32.0, (1e-3, 2e-3)), (8.0, (2e-4, 1.2e-3)))
    ]
    ends = [(FLOAT, "a"), *itertools.pairwise(LAYERS), ("a", "c"), ("b", INT8)]
    conversions = tuple(
        Conversion(first=first, second=second, seconds=float(generator.uniform(0, 4e-4))) for first, second in ends
    )
    found = LayerTimes(times=tuple(times), other_seconds=5e-4, conversions=conversions, source="a file")
    return run_of(SIZES, damages, BITS, compression="quantization"), found


def by_hand(times: LayerTimes, levels: dict[str, float]) -> float:
    table = {(each.layer, each.level): each.seconds for each in times.times}
    spent = times.other_seconds + sum(table[layer, 32.0 if level == 32 else 8.0] for layer, level in levels.items())
    quick = {layer for layer, level in levels.items() if level <= 8}
    if quick:
        int8 = quick | {INT8}
        spent += sum(each.seconds for each in times.conversions if (each.first in int8) != (each.second in int8))
    return spent


@pytest.mark.parametrize("seed", first_of(range(6), 2))
def test_no_schedule_as_quick_does_less_damage(seed):
    run, times = a_case(seed)
    curves = {curve.layer: curve for curve in curves_of(run).curves}
    every = [dict(zip(LAYERS, levels, strict=True)) for levels in itertools.product((32.0, 8.0, 4.0), repeat=5)]
    seconds = [by_hand(times, levels) for levels in every]
    damages = [sum(curves[layer].choice(level).damage for layer, level in levels.items()) for levels in every]
    for share in (0.3, 0.6, 0.9):
        budget = min(seconds) + share * (by_hand(times, dict.fromkeys(LAYERS, 32.0)) - min(seconds))
        made = schedule_within(run, times, budget)
        levels = {layer: made.level_of(layer) or 32.0 for layer in LAYERS}
        best = min(damage for damage, spent in zip(damages, seconds, strict=True) if spent <= budget)
        assert by_hand(times, levels) <= budget * (1 + 1e-6)
        assert made.predicted_damage == pytest.approx(best, rel=1e-3, abs=1e-5)
        assert made.achieved[MILLISECONDS] == pytest.approx(1000 * by_hand(times, levels))


def test_a_time_that_cannot_be_met_names_the_least():
    run, times = a_case(3)
    with pytest.raises(
        InfeasibleBudget, match=r"cannot be met by quantization: at least .* ms as it is \(a file\)"
    ) as e:
        schedule_within(run, times, 1e-4)
    every = itertools.product((32.0, 8.0), repeat=5)
    assert e.value.nearest == pytest.approx(
        1000 * min(by_hand(times, dict(zip(LAYERS, levels, strict=True))) for levels in every), rel=1e-4
    )


def test_a_network_that_is_quick_enough_stays_as_it_is():
    run, times = a_case(0)
    made = schedule_within(run, times, by_hand(times, dict.fromkeys(LAYERS, 32.0)) + 1e-9)
    assert all(entry.compression == "none" for entry in made.entries)
    assert "saves no time here" in " ".join(made.notes)


def test_locked_layers_stay_where_they_are():
    run, times = a_case(1)
    made = schedule_within(run, times, 1.0, limits=Limits(fixed={"b": 4.0}))
    assert made.level_of("b") == 4
    assert made.level_of("a") is None


def test_zeros_save_no_time_where_none_was_measured():
    run = run_of(SIZES, dict.fromkeys(LAYERS, (0.1, 0.2)), (0.5, 0.9))
    times = LayerTimes(times=tuple(LayerTime(layer=layer, level=0.0, seconds=1e-3) for layer in LAYERS), source="here")
    assert saves_no_time(curves_of(run).curves, times) == LAYERS
    with pytest.raises(InfeasibleBudget, match="at least 5 ms, and 5 ms as it is"):
        schedule_within(run, times, 4e-3)


def test_a_width_between_two_takes_the_time_of_the_wider():
    run = run_of(SIZES, dict.fromkeys(LAYERS, (0.1, 0.2)), (0.25, 0.75), compression="pruning")
    times = LayerTimes(
        times=tuple(
            LayerTime(layer=layer, level=level, seconds=seconds)
            for layer in LAYERS
            for level, seconds in ((0.0, 4e-3), (0.25, 3e-3), (0.75, 1e-3))
        )
    )
    curves = curves_of(run).curves
    assert predicted_seconds(curves, times, dict.fromkeys(LAYERS, 0.6)) == pytest.approx(15e-3)
    assert predicted_seconds(curves, times, dict.fromkeys(LAYERS, 0.75)) == pytest.approx(5e-3)


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_is_above_zero(budget):
    with pytest.raises(InvalidSpec, match="above 0 ms"):
        schedule_within(*a_case(0), budget)
