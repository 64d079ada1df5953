"""The layers of a run as the graph in which they run: one row per node, in lanes that no two branches share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from senseapp.app.frames.fragility import NO_VALUE, row_bands
from senseapp.app.frames.network import WITHOUT_VALUE, layer_record, values_of_layers
from senseapp.metrics import Metric
from senseapp.records.profile import FlowNode, ModelProfile

_NAMES = {"add": "+ sum", "mul": "× product", "cat": "‖ side by side", "bmm": "· matrix product", "image": "image"}
_KINDS = {"input": "what goes in", "layer": "weights that no layer holds", "join": "joins what several nodes computed"}
_LEAST_SIZE, _MOST_SIZE = 30.0, 190.0  # square pixels


def flow_frame(profile: ModelProfile, rows: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return one row per node of the network, in execution order.

    Columns are those of :func:`senseapp.app.frames.network.network_frame`, ``lane``, and ``size``: the area of the
    node's mark, which grows with the layer's share of the MACs.
    """
    values, layers = values_of_layers(rows), {layer.name: layer for layer in profile.layers}
    most = max((layer.macs for layer in profile.layers), default=0) or 1
    records = []
    for place, (node, lane) in enumerate(zip(profile.flow, lanes(profile.flow), strict=True)):
        layer = layers.get(node.name) if node.kind == "layer" else None
        record = _without_layer(node) if layer is None else layer_record(layer, profile, metric, values, by_macs=True)
        share = 0.0 if layer is None else layer.macs / most
        own = {"node": str(place), "lane": lane, "size": _LEAST_SIZE + (_MOST_SIZE - _LEAST_SIZE) * share}
        records.append(record | own)
    frame = pd.DataFrame(records)
    return frame.assign(band=row_bands(frame, metric).where(frame["known"].astype(bool), NO_VALUE))


def flow_edges(flow: Sequence[FlowNode]) -> pd.DataFrame:
    """Return the lines of the graph, three points each: along the lane of what is read, then over to who reads it.

    Columns: ``edge``; ``step`` 0 to 2 along it; ``node``, the row, as in :func:`flow_frame`; ``lane``.
    """
    lane = lanes(flow)
    edges = [(source, place) for place, node in enumerate(flow) for source in node.inputs]
    points = [
        {"edge": edge, "step": step, "node": str(row), "lane": column}
        for edge, (source, reader) in enumerate(edges)
        for step, (row, column) in enumerate(
            ((source, lane[source]), (reader - 1, lane[source]), (reader, lane[reader]))
        )
    ]
    return pd.DataFrame(points, columns=["edge", "step", "node", "lane"])


def lanes(flow: Sequence[FlowNode]) -> list[int]:
    """Return the lane of each node, from 0: the first that is free from its row to that of its last reader."""
    last = list(range(len(flow)))
    for place, node in enumerate(flow):
        for source in node.inputs:
            last[source] = place
    until: list[int] = []  # by lane: the row from which it is free
    found = []
    for place in range(len(flow)):
        lane = next((lane for lane, end in enumerate(until) if end <= place), len(until))
        until[lane : lane + 1] = [last[place]]
        found.append(lane)
    return found


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
