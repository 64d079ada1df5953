from dataclasses import replace

import pytest

from senseapp.compressions import SparsityConfig
from senseapp.core.errors import InfeasibleBudget, InvalidSchedule, InvalidSpec
from senseapp.records.schedule import Limits, ResourceBudget
from senseapp.solve.methods import METHODS, make_schedule
from senseapp.solve.problem import budget_of, manual_schedule
from tests.fake_session import LAYERS, a_change, a_measurement, a_result
from tests.schedule_cases import SIZES, quantized_run, run_of, sparse_run

PARAMS = ResourceBudget(kind="params", target=0.6)
ALL_METHODS = pytest.mark.parametrize("method", sorted(METHODS))


def true_fraction(schedule):
    return sum(SIZES[entry.layer] * entry.level for entry in schedule.entries) / sum(SIZES.values())


@ALL_METHODS
@pytest.mark.parametrize("kind", ["params", "macs", "bytes"])
def test_every_method_meets_every_budget_it_serves(method, kind):
    schedule = make_schedule(sparse_run(), method=method, budget=ResourceBudget(kind=kind, target=0.6))
    assert schedule.achieved[kind] >= 0.6 - 1e-9
    assert schedule.method == method
    assert schedule.budget is not None
    assert [entry.layer for entry in schedule.entries] == list(SIZES)


@ALL_METHODS
def test_what_is_achieved_is_what_the_levels_say(method):
    schedule = make_schedule(sparse_run(), method=method, budget=PARAMS)
    assert schedule.achieved["params"] == pytest.approx(true_fraction(schedule), abs=1e-9)
    assert schedule.achieved["macs"] == pytest.approx(true_fraction(schedule), abs=1e-9)
    assert schedule.predicted_damage == pytest.approx(sum(entry.predicted_damage for entry in schedule.entries))
    assert budget_of(schedule, sparse_run()) == pytest.approx(schedule.achieved)


def test_a_byte_budget_counts_the_positions_of_the_zeros():
    schedule = make_schedule(sparse_run(), method="uniform", budget=ResourceBudget(kind="bytes", target=0.5))
    assert [entry.level for entry in schedule.entries] == pytest.approx([0.5 + 1 / 32] * 4, abs=1e-6)


def test_average_bits_are_met_and_damage_stays_with_the_robust():
    schedule = make_schedule(quantized_run(), budget=ResourceBudget(kind="bits", target=3.5))
    bits = {entry.layer: entry.level for entry in schedule.entries}
    assert sum(SIZES[name] * bits[name] for name in SIZES) / sum(SIZES.values()) <= 3.5 + 1e-9
    assert schedule.achieved["bits"] <= 3.5 + 1e-9
    assert bits["conv3"] == 3
    assert bits["conv1"] > 4


@ALL_METHODS
def test_fixed_layers_keep_their_level_and_are_marked(method):
    limits = Limits(fixed={"conv1": 0.62, "fc": 0})
    schedule = make_schedule(sparse_run(), method=method, budget=PARAMS, limits=limits)
    entries = {entry.layer: entry for entry in schedule.entries}
    assert (entries["conv1"].level, entries["conv1"].locked) == (0.62, True)
    assert (entries["fc"].compression, entries["fc"].level, entries["fc"].locked) == ("none", 0.0, True)
    assert not entries["conv2"].locked
    assert schedule.achieved["params"] >= 0.6 - 1e-9


@ALL_METHODS
def test_a_layer_locked_beyond_the_budget_names_the_nearest_target(method):
    limits = Limits(fixed={"conv3": 0.0})
    with pytest.raises(InfeasibleBudget, match="with these limits and fixed layers") as caught:
        make_schedule(sparse_run(), method=method, budget=PARAMS, limits=limits)
    assert caught.value.nearest == pytest.approx(0.9 * 16_000 / 56_000)
    nearest = ResourceBudget(kind="params", target=caught.value.nearest)
    assert make_schedule(sparse_run(), method=method, budget=nearest, limits=limits).achieved["params"] > 0.25


def test_bits_out_of_reach_name_the_nearest():
    limits = Limits(min_level=4)
    with pytest.raises(InfeasibleBudget, match="at least 4 bits") as caught:
        make_schedule(quantized_run(), budget=ResourceBudget(kind="bits", target=3), limits=limits)
    assert caught.value.nearest == 4


def test_the_classic_rule_refuses_a_target_below_its_minimum():
    with pytest.raises(InfeasibleBudget, match="allows at least 40 %"):
        make_schedule(
            sparse_run(), method="gamma", budget=ResourceBudget(kind="params", target=0.2), limits=Limits(min_level=0.4)
        )


def test_a_layer_outside_the_run_counts_in_the_total():
    result = run_of({"a": 100, "unmeasured": 100}, {"a": (0.1, 0.2)}, (0.5, 0.9))
    assert make_schedule(result, budget=ResourceBudget(kind="params", target=0.4)).entries[0].level >= 0.8
    with pytest.raises(InfeasibleBudget, match="at most 45 %"):
        make_schedule(result, budget=ResourceBudget(kind="params", target=0.5))


def test_going_beyond_what_was_measured_is_noted():
    schedule = make_schedule(sparse_run(), budget=PARAMS, limits=Limits(fixed={"fc": 0.99}))
    assert any("beyond the most aggressive level" in note and "fc" in note for note in schedule.notes)
    assert make_schedule(sparse_run(), budget=PARAMS).notes == ()


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(fixed={"nope": 0.5}), "nope has no usable measurement"),
        (Limits(fixed={"fc": 1.0}), "above 0 % and below 100 %, or 0 for none"),
        (Limits(fixed={"fc": float("nan")}), "above 0 % and below 100 %, or 0 for none"),
    ],
)
def test_fixed_levels_that_cannot_be_are_refused(limits, reason):
    with pytest.raises(InvalidSchedule, match=reason):
        make_schedule(sparse_run(), budget=PARAMS, limits=limits)


def test_members_of_a_group_cannot_be_fixed_to_two_levels():
    result = sparse_run()
    grouped = tuple(replace(item, members=("conv1", "conv2")) for item in result.measurements if item.layer == "conv1")
    result = replace(result, measurements=grouped)
    with pytest.raises(InvalidSchedule, match="one level holds for both"):
        manual_schedule(result, {"conv1": 0.3, "conv2": 0.4})
    assert manual_schedule(result, {"conv2": 0.4}).level_of("conv1") == 0.4


def test_a_budget_of_the_wrong_kind_is_refused():
    with pytest.raises(InvalidSpec, match="cannot serve a bits budget"):
        make_schedule(sparse_run(), budget=ResourceBudget(kind="bits", target=4))
    with pytest.raises(InvalidSpec, match="Quantization cannot serve a macs budget; choose bits or bytes"):
        make_schedule(quantized_run(), budget=ResourceBudget(kind="macs", target=0.4))


def test_other_bad_requests_are_refused():
    with pytest.raises(InvalidSpec, match="one of optimal, gamma, uniform"):
        make_schedule(sparse_run(), method="best", budget=PARAMS)
    with pytest.raises(InvalidSpec, match="not bits"):
        make_schedule(quantized_run(), method="gamma", budget=ResourceBudget(kind="bits", target=4))
    with pytest.raises(InvalidSpec, match="must not be above the maximum"):
        Limits(min_level=0.5, max_level=0.4)
    with pytest.raises(InvalidSpec, match="The limits leave no level for conv1"):
        make_schedule(sparse_run(), budget=PARAMS, limits=Limits(min_level=0.95))
    two_four = run_of({"a": 10}, {"a": (0.1,)}, (0.5,), config=SparsityConfig(granularity="2:4"))
    with pytest.raises(InvalidSpec, match="2:4"):
        make_schedule(two_four, method="gamma", budget=ResourceBudget(kind="params", target=0.4))
    uniform = make_schedule(two_four, method="uniform", budget=ResourceBudget(kind="params", target=0.4))
    assert uniform.entries[0].level == 0.5


def test_another_metric_gives_another_schedule_in_its_unit():
    result = sparse_run()
    top1 = tuple(
        replace(item, changes=(*item.changes, replace(item.changes[0], metric="top1", delta=item.level / 100)))
        for item in result.measurements
    )
    schedule = make_schedule(replace(result, measurements=top1), budget=PARAMS, metric="top1")
    assert schedule.metric == "top1"
    assert schedule.predicted_damage < 0.04


def test_a_manual_schedule_has_figures_and_damage():
    schedule = manual_schedule(sparse_run(), {"conv3": 0.75})
    assert schedule.method == "manual"
    assert schedule.budget is None
    assert schedule.level_of("conv1") is None
    assert schedule.achieved["params"] == pytest.approx(0.75 * 40_000 / 56_000)
    assert schedule.predicted_damage == pytest.approx(0.02)


@ALL_METHODS
def test_one_layer_can_have_limits_of_its_own(method):
    limits = Limits(min_level=0.1, max_level=0.85, layers={"conv3": (0.2, 0.4), "conv1": (0.5, None)})
    schedule = make_schedule(
        sparse_run(), method=method, budget=ResourceBudget(kind="params", target=0.45), limits=limits
    )
    assert 0.2 <= schedule.level_of("conv3") <= 0.4
    assert schedule.level_of("conv1") >= 0.5
    assert 0.1 <= schedule.level_of("conv2") <= 0.85
    assert schedule.achieved["params"] >= 0.45 - 1e-9


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"conv9": (0.1, 0.2)}, "conv9 has no usable measurement"),
        ({"conv1": (0.1, 1.5)}, r"limits of conv1 lie from 0 % to 99 %, got 150 %"),
    ],
)
def test_own_limits_that_cannot_be_are_refused(bounds, message):
    with pytest.raises(InvalidSchedule, match=message):
        make_schedule(sparse_run(), budget=PARAMS, limits=Limits(layers=bounds))
    with pytest.raises(InvalidSpec, match="minimum level of conv1 must not be above"):
        Limits(layers={"conv1": (0.5, 0.2)})


def a_run_of_twenty_images(delta, noise, metric="top1"):
    found = [
        a_measurement(
            layer,
            changes=(a_change(delta, metric=metric, noise=noise),),
            achieved_level=0.5,
            removed_params=50 * (order + 1),
        )
        for order, layer in enumerate(LAYERS)
    ]
    return replace(a_result(found), num_samples=20)


@pytest.mark.parametrize(
    ("noise", "metric", "said"),
    [
        (0.16125, "top1", ["20 images cannot show losses under about 16 points"]),
        (0.16125, "kl", ["20 images cannot show harm under about 0.162"]),
        (0.006, "top1", []),
    ],
)
def test_a_prediction_that_the_images_cannot_show_is_said(noise, metric, said):
    run = a_run_of_twenty_images(0.001, noise, metric)
    schedule = make_schedule(run, budget=ResourceBudget(kind="params", target=0.4), metric=metric)
    notes = [note for note in schedule.notes if "cannot show" in note]
    assert len(notes) == len(said)
    assert all(words in note for words, note in zip(said, notes, strict=True))
