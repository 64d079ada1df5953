"""The graph as it runs: rows by depth, no box or line on another, and what a click picks."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import vl_convert

from senseapp.metrics import METRICS
from senseapp.records.profile import FlowNode
from senseapp.views.charts.network import flow_graph
from senseapp.views.frames.network import DRAWING, flow_edges, flow_frame, flow_layout
from senseapp.views.frames.results import at_level, measurement_frame
from senseapp.views.palette import FRAGILITY, text_colour
from tests.pages.records import FRAGILE, profile, result

TOP1 = METRICS["top1"]


def node(kind: str, *inputs: int, name: str = "") -> FlowNode:
    return FlowNode(name=name or {"input": "image", "join": "add"}.get(kind, "a layer"), kind=kind, inputs=inputs)


RESIDUAL = (
    node("input"),
    node("layer", 0, name="conv1"),
    node("layer", 1, name="layer1.0.conv1"),
    node("layer", 2, name="layer1.0.conv2"),
    node("layer", 1, name="layer2.0.downsample.0"),
    node("join", 3, 4),
    node("layer", 5, name="layer2.0.conv1"),
    node("join", 6, 5),
    node("layer", 7, name="fc"),
)


def random_flow(seed: int, count: int = 60) -> tuple[FlowNode, ...]:
    generator = np.random.default_rng(seed)
    found = [node("input")]
    for place in range(1, count):
        inputs = {int(generator.integers(max(0, place - 6), place)) for _ in range(generator.integers(1, 4))}
        found.append(node("join" if len(inputs) > 1 else "layer", *sorted(inputs)))
    return tuple(found)


@pytest.mark.parametrize("flow", [RESIDUAL, *(random_flow(seed) for seed in range(6))])
def test_every_line_leads_down_and_no_two_boxes_or_lines_share_a_place(flow: tuple[FlowNode, ...]) -> None:
    layout = flow_layout(flow)
    places = list(zip(layout.ranks, layout.columns, strict=True))
    assert len(set(places)) == len(flow)
    depth = [0] * len(flow)
    for place, each in enumerate(flow):  # the longest way from the input, by brute force
        depth[place] = max((depth[source] + 1 for source in each.inputs), default=0)
    assert list(layout.ranks) == depth
    far = {}
    for place, each in enumerate(flow):
        for source in each.inputs:
            assert layout.ranks[place] > layout.ranks[source]
            if layout.ranks[place] > layout.ranks[source] + 1:
                far[source] = max(far.get(source, 0), layout.ranks[place])
    assert set(layout.tracks) == set(far)
    for one, other in combinations(far, 2):
        if layout.tracks[one] == layout.tracks[other]:
            assert far[one] < layout.ranks[other] or far[other] < layout.ranks[one]
    assert all(
        layout.num_columns - 0.5 < layout.track_x(track) < layout.width - 0.5 for track in layout.tracks.values()
    )


def test_a_branch_stands_beside_the_other_and_a_skip_runs_beside_all_boxes() -> None:
    layout = flow_layout(RESIDUAL)
    assert layout.ranks == (0, 1, 2, 3, 2, 4, 5, 6, 7)
    assert layout.columns == (0, 0, 0, 0, 1, 0, 0, 0, 0)
    edges = flow_edges(RESIDUAL)
    skip = edges[edges["edge"] == 8]  # from the first sum to the second
    assert list(skip["rank"]) == pytest.approx([4.18, 4.18, 5.82, 5.82])  # leaves below where another line enters
    assert skip["x"].iloc[1] == skip["x"].iloc[2] > layout.num_columns - 0.5
    assert list(skip["head"]) == ["", "", "", "triangle-left"]
    straight = edges[edges["edge"] == 0]
    assert (list(straight["x"]), list(straight["head"])) == ([0, 0], ["", "triangle-down"])
    assert edges["edge"].nunique() == sum(len(each.inputs) for each in RESIDUAL)


def test_the_rows_hold_what_layers_lose_and_their_share_of_the_macs() -> None:
    known = replace(profile(), flow=RESIDUAL)
    rows = flow_frame(known, at_level(measurement_frame(result(), "top1"), 0.5), TOP1)
    assert list(rows["layer"].replace("", None).dropna()) == [each.name for each in RESIDUAL if each.kind == "layer"]
    assert list(rows.loc[rows["layer"] == "", "row"]) == ["image", "+ sum", "+ sum"]
    fragile = rows.set_index("layer").loc[FRAGILE]
    assert fragile["change_text"] == "8.0 points"
    assert fragile["bar"] == pytest.approx(fragile["x1"])  # as many MACs as any
    small = rows.set_index("layer").loc["fc"]
    assert (small["bar"] - small["x0"]) / (small["x1"] - small["x0"]) == pytest.approx(640 / (1152 * 64))
    for above, below in pairwise(sorted(set(rows["rank"]))):
        assert rows.loc[rows["rank"] == above, "y1"].max() < rows.loc[rows["rank"] == below, "y0"].min()
    assert set(DRAWING) < set(rows.columns)


@pytest.mark.parametrize(
    ("step", "texts"), [(5.0, []), (30.0, ["members", "members"]), (46.0, ["members", "members", "change_text"])]
)
def test_the_chart_is_valid_and_a_click_picks_a_layer(step: float, texts: list[str]) -> None:
    known = replace(profile(), flow=RESIDUAL)
    rows = flow_frame(known, at_level(measurement_frame(result(), "top1"), 0.5), TOP1)
    chart = flow_graph(
        rows, flow_edges(RESIDUAL), TOP1, step=step, width=flow_layout(RESIDUAL).width, picked="layer1.0.conv1"
    )
    made = chart.to_dict(validate=True)
    assert made["height"] == round(8 * step)
    names = {each["name"]: each["select"] for each in made["params"]}
    assert names["pick"]["fields"] == ["layer"]
    assert names["zoom"]["zoom"].startswith("wheel![event.ctrlKey")  # the page still scrolls
    shown = [each["encoding"]["text"]["field"] for each in made["layer"] if each["mark"]["type"] == "text"]
    assert shown == texts
    chart.width = 400
    drawn = vl_convert.vegalite_to_svg(chart.to_dict())
    assert (">layer1.0.conv1<" in drawn) == bool(texts)


def test_text_on_every_colour_can_be_read() -> None:
    def luminance(colour: str) -> float:
        parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    for band in range(len(FRAGILITY) + 1):
        colour = (*FRAGILITY, "#9AA3AE")[band]
        low, high = sorted((luminance(colour), luminance(text_colour(band))))
        assert (high + 0.05) / (low + 0.05) >= 4.5
