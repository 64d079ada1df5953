"""The Schedule page's frames, sentences and table edits, without a page."""

import json
from dataclasses import replace

import pandas as pd
import pytest
import vl_convert

from senseapp.app.common.state import LayerEdits
from senseapp.app.schedule.controls import take_row
from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.metrics.classification import KL
from senseapp.records.schedule import ResourceBudget, StrongestFound, TriedTarget, ValidationResult
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.methods import make_schedule, mixed_schedule
from senseapp.solve.trade_off import trade_off
from senseapp.views.charts.savings import damage_channel, models_chart
from senseapp.views.frames.files import OURS, UNIFORM, measured_frame, predicted_frame
from senseapp.views.frames.results import editing_frame, schedule_frame
from tests.pages.records import change, result
from tests.schedule_cases import quantized_run, sparse_run

HALF = ResourceBudget(kind="params", target=0.5)


def bits_run():
    return result(RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4, 2))))


def test_the_table_shows_amounts_locks_and_limits_in_percent():
    run = result()
    rows = editing_frame(run, make_schedule(run, budget=HALF), fixed={"fc": 0.1}, bounds={"conv1": (0.2, None)})
    by_layer = rows.set_index("layer")
    assert list(rows["layer"]) == [layer.name for layer in run.profile.layers]
    assert by_layer["locked"].to_dict()["fc"]
    assert by_layer.loc["conv1", "least"] == 20
    assert pd.isna(by_layer.loc["conv1", "most"])
    assert by_layer["share"].sum() == pytest.approx(100)
    assert by_layer.loc["layer2.0.conv1", "alone"] == "about 8 of 100 answers at 50 %"


def test_the_table_stays_where_there_is_no_schedule():
    rows = editing_frame(result(), None, fixed={"fc": 0.95}, bounds={}).set_index("layer")
    assert rows.loc["fc", "amount"] == pytest.approx(95)
    assert rows["amount"].isna().sum() == len(rows) - 1


def test_bits_are_bits_and_untouched_is_32():
    run = bits_run()
    schedule = make_schedule(run, budget=ResourceBudget(kind="bits", target=12))
    rows = editing_frame(run, schedule, fixed={}, bounds={"conv1": (4, 8)})
    assert set(rows["amount"]) <= {32.0, *map(float, range(2, 9))}
    assert rows.set_index("layer").loc["conv1", ["least", "most"]].tolist() == [4, 8]


def a_row(**values: object) -> pd.Series:
    return pd.Series({"amount": 40.0, "locked": False, "least": None, "most": None} | values)


@pytest.mark.parametrize(
    ("changes", "row", "fixed", "bounds", "taken_back"),
    [
        ({"amount": 30.0}, {}, {"conv": 0.3}, {}, False),
        ({"locked": True}, {}, {"conv": 0.4}, {}, False),
        ({"amount": 30.0, "locked": False}, {}, {}, {}, True),
        ({"locked": False}, {"locked": True}, {}, {}, True),
        ({"least": 10.0}, {}, {}, {"conv": (0.1, None)}, False),
        ({"most": 60.0}, {"least": 10.0}, {}, {"conv": (0.1, 0.6)}, False),
        ({"least": None}, {"least": 10.0}, {}, {}, True),
        ({"least": 10.0}, {"locked": True}, {"conv": 0.4}, {"conv": (0.1, None)}, False),
    ],
)
def test_what_is_typed_locks_limits_or_takes_back(changes, row, fixed, bounds, taken_back):
    edits = LayerEdits()
    assert take_row(edits, "conv", changes, a_row(**row), SparsityConfig.scale) is taken_back
    assert edits.fixed == pytest.approx(fixed)
    assert edits.bounds == bounds


def test_layers_that_are_left_alone_come_with_the_reason():
    run = sparse_run()
    schedule = make_schedule(run, budget=ResourceBudget(kind="params", target=0.7))
    entries = tuple(
        replace(entry, compression="none", level=0.0, locked=entry.layer == "fc") for entry in schedule.entries
    )
    rows = schedule_frame(replace(schedule, entries=entries), run).set_index("layer")
    assert dict(rows["reason"]) == {
        "conv1": "too fragile",
        "conv2": "not needed for the target",
        "conv3": "not needed for the target",
        "fc": "locked by you",
    }
    large = schedule_frame(replace(schedule, entries=(replace(entries[0], members=("conv2",)),)), run)
    assert list(large["reason"]) == ["too fragile"]
    unknown = schedule_frame(replace(schedule, entries=(replace(entries[0], layer="other", members=("other",)),)), run)
    assert list(unknown["reason"]) == ["not measured"]
    assert set(schedule_frame(make_schedule(run, budget=HALF, method="uniform"), run)["reason"]) == {""}


def test_zeros_and_bits_together_are_bytes_left():
    budget = ResourceBudget(kind="bytes", target=0.9)
    rows = schedule_frame(mixed_schedule(sparse_run(), quantized_run(), budget=budget), sparse_run())
    assert list(rows["layer"]) == ["conv1", "conv2", "conv3", "fc"]
    weights = [layer.num_params for layer in sparse_run().profile.layers]
    left = sum(amount / 100 * count for amount, count in zip(rows["amount"], weights, strict=True)) / sum(weights)
    assert left == pytest.approx(0.1, abs=0.01)
    assert any("zeros and" in text for text in rows["amount_text"])


def a_validation(schedule) -> ValidationResult:
    return ValidationResult(
        schedule=schedule,
        changes=(change("top1", 0.1, 0.01), change("kl", 0.3, 0.1)),
        repaired=(change("kl", 0.1, 0.05),),
    )


def test_proofs_and_tried_schedules_are_marks_of_the_trade_off():
    schedule = make_schedule(result(), budget=HALF)
    tried = TriedTarget(figure=0.62, changes=(change("kl", 0.2, 0.02),))
    found = StrongestFound(schedule=schedule, allowed_drop=0.01, repaired=True, tried=(tried,))
    rows = measured_frame((a_validation(schedule),), found, kind="params", view=KL)
    assert rows["source"].tolist() == ["Measured", "Tried in a search"]
    assert rows["figure"].tolist() == pytest.approx([100 * schedule.achieved["params"], 62], abs=1e-3)
    assert rows["description"][1] == ("Tried in a search, 62.0 % of the weights removed: harm 0.200 (0.180 to 0.220)")
    assert measured_frame((a_validation(schedule),), found, kind="bits", view=KL)["source"].tolist() == ["Measured"]


def drawn(rows: pd.DataFrame) -> dict:
    y = damage_channel(rows, "Harm", 0.02)
    return models_chart(rows, x_title="Removed (%)", y=y, rule={"x": 50.0}, picks=OURS).to_dict(validate=True)


def test_the_chart_has_a_line_for_each_method_and_picks_figures():
    run = sparse_run()
    methods = {OURS: "optimal", UNIFORM: "uniform"}
    curves = {name: trade_off(run, "params", 6, method=method) for name, method in methods.items()}
    measured = measured_frame((a_validation(make_schedule(run, budget=HALF)),), None, kind="params", view=KL)
    chart = drawn(pd.concat([predicted_frame(curves, KL), measured]))
    (selection,) = (param for param in chart["params"] if "select" in param)
    assert selection["select"]["fields"] == ["figure"]
    assert chart["layer"][1]["encoding"]["color"]["scale"]["domain"] == [OURS, UNIFORM, "Measured"]
    assert '"type": "symlog"' in json.dumps(chart)
    assert drawn(predicted_frame(curves, KL).assign(value=0.0))["layer"]  # a loss of nothing can be drawn
    assert ">10</text>" in vl_convert.vegalite_to_svg(drawn(predicted_frame(curves, KL).assign(value=12.0)))
