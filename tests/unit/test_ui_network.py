"""The module tree: which rows it has, what they hold, and what a click on them picks."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from senseapp.ui.charts import network_bars
from senseapp.ui.frames import at_level, measurement_frame
from senseapp.ui.network import ancestors, blocks_of, deepest, network_frame, opened_to
from senseapp.ui.vocabulary import METRICS
from tests.distiller_tables import TABLE
from tests.pages.records import FRAGILE, NOT_PRUNABLE, profile, result

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
    assert list(network_frame(profile(), rows, opened=opened, block=block)["node"]) == nodes


def test_a_block_adds_up_its_layers_and_is_as_fragile_as_the_worst(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows, opened=opened_to(profile(), 2)).set_index("node")
    assert tree.loc["layer2", "layer"] == FRAGILE
    assert tree.loc["layer2", "drop"] == rows.set_index("layer")["drop"][FRAGILE]
    assert tree.loc["layer1", "params"] == 2 * 1152
    assert tree.loc["layer1", "kind"] == "block of 2"
    assert tree.loc["fc", "kind"] == "Linear"
    top = network_frame(profile(), rows, opened=frozenset())
    assert top["param_share"].sum() == pytest.approx(1)
    assert top["mac_share"].sum() == pytest.approx(1)
    assert list(network_frame(profile(), rows, opened=frozenset(), by_macs=True)["share"]) == list(top["mac_share"])


def test_a_member_of_a_group_has_the_groups_value(rows: pd.DataFrame) -> None:
    grouped = rows[rows["layer"] != NOT_PRUNABLE].copy()
    grouped.loc[grouped["layer"] == FRAGILE, "members"] = f"{FRAGILE}, {NOT_PRUNABLE}"
    tree = network_frame(profile(), grouped, opened=opened_to(profile(), 9)).set_index("node")
    assert tree.loc[NOT_PRUNABLE, "drop"] == tree.loc[FRAGILE, "drop"]
    assert tree.loc[NOT_PRUNABLE, "known"]
    assert tree.loc[NOT_PRUNABLE, "layer"] == FRAGILE  # the group is picked by its first member


def test_what_has_no_value_is_shown_without_one(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows[rows["layer"] == "fc"], opened=frozenset()).set_index("node")
    assert not tree.loc["conv1", "known"]
    assert tree.loc["conv1", "change_text"] == "no value"
    assert tree.loc["fc", "known"]


def test_layers_count_alike_where_sizes_are_unknown() -> None:
    from senseapp.exchange import read_distiller_csv

    imported = read_distiller_csv(TABLE)
    rows = at_level(measurement_frame(imported, "top1"), 0.5)
    assert list(network_frame(imported.profile, rows, opened=frozenset())["share"]) == pytest.approx([1 / 3] * 3)


def test_the_chart_draws_parents_above_children_and_can_be_clicked(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows, opened=opened_to(profile(), 2))
    chart = network_bars(tree, METRICS["top1"], share_title="Share", picked=FRAGILE).to_dict()
    hits, outline = chart["layer"][0], chart["layer"][-1]
    assert hits["encoding"]["y"]["scale"]["domain"] == TREE
    assert hits["encoding"]["y"]["axis"]["labelExpr"].count(":") == len(TREE)
    assert chart["params"][0]["select"]["fields"] == ["layer", "node", "is_block"]
    nodes = [row["node"] for row in chart["datasets"][outline["data"]["name"]]]
    assert nodes == ["layer2", "layer2.0"]  # its own block is closed


def test_parameters_macs_and_their_shares_stand_beside_the_bars(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows, opened=frozenset())
    assert list(tree["params_text"])[:2] == ["1.15 k · 18.0 %", "2.30 k · 36.0 %"]
    assert list(tree["macs_text"])[-1] == "640 · 0.2 %"
    sizes = [
        layer["encoding"]["y"]["axis"]
        for layer in network_bars(tree, METRICS["top1"], share_title="Share").to_dict()["layer"]
        if (layer["encoding"]["y"].get("axis") or {}).get("orient") == "right"
    ]
    assert [axis["title"] for axis in sizes] == ["Parameters", "MACs"]
    assert "2.30 k" in sizes[0]["labelExpr"]
    assert len(network_bars(tree, METRICS["top1"], share_title="Share", sizes=False).to_dict()["layer"]) == 3


def test_one_block_opens_by_itself_and_shows_by_an_arrow_whether_it_is_open(rows: pd.DataFrame) -> None:
    tree = network_frame(profile(), rows, opened={"layer2"}).set_index("node")
    assert list(tree.index) == ["conv1", "layer1", "layer2", "layer2.0", "fc"]
    assert ("▸" in tree.loc["layer1", "row"], "▾" in tree.loc["layer2", "row"]) == (True, True)
    assert list(tree["is_block"]) == [False, True, True, True, False]
    assert list(ancestors("layer2.0.conv1")) == ["layer2", "layer2.0"]
    assert list(ancestors("fc")) == []


def test_names_with_quotes_do_not_break_the_labels(rows: pd.DataFrame) -> None:
    odd = profile(["it's", 'say"so'])
    chart = network_bars(network_frame(odd, rows, opened=frozenset()), METRICS["top1"], share_title="Share").to_dict()
    expression = chart["layer"][0]["encoding"]["y"]["axis"]["labelExpr"]
    assert json.loads(expression.removeprefix("(").removesuffix(")[datum.label]")).keys() == {"it's", 'say"so'}
