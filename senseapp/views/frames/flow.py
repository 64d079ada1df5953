"""The layers of a run as the graph in which they run: a box for each node, in rows by depth, and lines between them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from senseapp.metrics import Metric
from senseapp.records.profile import FlowNode, ModelProfile
from senseapp.views.frames.network import WITHOUT_VALUE, layer_record, values_of_layers
from senseapp.views.palette import NO_VALUE, row_bands, text_colour

_NAMES = {"add": "+ sum", "mul": "× product", "cat": "‖ concat", "bmm": "· matmul", "image": "image"}
_KINDS = {"input": "what goes in", "layer": "weights that no layer holds", "join": "joins what several nodes computed"}
_HALF_WIDTH, _HALF_JOIN, _HALF_HEIGHT = 0.46, 0.27, 0.36  # of a box, where columns and rows are 1 apart
_BAR_HEIGHT = 0.09  # of what shows a layer's share of the MACs
_TRACK, _GUTTER = 0.1, 0.6  # distance of two lines beside the boxes, and room for all of them
DRAWING = ("x", "rank", "x0", "x1", "y0", "y1", "bar", "bar_top", "ink")
"""Columns of :func:`flow_frame` that only drawing needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLayout:
    """Where the nodes of a graph are drawn.

    Attributes:
        ranks: row of each node, from 0: one more than the lowest of the nodes that it reads.
        columns: column of each node, from 0; no two nodes of one row share one.
        tracks: by node, the line beside the boxes that leads to readers more than one row below.
    """

    ranks: tuple[int, ...]
    columns: tuple[int, ...]
    tracks: dict[int, int]

    @property
    def num_ranks(self) -> int:
        """Rows of the graph."""
        return max(self.ranks, default=0) + 1

    @property
    def num_columns(self) -> int:
        """Columns of boxes."""
        return max(self.columns, default=0) + 1

    @property
    def width(self) -> float:
        """Of the graph, in columns, lines beside the boxes included."""
        return self.track_x(max(self.tracks.values(), default=-1) + 1) + 0.5

    def track_x(self, track: int) -> float:
        """Return where a line beside the boxes runs."""
        count = max(self.tracks.values(), default=0) + 1
        return self.num_columns - 0.5 + min(_TRACK, _GUTTER / count) * (track + 0.5)


def flow_layout(flow: Sequence[FlowNode]) -> FlowLayout:
    """Lay out a graph from top to bottom."""
    ranks: list[int] = []
    for node in flow:
        ranks.append(1 + max((ranks[source] for source in node.inputs), default=-1))
    return FlowLayout(ranks=tuple(ranks), columns=_columns(flow, ranks), tracks=_tracks(flow, ranks))


def _columns(flow: Sequence[FlowNode], ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the free column of its row that is nearest to the first one that each node reads from, row by row."""
    columns = [0] * len(flow)
    taken: dict[int, set[int]] = {}
    for place in sorted(range(len(flow)), key=lambda place: ranks[place]):
        wanted = min((columns[source] for source in flow[place].inputs), default=0)
        used = taken.setdefault(ranks[place], set())
        columns[place] = min(
            (column for column in range(len(used) + wanted + 1) if column not in used),
            key=lambda column: (abs(column - wanted), column),
        )
        used.add(columns[place])
    return tuple(columns)


def _tracks(flow: Sequence[FlowNode], ranks: Sequence[int]) -> dict[int, int]:
    """Return the line beside the boxes of each node that is read further below; lines that overlap are apart."""
    ends: dict[int, int] = {}
    for place, node in enumerate(flow):
        for source in node.inputs:
            if ranks[place] > ranks[source] + 1:
                ends[source] = max(ends.get(source, 0), ranks[place])
    until: list[int] = []  # by line: the row from which it is free
    found = {}
    for source in sorted(ends, key=lambda source: (ranks[source], -ends[source])):
        track = next((track for track, end in enumerate(until) if end < ranks[source]), len(until))
        until[track : track + 1] = [ends[source]]
        found[source] = track
    return found


def flow_frame(profile: ModelProfile, rows: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return one row per node of the network, in execution order.

    Columns are those of :func:`senseapp.views.frames.network.network_frame` and :data:`DRAWING`: the middle of the box
    and its edges in columns and rows, the end and the top of a bar as long as the layer's share of the MACs of the
    largest, and the colour of the text.
    """
    layout = flow_layout(profile.flow)
    values, layers = values_of_layers(rows), {layer.name: layer for layer in profile.layers}
    most = max((layer.macs for layer in profile.layers), default=0) or 1
    records = []
    for place, node in enumerate(profile.flow):
        layer = layers.get(node.name) if node.kind == "layer" else None
        record = _without_layer(node) if layer is None else layer_record(layer, profile, metric, values, by_macs=True)
        x, rank = layout.columns[place], layout.ranks[place]
        half = _HALF_JOIN if node.kind == "join" else _HALF_WIDTH
        share = 0.0 if layer is None else layer.macs / most
        box = {"x0": x - half, "x1": x + half, "y0": rank - _HALF_HEIGHT, "y1": rank + _HALF_HEIGHT}
        bar = {"bar": x - half + 2 * half * share, "bar_top": rank + _HALF_HEIGHT - _BAR_HEIGHT}
        records.append(record | {"node": str(place), "x": x, "rank": rank} | box | bar)
    frame = pd.DataFrame(records)
    bands = row_bands(frame, metric).where(frame["known"].astype(bool), NO_VALUE)
    return frame.assign(band=bands, ink=[text_colour(band) for band in bands])


def flow_edges(flow: Sequence[FlowNode]) -> pd.DataFrame:
    """Return the lines of the graph, in points: to the next row straight, further down beside all boxes.

    Columns: ``edge``; ``step`` along it, from 0; ``x`` and ``rank``, as in :func:`flow_frame`; ``head``, the shape of
    the mark at its end, else empty.
    """
    layout = flow_layout(flow)
    points = []
    edges = [(source, place) for place, node in enumerate(flow) for source in node.inputs]
    for edge, (source, reader) in enumerate(edges):
        path, head = _path(layout, flow, source, reader)
        points += [
            {"edge": edge, "step": step, "x": x, "rank": rank, "head": head if step == len(path) - 1 else ""}
            for step, (x, rank) in enumerate(path)
        ]
    return pd.DataFrame(points, columns=["edge", "step", "x", "rank", "head"])


def _path(
    layout: FlowLayout, flow: Sequence[FlowNode], source: int, reader: int
) -> tuple[list[tuple[float, float]], str]:
    (x, above), (to_x, below) = ((layout.columns[place], layout.ranks[place]) for place in (source, reader))
    if below == above + 1:
        return [(x, above + _HALF_HEIGHT), (to_x, below - _HALF_HEIGHT)], "triangle-down"
    beside = layout.track_x(layout.tracks[source])
    out, into = (_HALF_JOIN if flow[place].kind == "join" else _HALF_WIDTH for place in (source, reader))
    leaves, enters = above + _HALF_HEIGHT / 2, below - _HALF_HEIGHT / 2
    return [(x + out, leaves), (beside, leaves), (beside, enters), (to_x + into, enters)], "triangle-left"


def _without_layer(node: FlowNode) -> dict[Hashable, Any]:
    """Return the row of a node without a sensitivity."""
    name = _NAMES.get(node.name, node.name.replace("_", " ") or "the network's own weights")
    empty = dict.fromkeys(("params", "macs", "share", "param_share", "mac_share", "drop", "low", "high"), 0.0)
    texts = {
        "row": name,
        "members": name,
        "kind": _KINDS[node.kind],
        "params_text": "",
        "macs_text": "",
        "change_text": "",
    }
    record: dict[Hashable, Any] = {"layer": "", "is_block": False, "known": False, "description": name}
    return WITHOUT_VALUE | record | dict(empty) | dict(texts)
