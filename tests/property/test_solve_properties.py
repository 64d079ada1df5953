"""Properties that every schedule must have, over random small runs."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.core.errors import InfeasibleBudget
from senseapp.records.schedule import Limits, ResourceBudget
from senseapp.solve.gamma import gamma_levels
from senseapp.solve.knapsack import solve
from senseapp.solve.methods import METHODS, ChoiceTable, choices_by_layer, make_schedule
from senseapp.solve.problem import build_problem
from tests.schedule_cases import run_of

LEVELS = (0.2, 0.4, 0.6, 0.8)
damages = st.lists(st.floats(-0.1, 10, allow_subnormal=False), min_size=4, max_size=4)
layers = st.lists(st.tuples(st.integers(1, 10_000), damages), min_size=1, max_size=5)
fractions = st.floats(0, 0.99)
quick = settings(max_examples=40, deadline=None)


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
@given(st.lists(st.tuples(st.integers(1, 10_000), damages), min_size=1, max_size=4), fractions)
def test_the_optimal_choice_equals_brute_force(drawn, target):
    problem = build_problem(result_of(drawn), ResourceBudget(kind="params", target=target), Limits())
    table = ChoiceTable(choices_by_layer(problem), problem.kind)
    picks = [range(0, len(own), 5) for own in table.damages]  # none and the measured levels: 5 per layer
    damage = [own[::5] for own in table.damages]
    saving = [own[::5] for own in table.savings]
    possible = sum(own.max() for own in saving)
    best = min(
        (
            sum(own[index] for own, index in zip(damage, combination, strict=True))
            for combination in itertools.product(*(range(len(own)) for own in picks))
            if sum(own[index] for own, index in zip(saving, combination, strict=True))
            >= problem.required - 1e-9 * possible
        ),
        default=None,
    )
    try:
        chosen = solve(damage, saving, problem.required)
    except InfeasibleBudget:
        assert best is None
    else:
        ours = sum(own[index] for own, index in zip(damage, chosen, strict=True))
        assert ours == pytest.approx(best, rel=1e-6, abs=1e-9)


@quick
@given(layers, fractions, fractions)
def test_a_looser_budget_never_costs_more(drawn, one, other):
    result = result_of(drawn)
    loose, tight = attempt(result, min(one, other)), attempt(result, max(one, other))
    if isinstance(loose, InfeasibleBudget):
        assert isinstance(tight, InfeasibleBudget)
    elif not isinstance(tight, InfeasibleBudget):
        assert loose.predicted_damage <= tight.predicted_damage + 1e-9


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
@given(layers, fractions, fractions, st.sampled_from(("bytes", "macs")))
def test_other_budgets_are_met_and_cost_less_when_looser_too(drawn, one, other, kind):
    loose, tight = (attempt(result_of(drawn), target, kind=kind) for target in sorted((one, other)))
    if not isinstance(tight, InfeasibleBudget):
        assert loose.predicted_damage <= tight.predicted_damage + 1e-9
        assert tight.achieved[kind] >= max(one, other) - 1e-6


@quick
@given(layers, st.floats(0, 0.7), st.sampled_from((0.0, 0.2, 0.33, 0.8)), st.sampled_from(sorted(METHODS)))
def test_locked_layers_are_respected(drawn, target, level, method):
    found = attempt(result_of(drawn), target, method=method, limits=Limits(fixed={"layer0": level}))
    if not isinstance(found, InfeasibleBudget):
        assert found.entries[0].level == level
        assert found.entries[0].locked


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
