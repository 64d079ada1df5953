"""Properties that every schedule must have, over random small runs."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.core.errors import InfeasibleBudget
from senseapp.records.schedule import ResourceBudget
from senseapp.solve.gamma import gamma_levels
from senseapp.solve.methods import METHODS, make_schedule
from tests.cases import examples
from tests.schedule_cases import run_of

LEVELS = (0.2, 0.4, 0.6, 0.8)
damages = st.lists(st.floats(-0.1, 10, allow_subnormal=False), min_size=4, max_size=4)
layers = st.lists(st.tuples(st.integers(1, 10_000), damages), min_size=1, max_size=5)
fractions = st.floats(0, 0.99)
quick = settings(max_examples=examples(40), deadline=None)


def result_of(drawn, *, levels=LEVELS, compression="sparsity"):
    names = [f"layer{index}" for index in range(len(drawn))]
    sizes = {name: size for name, (size, _) in zip(names, drawn, strict=True)}
    found = {name: own for name, (_, own) in zip(names, drawn, strict=True)}
    return run_of(sizes, found, levels, compression=compression)


def attempt(result, target, *, kind="params", **settings_):
    try:
        return make_schedule(result, budget=ResourceBudget(kind=kind, target=target), **settings_)
    except InfeasibleBudget as error:
        return error


@quick
@given(layers, fractions, st.sampled_from(sorted(METHODS)))
def test_a_schedule_meets_its_budget_or_names_a_target_that_can_be_met(drawn, target, method):
    result = result_of(drawn)
    found = attempt(result, target, method=method)
    if isinstance(found, InfeasibleBudget):
        assert found.nearest < target
        found, target = attempt(result, found.nearest, method=method), found.nearest
    assert found.achieved["params"] >= target - 1e-6


@quick
@given(layers, st.floats(2, 8), st.floats(2, 8))
def test_bits_on_average_are_met_and_more_of_them_never_cost_more(drawn, one, other):
    run = result_of(drawn, levels=(8.0, 4.0, 3.0, 2.0), compression="quantization")
    few, many = (
        make_schedule(run, budget=ResourceBudget(kind="bits", target=target)) for target in sorted((one, other))
    )
    assert few.achieved["bits"] <= min(one, other) + 1e-6
    assert many.achieved["bits"] <= max(one, other) + 1e-6
    assert many.predicted_damage <= few.predicted_damage + 1e-9


@quick
@given(layers, fractions, fractions, st.sampled_from(("params", "bytes", "macs")))
def test_budgets_are_met_and_cost_less_when_looser(drawn, one, other, kind):
    loose, tight = (attempt(result_of(drawn), target, kind=kind) for target in sorted((one, other)))
    if isinstance(loose, InfeasibleBudget):
        assert isinstance(tight, InfeasibleBudget)
    elif not isinstance(tight, InfeasibleBudget):
        assert loose.predicted_damage <= tight.predicted_damage + 1e-9
        assert tight.achieved[kind] >= max(one, other) - 1e-6


@quick
@given(layers, fractions, st.randoms(use_true_random=False))
def test_the_order_of_measurements_decides_nothing(drawn, target, random):
    result = result_of(drawn)
    shuffled = list(result.measurements)
    random.shuffle(shuffled)
    first, second = attempt(result, target), attempt(replace(result, measurements=tuple(shuffled)), target)
    if isinstance(first, InfeasibleBudget):
        assert str(first) == str(second)
    else:
        assert first == second


@quick
@given(
    st.lists(st.tuples(st.floats(-1, 5, allow_subnormal=False), st.integers(1, 10**7)), min_size=1, max_size=40),
    st.tuples(st.floats(0, 0.95), st.floats(0, 0.95), st.floats(0, 0.95)),
    st.floats(0, 8),
)
def test_the_classic_rule_averages_to_its_target_within_bounds(drawn, bounds, gamma):
    low, target, high = sorted(bounds)
    deltas, weights = zip(*drawn, strict=True)
    levels = gamma_levels(deltas, weights, target=target, low=low, high=high, gamma=gamma)
    assert sum(level * weight for level, weight in zip(levels, weights, strict=True)) / sum(weights) == pytest.approx(
        target, abs=1e-6
    )
    assert all(low <= level <= high for level in levels)
    order = sorted(range(len(deltas)), key=lambda index: deltas[index])
    assert all(levels[robust] >= levels[fragile] - 1e-12 for robust, fragile in itertools.pairwise(order))
