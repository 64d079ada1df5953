"""Charts, read as the specifications that browsers draw."""

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from senseapp.compressions import SparsityConfig
from senseapp.metrics import METRICS
from senseapp.records.schedule import ResourceBudget
from senseapp.solve.methods import make_schedule
from senseapp.views.charts.axes import cut_labels, value_scale
from senseapp.views.charts.histograms import bin_frame, histogram_chart, mark_frame
from senseapp.views.charts.layers import (
    EXTREMES,
    cut_short,
    drop_domain,
    marked,
    network_bars,
    schedule_bars,
    sensitivity_bars,
)
from senseapp.views.charts.levels import curve_rows, sensitivity_curves, sensitivity_heatmap
from senseapp.views.frames.network import network_frame
from senseapp.views.frames.results import at_level, measurement_frame, schedule_frame
from tests.pages.records import FRAGILE, NAMES, a_histogram, profile, result

FRAME = measurement_frame(result(), "top1")
TOP1 = METRICS["top1"]
LEVELS = ["25 %", "50 %", "75 %"]


def bars(**options: Any) -> dict[str, Any]:
    rows = marked(at_level(FRAME, 0.5, by_sensitivity=options.pop("by_sensitivity", False)))
    return sensitivity_bars(rows, TOP1, x_domain=(-1.0, 9.0), **options).to_dict(validate=True)


def curves(frame: Any = FRAME, names: tuple[str, ...] = NAMES, **options: Any) -> dict[str, Any]:
    rows = curve_rows(frame, SparsityConfig.scale)
    chart = sensitivity_curves(rows, all_layers=names, x_title="Weights at zero (%)", y_title="Drop", **options)
    return chart.to_dict(validate=True)


def heatmap(**options: Any) -> dict[str, Any]:
    spec: dict[str, Any] = sensitivity_heatmap(FRAME, TOP1, order=list(NAMES), level_texts=LEVELS, **options).to_dict(
        validate=True
    )
    return spec


def outline_of(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the layer that frames the picked row."""
    return next(layer for layer in spec["layer"] if layer["mark"].get("filled") is False)


def outlined(spec: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = spec["datasets"][outline_of(spec)["data"]["name"]]
    return rows


def marks(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the last layer of each mark type."""
    return {layer["mark"]["type"]: layer for layer in spec["layer"]}


def params(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {param["name"]: param for param in spec.get("params", [])}


def test_every_layer_has_a_row_of_fixed_height_and_keeps_its_label() -> None:
    spec = bars()
    assert spec["height"] == 18 * len(NAMES)
    y = marks(spec)["bar"]["encoding"]["y"]
    assert y["scale"]["domain"] == list(NAMES)
    assert y["axis"]["labelOverlap"] is False
    assert y["axis"]["labelExpr"] == "datum.label"
    assert marks(bars(by_sensitivity=True))["bar"]["encoding"]["y"]["scale"]["domain"][0] == FRAGILE


def test_long_names_are_cut_so_that_no_two_look_alike() -> None:
    names = [f"features.denseblock{block}.denselayer{layer}.conv1" for block in (1, 2) for layer in (1, 2, 16)]
    expression = cut_labels([*names, "classifier"])
    shown = json.loads(expression.removesuffix(")[datum.label] || datum.label").removeprefix("("))
    assert set(shown) == set(names)
    assert len(set(shown.values())) == len(names)
    assert all(len(text) <= 26 and text.endswith(".conv1") for text in shown.values())


@pytest.mark.parametrize(("title", "end"), [("Right answers (%)", 100), ("Drop (points)", None), (None, None)])
def test_axes_of_shares_end_at_100(title: str | None, end: float | None) -> None:
    assert value_scale(title, zero=False).to_dict().get("domainMax") == end
    assert value_scale(title, domain=[-3, 104.5], nice=False).to_dict()["domain"] == [-3, end or 104.5]


def test_a_click_picks_a_layer_by_its_name_in_every_chart_that_picks() -> None:
    for spec in (bars(), curves(), heatmap()):
        assert params(spec)["pick"]["select"]["fields"] == ["layer"]


def test_every_view_paints_the_same_loss_alike_whatever_else_it_shows() -> None:
    """One cell that is far off once turned red layers blue in the heat map, and left them red in the bars."""
    loud = FRAME.assign(drop=FRAME["drop"].where(FRAME["layer"] != "fc", 1500.0))
    tree = network_frame(profile(), at_level(FRAME, 0.5), TOP1, opened=frozenset())
    amounts = schedule_frame(make_schedule(result(), budget=ResourceBudget(kind="params", target=0.2)), result())
    charts = [
        sensitivity_bars(marked(at_level(FRAME, 0.5)), TOP1, x_domain=(-1.0, 9.0)),
        sensitivity_bars(marked(at_level(loud, 0.5)), TOP1, x_domain=(-1.0, 9.0)),
        sensitivity_heatmap(FRAME, TOP1, order=list(NAMES), level_texts=LEVELS),
        sensitivity_heatmap(loud, TOP1, order=list(NAMES), level_texts=LEVELS),
        network_bars(tree, TOP1, share_title="Share"),
        schedule_bars(amounts, title="Zeros (%)", largest=100),
    ]
    colours = []
    for chart in charts:
        spec = chart.to_dict()
        painted = [
            part["encoding"]["color"] for part in (spec, *spec.get("layer", ())) if "color" in part.get("encoding", {})
        ]
        assert len(painted) == 1
        colours.append((painted[0]["field"], painted[0]["scale"]))
    assert all(colour == colours[0] for colour in colours)
    at_half = [at_level(frame, 0.5).set_index("layer")["band"][FRAGILE] for frame in (FRAME, loud)]
    assert at_half[0] == at_half[1]


def test_bars_that_cannot_be_told_from_zero_carry_a_ring_and_estimates_are_pale() -> None:
    drawn = marks(bars())
    assert drawn["point"]["transform"] == [{"filter": "datum.unclear"}]
    opacity = drawn["bar"]["encoding"]["opacity"]
    assert opacity == {"condition": {"test": "datum.source === 'estimated'", "value": 0.4}, "value": 1.0}


def far_off(measured: int = 3, size: float = 133.0) -> Any:
    """KL of a run that has measured some layers, with one estimate that is far off."""
    whole = result(estimates=True)
    frame = measurement_frame(replace(whole, measurements=tuple(whole.measurements[: 3 * measured])), "kl")
    outlier = (frame["layer"] == FRAGILE) & (frame["source"] == "estimated")
    numbers = {name: frame[name].mask(outlier, size) for name in ("drop", "low", "high")}
    return frame.assign(**numbers, change_text=frame["change_text"].mask(outlier, METRICS["kl"].change_text(size)))


def test_no_estimate_rules_the_axis_of_what_is_measured() -> None:
    rows = marked(at_level(far_off(), 0.5))
    highest = rows.loc[rows["source"] == "measured", "high"].max()
    domain = drop_domain(rows, METRICS["kl"], num_classes=10)
    assert highest < domain[1] < 3 * max(highest, 0.02)
    bars = sensitivity_bars(rows, METRICS["kl"], x_domain=domain).to_dict(validate=True)
    drawn = {row["layer"]: row for row in next(iter(bars["datasets"].values())) if "drop" in row}
    assert drawn[FRAGILE]["drop"] < domain[1]
    assert drawn[FRAGILE]["extreme"] == "▸ 133"  # an arrow and its number
    assert drawn[FRAGILE]["change_text"] == "133"
    assert not {row["extreme"] for row in drawn.values() if row["source"] == "estimated"} & set(EXTREMES)


def test_estimates_alone_reach_as_far_as_entropy_does() -> None:
    rows = marked(at_level(far_off(measured=0), 0.5))
    assert drop_domain(rows, METRICS["kl"], num_classes=10)[1] == pytest.approx(math.log(10) * 1.2)
    assert drop_domain(rows, METRICS["kl"])[1] > 133


def test_measured_values_are_never_cut_short() -> None:
    rows = marked(at_level(FRAME, 0.5))
    low, high = drop_domain(rows, TOP1)
    assert low < rows["low"].min()
    assert high > rows["high"].max()
    assert cut_short(rows, (low, high)) is rows


def test_curves_of_estimates_leave_the_axis_of_what_is_measured() -> None:
    frame = far_off()
    domain = drop_domain(frame, METRICS["kl"])
    assert domain[1] < 1
    rows = curve_rows(frame, SparsityConfig.scale)
    spec = sensitivity_curves(rows, all_layers=NAMES, x_title="x", y_title="KL", y_domain=domain).to_dict(validate=True)
    line = marks(spec)["line"]
    assert (line["encoding"]["y"]["scale"]["domain"], line["mark"]["clip"]) == (list(domain), True)


def test_the_whole_name_change_and_interval_are_in_the_tooltip() -> None:
    top = bars()["layer"][-1]  # what the pointer meets, wherever in its row it is
    assert (top["mark"]["opacity"], top["encoding"]["x"], top["encoding"]["x2"]) == (
        0,
        {"value": 0},
        {"value": "width"},
    )
    fields = re.findall(r"datum\.(\w+)", top["mark"]["tooltip"]["expr"])
    assert fields == ["members", "level_text", "change_text", "interval_text", "source"]


def test_the_cells_of_a_heat_map_say_the_same_as_the_bars() -> None:
    cells = heatmap()["layer"][0]
    assert cells["mark"]["tooltip"]["expr"] == bars()["layer"][-1]["mark"]["tooltip"]["expr"]
    assert cells["encoding"]["x"]["scale"]["domain"] == LEVELS  # from mild to strong


def test_the_picked_layer_is_outlined() -> None:
    for spec in (bars(picked=FRAGILE), heatmap(picked=FRAGILE)):
        assert [list(row.values()) for row in outlined(spec)] == [[FRAGILE]]
    assert outlined(bars()) == []


def test_another_pick_leaves_everything_but_the_outline_as_it_was() -> None:
    """What the browser needs not draw again: it draws a chart anew when its specification changes."""
    for draw in (bars, heatmap):
        first, second = (draw(picked=name) for name in (FRAGILE, "conv1"))
        outlines = [outline_of(spec)["data"].pop("name") for spec in (first, second)]
        data = [spec.pop("datasets") for spec in (first, second)]
        assert first == second
        frames = [found.pop(name) for found, name in zip(data, outlines, strict=True)]
        assert [list(row.values()) for frame in frames for row in frame] == [[FRAGILE], ["conv1"]]
        assert data[0] == data[1]


def test_words_mark_the_largest_and_the_smallest_loss() -> None:
    rows = marked(at_level(FRAME, 0.5)).set_index("layer")
    assert rows["extreme"][FRAGILE] == "loses most"
    assert rows["extreme"]["conv1"] == "loses least"
    assert (rows["extreme"] == "").sum() == len(NAMES) - 2
    assert marks(bars())["text"]["encoding"]["text"]["field"] == "extreme"
    assert set(marked(at_level(FRAME, 0.5).head(1))["extreme"]) == {""}
    assert set(marked(at_level(FRAME, 0.5).head(2))["extreme"]) == {""}  # nothing is told from zero


def test_a_layer_keeps_colour_and_dashes_whatever_is_selected() -> None:
    def looks_of(rows: Any) -> list[Any]:
        scales = [marks(curves(rows))["line"]["encoding"][channel]["scale"] for channel in ("stroke", "strokeDash")]
        return [dict(zip(scale["domain"], map(str, scale["range"]), strict=True))[FRAGILE] for scale in scales]

    assert looks_of(FRAME) == looks_of(FRAME[FRAME["layer"] == FRAGILE])


def test_bits_fall_from_left_to_right() -> None:
    assert curves(falling=True)["layer"][-1]["encoding"]["x"]["scale"]["reverse"] is True
    assert curves()["layer"][-1]["encoding"]["x"]["axis"]["values"] == [25, 50, 75]


def test_bins_of_a_histogram_are_in_values_with_their_grid_points() -> None:
    frame = bin_frame(a_histogram())
    assert list(frame["cell"]) == [-1] * 4 + [0] * 4 + [1] * 4
    assert frame["start"].iloc[0] == pytest.approx(-0.75)
    assert frame["end"].iloc[-1] == pytest.approx(0.75)
    assert frame["count"].sum() == 6
    assert frame["sensitivity"].sum() == 12
    assert frame["gradient_sum"].sum() == -6


def test_a_scale_per_channel_leaves_steps_from_zero() -> None:
    histogram = a_histogram(scale=math.nan)
    assert bin_frame(histogram)["start"].iloc[0] == -1.5
    assert "end of the true range" not in set(mark_frame(histogram)["mark"])


@pytest.mark.parametrize(("bits", "rows"), [(2, 48), (5, 496), (6, 504), (8, 510)])
def test_charts_of_histograms_have_about_500_bins_and_files_have_all(bits: int, rows: int) -> None:
    histogram = a_histogram(bits=bits, sub_bins=16)
    drawn, whole = bin_frame(histogram), bin_frame(histogram, every_bin=True)
    assert len(drawn) == rows
    assert len(whole) == (2**bits - 1) * 16
    assert drawn["count"].sum() == whole["count"].sum() == histogram.total
    assert list(drawn["cell"]) == sorted(drawn["cell"])
    assert drawn["cell"].iloc[[0, -1]].tolist() == [1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1]


def test_a_histogram_has_shares_and_centroids() -> None:
    histogram = a_histogram()
    assert histogram.zero_share == pytest.approx(2 / 6)
    assert histogram.clamped_share == pytest.approx(1 / 6)
    assert histogram.centroids == pytest.approx((-0.2, 0.8, 1.8))
    assert list(mark_frame(histogram)["mark"]).count("mean of a cell") == 3


def test_histograms_carry_the_sensitivity_only_where_there_is_one() -> None:
    known = a_histogram()
    for histogram, layers in ((known, 2), (replace(known, spec=replace(known.spec, objective="none")), 1)):
        chart = histogram_chart(histogram).to_dict()
        assert len(chart["layer"]) == layers
        assert chart["resolve"]["scale"]["y"] == "independent"
