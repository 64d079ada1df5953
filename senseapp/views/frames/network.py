"""The layers of a run as the tree of modules that they sit in."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pandas as pd

from senseapp.metrics import Metric
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.views.palette import NO_VALUE, row_bands
from senseapp.views.words import format as fmt

Sizes = tuple[int, int, int]
"""Parameters, MACs and number of some layers."""
_Row = dict[Hashable, Any]

_INDENT = "\u2003"
_KEPT = "\u200b"  # has no width; without it the charts trim the indentation
COLUMNS = (
    "node", "row", "layer", "is_block", "kind", "layers", "params", "macs", "share", "param_share", "mac_share",
    "params_text", "macs_text", "drop", "low", "high", "change_text", "worst_text", "level_text", "interval_text",
    "source", "members", "known", "description",
)  # fmt: skip


def blocks_of(profile: ModelProfile) -> tuple[str, ...]:
    """Return the names of all blocks that hold more than one layer, in network order."""
    counts = Counter(block for layer in profile.layers for block in ancestors(layer.name))
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
    whole, nodes = _sizes(profile.layers), []
    values = {member: record for record in rows.to_dict("records") for member in str(record["members"]).split(", ")}
    for name, layers in _visible(profile, block, opened).items():
        below = _below(name, block)
        arrow = "" if layers[0].name == name else "▾ " if name in opened else "▸ "
        row = _KEPT + _INDENT * (len(below) - 1) + arrow + below[-1]
        nodes.append(_node(name, layers, whole, metric, values, by_macs) | {"row": row})
    frame = pd.DataFrame(nodes, columns=list(COLUMNS))
    return frame.assign(band=row_bands(frame, metric).where(frame["known"].astype(bool), NO_VALUE))


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


def _node(
    name: str, layers: Sequence[LayerProfile], whole: Sizes, metric: Metric, values: dict[str, _Row], by_macs: bool
) -> _Row:
    is_layer = layers[0].name == name
    known = [layer for layer in layers if layer.name in values]
    params, macs, _ = sizes = _sizes(layers)
    # by the number of layers where sizes are unknown
    param_share, mac_share = (sizes[of] / whole[of] if whole[of] else sizes[2] / whole[2] for of in range(2))
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
    known: Sequence[LayerProfile], values: dict[str, _Row], metric: Metric, *, by_macs: bool, is_layer: bool
) -> _Row:
    """Return what a layer loses, or the layers of a block on average: weighted by what lengths count, ends alike.

    The mean of the ends is an interval of the mean loss that is never too short, whatever the layers share.
    """
    if not known:
        nothing: _Row = {"drop": 0.0, "low": 0.0, "high": 0.0, "source": "none", "level_text": ""}
        return nothing | {"change_text": "no value", "worst_text": "–", "interval_text": "–"}
    worst = values[max(known, key=lambda layer: float(values[layer.name]["drop"])).name]
    worst_text = f"{worst['layer']}: {worst['change_text']}"
    if is_layer:
        return {**worst, "worst_text": worst_text}
    weights = [(layer.macs if by_macs else layer.num_params) or 1 for layer in known]
    mean: _Row = {
        end: float(np.average([float(values[layer.name][end]) for layer in known], weights=weights))
        for end in ("drop", "low", "high")
    }
    text = metric.shown_text(mean["drop"])
    return {**worst, **mean, "change_text": f"{text} on average", "worst_text": worst_text}


def _amount(number: int, share: float) -> str:
    return f"{fmt.count(number)} · {fmt.percent(share, digits=1)}" if number else "–"


def _sizes(layers: Sequence[LayerProfile]) -> Sizes:
    return sum(layer.num_params for layer in layers), sum(layer.macs for layer in layers), len(layers)
