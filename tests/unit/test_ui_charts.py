"""Charts, read as the specifications that browsers draw."""

from typing import Any

import pytest

from senseapp.results import ResourceBudget
from senseapp.schedule import make_schedule
from senseapp.ui.charts import schedule_bars, sensitivity_bars, sensitivity_curves, sensitivity_heatmap
from senseapp.ui.frames import at_level, measurement_frame, schedule_frame
from senseapp.ui.palette import FRAGILITY, fragility_scale
from senseapp.ui.vocabulary import METRICS
from tests.pages.records import FRAGILE, NAMES, result

FRAME = measurement_frame(result(), "top1")
TOP1 = METRICS["top1"]
LEVELS = ["25 %", "50 %", "75 %"]


def bars(**options: Any) -> dict[str, Any]:
    rows = at_level(FRAME, 0.5, by_sensitivity=options.pop("by_sensitivity", False))
    return sensitivity_bars(rows, TOP1, x_domain=(-1.0, 9.0), **options).to_dict()


def marks(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the last layer of each mark type."""
    return {layer["mark"]["type"]: layer for layer in spec["layer"]}


def params(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {param["name"]: param for param in spec.get("params", [])}


def test_every_layer_has_a_row_of_fixed_height_and_keeps_its_label() -> None:
    spec = bars()
    assert spec["height"] == {"step": 18}
    y = marks(spec)["bar"]["encoding"]["y"]
    assert y["sort"] == list(NAMES)
    assert y["axis"]["labelOverlap"] is False
    assert "…" in y["axis"]["labelExpr"]


def test_bars_follow_the_order_of_their_rows() -> None:
    assert marks(bars(by_sensitivity=True))["bar"]["encoding"]["y"]["sort"][0] == FRAGILE


def test_a_click_picks_a_layer_by_its_name_in_every_chart_that_picks() -> None:
    curves = sensitivity_curves(FRAME, TOP1, all_layers=list(NAMES), level_texts=LEVELS).to_dict()
    heat = sensitivity_heatmap(FRAME, TOP1, order=list(NAMES), level_texts=LEVELS).to_dict()
    for spec in (bars(), curves, heat):
        assert params(spec)["pick"]["select"]["fields"] == ["layer"]


def test_the_scale_runs_from_blue_over_yellow_to_red_without_passing_green() -> None:
    scale = fragility_scale(8.0).to_dict()
    assert scale["range"] == list(FRAGILITY)
    assert scale["domain"] == [0, 2, 4, 6, 8]
    assert (scale["clamp"], scale["interpolate"]) == (True, "rgb")


def test_noise_is_never_painted_as_fragile() -> None:
    rows = at_level(FRAME, 0.5)
    quiet = rows.assign(drop=rows["drop"] / 100)

    def red(drawn: Any) -> float:
        spec = sensitivity_bars(drawn, TOP1, x_domain=(-1.0, 9.0)).to_dict()
        return float(marks(spec)["bar"]["encoding"]["color"]["scale"]["domain"][-1])

    assert red(quiet) == 1.0  # one point
    assert red(rows) == pytest.approx(8.0)  # the largest drop, not the end of its whisker


def test_bars_that_cannot_be_told_from_zero_carry_a_ring_and_estimates_are_pale() -> None:
    drawn = marks(bars())
    assert drawn["point"]["transform"] == [{"filter": "datum.unclear"}]
    opacity = drawn["bar"]["encoding"]["opacity"]["scale"]
    assert dict(zip(opacity["domain"], opacity["range"], strict=True)) == {"measured": 1.0, "estimated": 0.4}


def test_the_whole_name_change_and_interval_are_in_the_tooltip() -> None:
    fields = [item["field"] for item in marks(bars())["bar"]["encoding"]["tooltip"]]
    assert fields == ["members", "level_text", "change_text", "interval_text", "source"]


def test_the_picked_layer_is_outlined() -> None:
    width = marks(bars(picked=FRAGILE))["bar"]["encoding"]["strokeWidth"]
    assert FRAGILE in str(width["condition"]["test"])


@pytest.mark.parametrize(("layers", "bands"), [(6, 1), (9, 0)])
def test_bands_are_drawn_for_few_curves_only(layers: int, bands: int) -> None:
    names = tuple(f"block{number}" for number in range(layers))
    frame = measurement_frame(result(names=names), "top1")
    spec = sensitivity_curves(frame, TOP1, all_layers=list(names), level_texts=LEVELS).to_dict()
    assert sum(layer["mark"]["type"] == "area" for layer in spec["layer"]) == bands


def test_a_layer_keeps_its_colour_whatever_is_selected() -> None:
    def colour_of(rows: Any) -> str:
        spec = sensitivity_curves(rows, TOP1, all_layers=list(NAMES), level_texts=LEVELS).to_dict()
        scale = marks(spec)["line"]["encoding"]["color"]["scale"]
        return dict(zip(scale["domain"], scale["range"], strict=True))[FRAGILE]

    assert colour_of(FRAME) == colour_of(FRAME[FRAME["layer"] == FRAGILE])


def test_the_level_axis_runs_from_mild_to_strong() -> None:
    spec = sensitivity_heatmap(FRAME, TOP1, order=list(NAMES), level_texts=LEVELS).to_dict()
    assert marks(spec)["rect"]["encoding"]["x"]["sort"] == LEVELS


def test_schedule_bars_move_on_an_axis_that_does_not() -> None:
    whole = result()
    for target in (0.2, 0.6):
        rows = schedule_frame(make_schedule(whole, budget=ResourceBudget(kind="params", target=target)), whole)
        spec = schedule_bars(rows, title="Weights at zero (%)", largest=100).to_dict()
        assert spec["encoding"]["x"]["scale"]["domain"] == [0, 100]
