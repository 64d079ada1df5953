"""The frames that charts and tables are drawn from, against numbers worked out by hand."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.metrics import METRICS, MetricChange
from senseapp.prove.decision import usual_decision
from senseapp.records.answers import ChangedAnswers, ClassDrop
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.methods import make_schedule
from senseapp.store.distiller import read_distiller_csv
from senseapp.views.charts.levels import curve_rows
from senseapp.views.charts.savings import candidates_chart
from senseapp.views.frames.files import RUNS, candidates_frame, class_note, class_table, original_row
from senseapp.views.frames.results import (
    apart_frame,
    at_level,
    layer_rewards,
    measurement_frame,
    ordered_levels,
    schedule_frame,
)
from senseapp.views.words.wording import reached_note
from tests.deployments import a_candidate, some_figures
from tests.distiller_tables import TABLE
from tests.fake_session import a_change, a_measurement, a_result
from tests.pages.records import FRAGILE, NAMES, NOT_PRUNABLE, profile, result

RESULT = result()
BITS = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 2, 4)))
PRUNING = RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.3, 0.5)))


@pytest.fixture
def frame() -> pd.DataFrame:
    return measurement_frame(result(), "top1")


def test_there_is_one_row_per_layer_and_level_in_network_order(frame: pd.DataFrame) -> None:
    assert len(frame) == len(NAMES) * 3
    assert tuple(dict.fromkeys(frame["layer"])) == NAMES
    assert list(frame[frame["layer"] == FRAGILE]["level"]) == [0.25, 0.5, 0.75]


def test_drops_are_in_points_and_an_interval_that_holds_zero_is_marked(frame: pd.DataFrame) -> None:
    at_half = curve_rows(at_level(frame, 0.5), RESULT.compression.scale).set_index("layer")
    assert at_half.loc[FRAGILE, ["drop", "low", "high", "place"]].tolist() == pytest.approx([8.0, 7.4, 8.6, 50])
    assert at_half["change_text"][FRAGILE] == "8.0 points"
    assert at_half["interval_text"][FRAGILE] == "7.4 to 8.6"
    assert not at_half["unclear"][FRAGILE]
    assert at_half["unclear"]["conv1"]


def test_a_whisker_ends_where_its_text_says_only_that_it_is_more() -> None:
    view = METRICS["kl"].in_answers(((0.0, 0.0), (0.05, 0.083)), "answers")
    changes = {"stem": a_change(0.04, metric="kl", noise=0.05), "head": a_change(0.09, metric="kl", noise=0.01)}
    whole = a_result([a_measurement(layer, changes=(each,)) for layer, each in changes.items()])
    frame = measurement_frame(whole, "kl", view=view).set_index("layer")
    assert frame["interval_text"].str.endswith(" to over 8.3").all()
    assert frame["high"].to_dict() == pytest.approx({"stem": 8.3, "head": frame["drop"]["head"]})
    assert frame["drop"]["head"] > 8.3  # "over 8.3": of two such bars, the longer one loses more


def test_levels_run_from_mild_to_strong_also_for_bits() -> None:
    assert ordered_levels(result()) == (0.25, 0.5, 0.75)
    assert ordered_levels(result(BITS)) == (8.0, 4.0, 2.0)


def test_an_estimate_has_no_interval_and_is_never_called_unclear() -> None:
    frame = measurement_frame(replace(result(estimates=True), measurements=()), "kl")
    assert set(frame["source"]) == {"estimated"}
    assert (frame["low"] == frame["high"]).all()
    assert not frame["unclear"].any()
    assert set(frame["interval_text"]) == {"none: estimate"}


def test_a_coupled_group_is_one_row_that_names_its_members() -> None:
    whole = result()
    grouped = replace(whole.measurements[0], members=("conv1", "fc"), group="g1")
    frame = measurement_frame(replace(whole, measurements=(grouped,)), "top1")
    assert frame["row"][0] == "conv1 (+1)"
    assert frame["members"][0] == "conv1, fc"


def test_layers_without_a_value_are_apart_with_their_reason_and_not_in_the_ranking() -> None:
    pruned = result(PRUNING)
    apart = apart_frame(pruned)
    assert list(apart["layer"]) == [NOT_PRUNABLE]
    assert apart["levels"][0] == "30, 50 %"
    assert "layer2.0.conv2" in apart["reason"][0]
    assert NOT_PRUNABLE not in set(measurement_frame(pruned, "top1")["layer"])


def test_nothing_measured_gives_an_empty_frame_with_all_columns() -> None:
    empty = measurement_frame(replace(result(), measurements=()), "top1")
    assert empty.empty
    assert {"layer", "drop", "source"} <= set(empty.columns)


def test_a_schedule_of_fractions_is_shown_in_percent_in_network_order() -> None:
    whole = result()
    rows = schedule_frame(make_schedule(whole, budget=ResourceBudget(kind="params", target=0.5)), whole)
    assert tuple(rows["layer"]) == NAMES
    weights = [layer.num_params for layer in whole.profile.layers]
    assert (rows["amount"] * weights).sum() / sum(weights) >= 50
    assert rows.set_index("layer")["drop"][FRAGILE] == pytest.approx(8.0)  # of 100 answers
    assert list(rows["band"]) == list(at_level(measurement_frame(whole, "kl"), 0.5)["band"])


def test_a_layer_left_alone_shows_no_zeros_or_all_bits() -> None:
    bits = result(BITS)
    rows = schedule_frame(make_schedule(bits, budget=ResourceBudget(kind="bits", target=20)), bits)
    alone = rows[rows["amount_text"] == "left alone"]
    assert len(alone) > 0
    assert set(alone["amount"]) == {32.0}


def test_layers_that_cannot_be_told_apart_share_a_rank_and_estimates_have_none() -> None:
    def item(layer: str, delta: float, spread: float, *, estimated: bool = False) -> LayerMeasurement:
        change = MetricChange(
            metric="kl",
            baseline=0,
            value=delta,
            delta=delta,
            ci_low=delta - spread,
            ci_high=delta + spread,
            num_samples=9,
        )
        return LayerMeasurement(
            layer=layer, level=0.5, status=Status.MEASURED, changes=(change,), members=(layer,), estimated=estimated
        )

    measured = (item("a", 9, 1), item("b", 3, 1), item("c", 2.5, 1), item("d", 0.5, 0.1))
    run = replace(result(), measurements=measured, estimates=(item("e", 5, 0, estimated=True),))
    ranks = measurement_frame(run, "kl").set_index("layer")["rank"]
    assert ranks[["a", "b", "c", "d"]].tolist() == [1, 2, 2, 4]
    assert ranks.isna()["e"]


def a_class(low: float, drop: float, high: float) -> ClassDrop:
    return ClassDrop(name="crow", num_images=9, drop=drop, low=low, high=high, stands_out=False)


def test_a_class_of_too_few_images_has_no_figure() -> None:
    def changed(*classes: ClassDrop) -> ChangedAnswers:
        return ChangedAnswers(
            subject="a file", num_changed=2, num_images=269, by_labels=True, drop=0.007, classes=classes, num_classes=2
        )

    unclear = a_class(-0.74, 0.007, 0.75)
    assert class_table(changed(unclear, unclear))[1] == []
    assert class_note(changed(unclear, unclear)) == "Each class has too few images to say what it loses."
    clear = changed(a_class(0.02, 0.2, 0.4), unclear, a_class(-0.01, 0.01, 0.05))
    columns, rows = class_table(clear)
    assert columns == ("Class", "Images", "Drop", "Interval")  # none is marked
    assert [row[2:] for row in rows] == [
        *(("20.0 points", "2.0 to 40.0"), ("too few images", ""), ("1.0 points", "−1.0 to 5.0"))
    ]
    marked = changed(replace(a_class(0.02, 0.2, 0.4), stands_out=True), unclear)
    assert [row[4] for row in class_table(marked)[1]] == ["loses more", ""]
    assert "0.7 points on average" in class_note(clear)
    numbered = changed(replace(a_class(0.02, 0.2, 0.4), stands_out=True, name="5"), unclear)
    assert numbered.sentence == "2 of 269 answers change. Class 5 loses more than the others."
    alike = changed(unclear, unclear)
    assert alike.sentence == "2 of 269 answers change. No class is sure to lose more than the others."
    assert replace(alike, num_changed=0).sentence == "0 of 269 answers change."


def test_files_of_one_run_have_one_original_size() -> None:
    plain = a_candidate("weights", size=900_000, original=some_figures(0.01, 1.0, 892_000))
    runs = a_candidate("int8", size=311_000, original=some_figures(0.01, 1.0, 948_000))
    rows = candidates_frame((plain, runs), usual_decision((plain, runs), "smaller"))
    assert all("948 kB → " in each for each in rows["description"])


def test_the_axis_of_answers_ends_where_files_and_their_intervals_do() -> None:
    rows = pd.DataFrame(
        {"value": [46.4], "low": [45.5], "high": [47.4], "beaten": False, "file": "a", "run": "", "megabytes": 1}
    ).assign(runs=RUNS[True])
    original = pd.DataFrame({"value": [46.3], "megabytes": 2})
    drawn = candidates_chart(rows, against="megabytes", y_title="Detection score (%)", originals=original)
    scales = [part["encoding"]["y"].get("scale") for part in drawn.to_dict()["layer"]]
    assert scales[1] == {"domain": [45.5, 47.4], "nice": 5, "zero": False, "clamp": True}


def test_files_of_weights_have_a_mark_of_their_own_and_a_legend_where_there_are_any() -> None:
    files = a_candidate("int8", size=311_000), a_candidate("weights", size=900_000)
    legends = []
    for shown in (files, files[:1]):
        rows, originals = candidates_frame(shown, usual_decision(shown, "smaller")), pd.DataFrame([original_row(shown)])
        drawn = candidates_chart(rows, against="megabytes", y_title="Answers", originals=originals).to_dict()
        legends.append(drawn["layer"][1]["encoding"]["shape"]["legend"])
        assert list(rows["runs"]) == [RUNS[each.runs] for each in shown]
        assert [", weights only: " in each for each in rows["description"]] == [not each.runs for each in shown]
    assert legends[0]["orient"] == "top"
    assert legends[1] is None


def test_bits_are_places_as_they_are():
    rows = curve_rows(measurement_frame(result(BITS), "top1"), QuantizationConfig.scale)
    assert set(rows["place"]) == {8.0, 4.0, 2.0}


def test_whole_filters_and_channels_say_how_far_a_level_is_reached():
    assert reached_note(result()) == ""
    assert "1 / (their number)" in reached_note(result(PRUNING))
    filters = RunSpec(sensitivity=SensitivitySpec(compression=SparsityConfig(granularity="filter"), levels=(0.5,)))
    assert "Whole filters are set to zero" in reached_note(result(filters))
    assert "is not in the file" in reached_note(read_distiller_csv(TABLE, granularity="filter"))
    reached = PruningConfig.scale.reached_text(0.4375), QuantizationConfig.scale.reached_text(4.0)
    assert reached == ("43.8 %", "4 bits")


@pytest.mark.parametrize(("granularity", "reached"), [("weight", (0.15, 0.5)), ("filter", (2 / 16, 0.5))])
def test_a_filter_wise_table_of_a_known_model_says_what_was_truly_reached(granularity, reached):
    known = profile(("conv1", "layer1.0.conv1", "fc"))  # the convolutions have 16 filters
    imported = read_distiller_csv(TABLE, granularity=granularity, profile=known)
    found = [item for item in imported.measurements if item.layer == "conv1"]
    assert [item.achieved_level for item in found] == pytest.approx(reached)
    assert found[0].removed_params == round(reached[0] * 1152)


def test_the_reward_of_a_layer_is_that_of_distillers_notebook():
    rows = measurement_frame(RESULT, "top1")
    dense = {layer.name: layer.macs for layer in RESULT.profile.layers}
    rewards = layer_rewards(rows, RESULT, METRICS["top1"])
    assert rewards is not None
    for item, reward in zip(rows.to_dict("records"), rewards, strict=True):
        sparse_macs = dense[item["layer"]] * ((1 - item["level"]) * (1 - item["level"]))
        assert reward == pytest.approx(-1 * (1 - item["value"] / 100) * math.log(sparse_macs))
    assert layer_rewards(measurement_frame(RESULT, "kl"), RESULT, METRICS["kl"]) is None
