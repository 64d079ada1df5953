"""The module tree: which rows it has, what they hold, and what a click on them picks."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from senseapp.metrics import METRICS
from senseapp.views.charts.layers import network_bars
from senseapp.views.frames.network import ancestors, blocks_of, deepest, network_frame, opened_to
from senseapp.views.frames.results import at_level, measurement_frame
from senseapp.views.palette import CANNOT_TELL, NO_VALUE
from tests.distiller_tables import TABLE
from tests.pages.records import FRAGILE, NOT_PRUNABLE, profile, result

TOP1 = METRICS["top1"]
TREE = ["conv1", "layer1", "layer1.0", "layer2", "layer2.0", "fc"]


@pytest.fixture
def rows() -> pd.DataFrame:
    return at_level(measurement_frame(result(), "top1"), 0.5)


def test_blocks_are_those_with_more_than_one_layer() -> None:
    assert blocks_of(profile()) == ("layer1", "layer1.0", "layer2", "layer2.0")
    assert (deepest(profile()), deepest(profile(), "layer2"), deepest(profile(), "layer2.0")) == (4, 3, 2)


@pytest.mark.parametrize(
    ("block", "depth", "nodes"),
    [
        ("", 1, ["conv1", "layer1", "layer2", "fc"]),
        ("", 2, TREE),
        ("layer1", 1, ["layer1.0"]),
        ("layer1.0", 1, ["layer1.0.conv1", "layer1.0.conv2"]),
        ("layer2", 9, ["layer2.0", "layer2.0.conv1", "layer2.0.downsample", "layer2.0.downsample.0"]),
    ],
)
def test_the_tree_opens_as_far_as_asked(rows: pd.DataFrame, block: str, depth: int, nodes: list[str]) -> None:
    opened = opened_to(profile(), depth, block)
    assert list(network_frame(profile(), rows, TOP1, opened=opened, block=block)["node"]) == nodes


def test_a_block_adds_up_its_layers_and_loses_their_average(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows, TOP1, opened=opened_to(profile(), 2)).set_index("node")
    assert tree.loc["layer2", "layer"] == FRAGILE
    drops = rows.set_index("layer")["drop"]
    assert tree.loc["layer2", "drop"] == pytest.approx((drops[FRAGILE] + drops[NOT_PRUNABLE]) / 2)  # equal sizes
    assert tree.loc["layer2", "change_text"] == "4.4 points on average"
    assert tree.loc["layer2", "worst_text"] == f"{FRAGILE}: 8.0 points"
    assert tree.loc["layer1", "params"] == 2 * 1152
    assert tree.loc["layer1", "kind"] == "block of 2"
    assert tree.loc["fc", "kind"] == "Linear"
    top = network_frame(profile(), rows, TOP1, opened=frozenset())
    assert top["param_share"].sum() == pytest.approx(1)
    assert top["mac_share"].sum() == pytest.approx(1)
    assert list(network_frame(profile(), rows, TOP1, opened=frozenset(), by_macs=True)["share"]) == list(
        top["mac_share"]
    )


def test_a_block_weighs_its_layers_by_what_lengths_count(rows: pd.DataFrame) -> None:
    sizes = {FRAGILE: {"num_params": 1, "macs": 900}, NOT_PRUNABLE: {"num_params": 99, "macs": 100}}
    known = profile()
    known = replace(known, layers=tuple(replace(layer, **sizes.get(layer.name, {})) for layer in known.layers))
    drops = rows.set_index("layer")["drop"]
    for by_macs, share in ((False, 0.01), (True, 0.9)):
        tree = network_frame(known, rows, TOP1, opened=frozenset(), by_macs=by_macs).set_index("node")
        expected = share * drops[FRAGILE] + (1 - share) * drops[NOT_PRUNABLE]
        assert tree.loc["layer2", "drop"] == pytest.approx(expected)
        assert tree.loc["layer2", "low"] < tree.loc["layer2", "drop"] < tree.loc["layer2", "high"]
    assert tree.loc["layer2", "band"] == 2  # 7 points, between 3 and 10


def test_one_fragile_crumb_does_not_paint_its_block_red(rows: pd.DataFrame) -> None:
    known = profile()
    crumb = tuple(replace(layer, num_params=1) if layer.name == FRAGILE else layer for layer in known.layers)
    calm = rows.assign(drop=rows["drop"].where(rows["layer"] == FRAGILE, 0.1), low=0.0, high=0.2)
    tree = network_frame(replace(known, layers=crumb), calm, TOP1, opened={"layer2", "layer2.0"}).set_index("node")
    assert list(tree.loc[["layer2", FRAGILE], "band"]) == [0, 2]


def test_a_member_of_a_group_has_the_groups_value(rows: pd.DataFrame) -> None:
    grouped = rows[rows["layer"] != NOT_PRUNABLE].copy()
    grouped.loc[grouped["layer"] == FRAGILE, "members"] = f"{FRAGILE}, {NOT_PRUNABLE}"
    tree = network_frame(profile(), grouped, TOP1, opened=opened_to(profile(), 9)).set_index("node")
    assert tree.loc[NOT_PRUNABLE, "drop"] == tree.loc[FRAGILE, "drop"]
    assert tree.loc[NOT_PRUNABLE, "known"]
    assert tree.loc[NOT_PRUNABLE, "layer"] == FRAGILE  # the group is picked by its first member


def test_what_has_no_value_is_shown_without_one(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows[rows["layer"] == "fc"], TOP1, opened=frozenset()).set_index("node")
    assert not tree.loc["conv1", "known"]
    assert tree.loc["conv1", "change_text"] == "no value"
    assert (tree.loc["conv1", "band"], tree.loc["fc", "band"]) == (NO_VALUE, CANNOT_TELL)
    assert tree.loc["fc", "known"]


def test_layers_count_alike_where_sizes_are_unknown() -> None:
    from senseapp.store.distiller import read_distiller_csv

    imported = read_distiller_csv(TABLE)
    rows = at_level(measurement_frame(imported, "top1"), 0.5)
    assert list(network_frame(imported.profile, rows, TOP1, opened=frozenset())["share"]) == pytest.approx([1 / 3] * 3)


def test_the_chart_draws_parents_above_children_and_can_be_clicked(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows, TOP1, opened=opened_to(profile(), 2))
    chart = network_bars(tree, TOP1, share_title="Share", picked=FRAGILE).to_dict()
    hits, outline = chart["layer"][0], chart["layer"][-1]
    assert hits["encoding"]["y"]["scale"]["domain"] == TREE
    assert hits["encoding"]["y"]["axis"]["labelExpr"].count(":") == len(TREE)
    assert chart["params"][0]["select"]["fields"] == ["layer", "node", "is_block"]
    nodes = [row["node"] for row in chart["datasets"][outline["data"]["name"]]]
    assert nodes == ["layer2", "layer2.0"]  # its own block is closed


def test_parameters_macs_and_their_shares_stand_beside_the_bars(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows, TOP1, opened=frozenset())
    assert list(tree["params_text"])[:2] == ["1.15 k · 18.0 %", "2.30 k · 36.0 %"]
    assert list(tree["macs_text"])[-1] == "640 · 0.2 %"
    sizes = [
        layer["encoding"]["y"]["axis"]
        for layer in network_bars(tree, TOP1, share_title="Share").to_dict()["layer"]
        if (layer["encoding"]["y"].get("axis") or {}).get("orient") == "right"
    ]
    assert [axis["title"] for axis in sizes] == ["Parameters", "Multiplications"]
    assert "2.30 k" in sizes[0]["labelExpr"]
    assert len(network_bars(tree, TOP1, share_title="Share", sizes=False).to_dict()["layer"]) == 3


def test_one_block_opens_by_itself_and_shows_by_an_arrow_whether_it_is_open(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows, TOP1, opened={"layer2"}).set_index("node")
    assert list(tree.index) == ["conv1", "layer1", "layer2", "layer2.0", "fc"]
    assert ("▸" in tree.loc["layer1", "row"], "▾" in tree.loc["layer2", "row"]) == (True, True)
    assert list(tree["is_block"]) == [False, True, True, True, False]
    assert list(ancestors("layer2.0.conv1")) == ["layer2", "layer2.0"]
    assert list(ancestors("fc")) == []


def test_names_with_quotes_do_not_break_the_labels(rows: pd.DataFrame) -> None:
    odd = profile(["it's", 'say"so'])
    chart = network_bars(network_frame(odd, rows, TOP1, opened=frozenset()), TOP1, share_title="Share").to_dict()
    expression = chart["layer"][0]["encoding"]["y"]["axis"]["labelExpr"]
    assert json.loads(expression.removeprefix("(").removesuffix(")[datum.label]")).keys() == {"it's", 'say"so'}
