"""The network as its module tree: what each part costs and loses."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.app.common.address import bound, choose, named
from senseapp.app.common.figure import figure, place_of, rows_height
from senseapp.app.common.state import OpenBlocks, pick, session
from senseapp.app.results.layer_side import layer_side
from senseapp.app.results.view import RunView
from senseapp.records.profile import ModelProfile
from senseapp.views.charts.axes import PICK
from senseapp.views.charts.layers import network_bars
from senseapp.views.frames.network import ancestors, blocks_of, deepest, network_frame, opened_to
from senseapp.views.palette import fragility_legend
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of

_WHOLE = "Whole network"
_PARAMS, _MACS = "Parameters", "Multiplications"
_OPEN_AT_FIRST = 2  # levels: the stages of a network and the blocks inside them
_READING = (
    "Length is the share of the network, colour what it loses; a block loses the average of its layers, weighed by "
    "their {weights}. Long and blue is where to save: click a block to open or close it, a layer to see it everywhere."
)


def network_tab(view: RunView) -> None:
    """Show the tree, and the picked layer beside it."""
    row = st.container(horizontal=True, vertical_alignment="top", gap="medium")
    profile = view.result.profile
    block, by_macs = _choose(view, row)
    opened = _opened(view)
    rows = network_frame(profile, view.rows, view.metric, opened=opened, block=block, by_macs=by_macs)
    counted = "multiplications" if by_macs else "parameters"
    share = f"Share of all layers' {counted}" if profile.sizes_known else "Share of all layers"
    key = f"network.{view.run_id}.{session().pick_round}"
    chart, side = st.columns([5, 3], gap="medium")
    with chart:
        figure(
            f"Where does the network hold its weight, and what does it lose {view.at}?",
            network_bars(rows, view.metric, share_title=share, sizes=profile.sizes_known, picked=view.picked_row),
            alt_text=f"{fmt.plural(len(rows), 'block')} and layers with their {share.lower()}, coloured by "
            f"{view.metric.change_inside} at {view.level_text}",
            key=key,
            on_pick=lambda: _click(view.run_id, key),
            caveat=caveat_of(view.result),
            reading=_READING.format(weights=counted),
            legend=fragility_legend(view.metric, no_value=not rows["known"].all()),
            frame_height=rows_height(len(rows)),
            shown=place_of(view.picked, list(rows["node"])),
            lines=view.lines,
        )
    with side:
        layer_side(view)


def _choose(view: RunView, row: DeltaGenerator) -> tuple[str, bool]:
    """Return the block to show (empty: all), and whether lengths are MACs; set how many levels are open."""
    profile, run_id = view.result.profile, view.run_id
    blocks = [_WHOLE, *blocks_of(profile)]
    about = "One block, or all of them."
    form = named({name: name for name in blocks})
    setting = bound(run_id, "block", form, _WHOLE, key=f"network.block.{run_id}")
    chosen = row.selectbox("Show", blocks, **setting, help=about, width=260)
    block = "" if chosen == _WHOLE else chosen
    most, key = deepest(profile, block), f"network.depth.{run_id}.{block}"
    row.number_input(
        "Levels to open",
        min_value=1,
        max_value=most,
        value=min(_OPEN_AT_FIRST, most),
        key=key,
        on_change=lambda: _open_levels(run_id, profile, block, st.session_state[key]),
        help="1 closes all blocks; more opens what is inside them.",
        width=150,
    )
    by_macs = False
    if profile.sizes_known:
        by_macs = choose("Length", (_PARAMS, _MACS), _PARAMS, run_id, "length", place=row) == _MACS
    return block, by_macs


def _tree(run_id: str) -> OpenBlocks:
    return session().blocks.setdefault(run_id, OpenBlocks())


def _open_levels(run_id: str, profile: ModelProfile, block: str, depth: int) -> None:
    tree = _tree(run_id)
    outside = {name for name in tree.names or () if block and not name.startswith(f"{block}.")}
    tree.names = opened_to(profile, depth, block) | outside


def _opened(view: RunView) -> frozenset[str]:
    """Return the open blocks; a layer that was picked elsewhere opens those that hold it."""
    tree, profile = _tree(view.run_id), view.result.profile
    if tree.names is None:
        tree.names = opened_to(profile, _OPEN_AT_FIRST)
    if view.picked != tree.shown:
        tree.names |= frozenset(ancestors(view.picked))
        tree.shown = view.picked
    return tree.names


def _click(run_id: str, key: str) -> None:
    """Pick the layer, or a block's most fragile one; a block also opens or closes."""
    clicked = st.session_state[key]["selection"].get(PICK) or [{"layer": "", "is_block": False}]
    tree, layer = _tree(run_id), str(clicked[0]["layer"])
    pick(run_id, layer)
    tree.shown = layer
    if clicked[0]["is_block"]:
        tree.names = (tree.names or frozenset()) ^ {str(clicked[0]["node"])}
        session().pick_round += 1  # drawn anew, so that the same block can be clicked again
