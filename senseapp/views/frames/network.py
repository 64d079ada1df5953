"""The layers of a run as the tree of modules that they sit in, and as the graph in which they run."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import pandas as pd

from senseapp.metrics import Metric
from senseapp.records.profile import FlowNode, LayerProfile, ModelProfile
from senseapp.views.palette import NO_VALUE, row_bands, text_colour
from senseapp.views.words import format as fmt

Sizes = tuple[int, int, int]
"""Parameters, MACs and number of some layers."""

_INDENT = "\u2003"
_KEPT = "\u200b"  # has no width; without it the charts trim the indentation
WITHOUT_VALUE: dict[Hashable, Any] = {
    "change_text": "no value",
    "level_text": "",
    "worst_text": "–",
    "interval_text": "–",
    "source": "none",
}
COLUMNS = (
    "node", "row", "layer", "is_block", "kind", "layers", "params", "macs", "share", "param_share", "mac_share",
    "params_text", "macs_text", "drop", "low", "high", "change_text", "worst_text", "level_text", "interval_text",
    "source", "members", "known", "description",
)  # fmt: skip


def blocks_of(profile: ModelProfile) -> tuple[str, ...]:
    """Return the names of all blocks that hold more than one layer, in network order."""
    counts: dict[str, int] = {}
    for layer in profile.layers:
        for block in ancestors(layer.name):
            counts[block] = counts.get(block, 0) + 1
    return tuple(block for block, count in counts.items() if count > 1)


def deepest(profile: ModelProfile, block: str = "") -> int:
    """Return how many levels of modules there are below ``block``; empty for the whole network."""
    return max(len(_below(layer.name, block)) for layer in _inside(profile, block))


def opened_to(profile: ModelProfile, depth: int, block: str = "") -> frozenset[str]:
    """Return the blocks that are open where ``depth`` levels of modules are shown inside ``block``."""
    names = (node for layer in _inside(profile, block) for node in ancestors(layer.name))
    return frozenset(name for name in names if name.startswith(block) and len(_below(name, block)) < depth)


def network_frame(
    profile: ModelProfile,
    rows: pd.DataFrame,
    metric: Metric,
    *,
    opened: AbstractSet[str],
    block: str = "",
    by_macs: bool = False,
) -> pd.DataFrame:
    """Return one row per block and layer that can be seen, each block before what it holds.

    Columns are :data:`COLUMNS` and ``band``. A block loses what its layers lose on average, weighted by what ``share``
    counts; its ``layer``, which a click picks, is its most fragile one. ``share`` is that of the MACs or parameters of
    all layers, or of the number of layers where sizes are unknown.

    Args:
        profile: the model.
        rows: of :func:`senseapp.views.frames.results.at_level`; layers of a coupled group are found by its members.
        metric: whose rows they are.
        opened: the blocks whose inside is shown.
        block: shows only what is inside it; empty for the whole network.
        by_macs: whether ``share`` counts MACs.
    """
    values, whole = values_of_layers(rows), _sizes(profile.layers)
    nodes = [
        _node(name, layers, whole, metric, values, by_macs) | {"row": _mark(name, layers, opened, block)}
        for name, layers in _visible(profile, block, opened).items()
    ]
    frame = pd.DataFrame(nodes, columns=list(COLUMNS))
    return frame.assign(band=row_bands(frame, metric).where(frame["known"].astype(bool), NO_VALUE))


def num_nodes(profile: ModelProfile, *, opened: AbstractSet[str]) -> int:
    """Return how many rows :func:`network_frame` has of the whole network."""
    return len(_visible(profile, "", opened))


def values_of_layers(rows: pd.DataFrame) -> dict[str, dict[Hashable, Any]]:
    """Return the row that holds each layer, alone or in a coupled group, by the layer's name."""
    return {member: record for record in rows.to_dict("records") for member in str(record["members"]).split(", ")}


def layer_record(
    layer: LayerProfile,
    profile: ModelProfile,
    metric: Metric,
    values: dict[str, dict[Hashable, Any]],
    *,
    by_macs: bool,
) -> dict[Hashable, Any]:
    """Return the row of one layer: :data:`COLUMNS`, with its whole name, cut in the middle, as ``row``."""
    return _node(layer.name, [layer], _sizes(profile.layers), metric, values, by_macs) | {
        "row": fmt.cut_middle(layer.name)
    }


def ancestors(name: str) -> Iterator[str]:
    """Yield the blocks that hold the module ``name``, the outermost first."""
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts)))


def _below(name: str, block: str) -> list[str]:
    return name.removeprefix(f"{block}.").split(".") if block else name.split(".")


def _inside(profile: ModelProfile, block: str) -> list[LayerProfile]:
    return [layer for layer in profile.layers if not block or layer.name.startswith(f"{block}.")]


def _visible(profile: ModelProfile, block: str, opened: AbstractSet[str]) -> dict[str, list[LayerProfile]]:
    """Return the layers of each visible node, each parent before its children."""
    nodes: dict[str, list[LayerProfile]] = {}
    for layer in _inside(profile, block):
        for node in (*ancestors(layer.name), layer.name):
            if node.startswith(f"{block}." if block else ""):
                nodes.setdefault(node, []).append(layer)
                if node not in opened:
                    break
    return nodes


def _mark(name: str, layers: Sequence[LayerProfile], opened: AbstractSet[str], block: str) -> str:
    """Return the node's last name, indented, with an arrow if it is a block."""
    below = _below(name, block)
    arrow = "" if layers[0].name == name else "▾ " if name in opened else "▸ "
    return _KEPT + _INDENT * (len(below) - 1) + arrow + below[-1]


def _node(
    name: str,
    layers: Sequence[LayerProfile],
    whole: Sizes,
    metric: Metric,
    values: dict[str, dict[Hashable, Any]],
    by_macs: bool,
) -> dict[Hashable, Any]:
    is_layer = layers[0].name == name
    known = [layer for layer in layers if layer.name in values]
    params, macs, _ = sizes = _sizes(layers)
    param_share, mac_share = (_share(size, sizes, whole) for size in range(2))
    value = _loss(known, values, metric, by_macs=by_macs, is_layer=is_layer)
    return {
        "layer": layers[0].name,
        **value,
        "node": name,
        "is_block": not is_layer,
        "kind": (layers[0].layer_type or "layer") if is_layer else f"block of {len(layers)}",
        "layers": len(layers),
        "params": params,
        "macs": macs,
        "params_text": _amount(params, param_share),
        "macs_text": _amount(macs, mac_share),
        "share": mac_share if by_macs else param_share,
        "param_share": param_share,
        "mac_share": mac_share,
        "members": name,
        "known": bool(known),
        "description": f"{name}: {value['change_text']}",
    }


def _loss(
    known: Sequence[LayerProfile],
    values: dict[str, dict[Hashable, Any]],
    metric: Metric,
    *,
    by_macs: bool,
    is_layer: bool,
) -> dict[Hashable, Any]:
    """Return what a layer loses, or the layers of a block on average: weighted by what lengths count, ends alike.

    The mean of the ends is an interval of the mean loss that is never too short, whatever the layers share.
    """
    if not known:
        return {**dict.fromkeys(("drop", "low", "high"), 0.0), **WITHOUT_VALUE}
    worst = values[max(known, key=lambda layer: float(values[layer.name]["drop"])).name]
    worst_text = f"{worst['layer']}: {worst['change_text']}"
    if is_layer:
        return {**worst, "worst_text": worst_text}
    weights = [(layer.macs if by_macs else layer.num_params) or 1 for layer in known]
    mean: dict[Hashable, Any] = {
        end: sum(weight * float(values[layer.name][end]) for weight, layer in zip(weights, known, strict=True))
        / sum(weights)
        for end in ("drop", "low", "high")
    }
    text = metric.change_text(mean["drop"] / metric.factor)
    return {**worst, **mean, "change_text": f"{text} on average", "worst_text": worst_text}


def _amount(number: int, share: float) -> str:
    return f"{fmt.count(number)} · {fmt.percent(share, digits=1)}" if number else "–"


def _sizes(layers: Sequence[LayerProfile]) -> Sizes:
    return sum(layer.num_params for layer in layers), sum(layer.macs for layer in layers), len(layers)


def _share(size: int, part: Sizes, whole: Sizes) -> float:
    """Return the share of the whole network's size; by number of layers if sizes are unknown."""
    return part[size] / whole[size] if whole[size] else part[2] / whole[2]


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
