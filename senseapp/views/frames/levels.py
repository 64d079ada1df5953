"""Frames of one level over all layers, of one layer over all levels, and of the quantities that curves can show."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from senseapp.descriptions import LevelScale
from senseapp.metrics import Metric
from senseapp.records.measurement import RunResult

EXTREMES = ("loses most", "loses least")
_MARGIN, _ROOM_FOR_WORDS = 0.03, 0.2  # of the range, on the left; on the right, where words stand behind bars


def marked(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``extreme`` to the rows of a level: :data:`EXTREMES` at its largest and smallest drop, else empty.

    Where some are measured, estimates are no extremes, and what cannot be told from zero is not the largest.
    """
    words, known = {}, _measured_if_any(rows)
    if len(known) > 1:
        most = known["drop"].idxmax()
        if not known["unclear"].astype(bool)[known.index == most].any():
            words = {known["drop"].idxmin(): EXTREMES[1], most: EXTREMES[0]}
    return rows.assign(extreme=[words.get(index, "") for index in rows.index])


def drop_domain(rows: pd.DataFrame, metric: Metric, *, num_classes: int = 0) -> tuple[float, float]:
    """Return the ends of an axis that holds zero, all measured drops with their intervals, and words.

    Estimates are on it up to twice what is measured, for a single one that is far off would flatten all bars; the
    chart marks those that end outside. Where all are estimates, they count up to :meth:`Metric.largest_estimate`.
    """
    known = _measured_if_any(rows)
    drops = rows["drop"].to_numpy(dtype=float)
    shown = known[["low", "drop", "high"]].to_numpy(dtype=float)
    ends = np.append(shown[np.isfinite(shown)], [0.0, metric.factor * metric.notable])
    low, high = float(ends.min()), float(ends.max())
    near = drops[(drops >= 2 * low - high) & (drops <= 2 * high - low)]
    low, high = min([low, *near]), max([high, *near])
    if not (rows["source"] == "measured").any():
        high = min(high, metric.largest_estimate(num_classes))
    return low - _MARGIN * (high - low), high + _ROOM_FOR_WORDS * (high - low)


def cut_short(rows: pd.DataFrame, domain: tuple[float, float]) -> pd.DataFrame:
    """End the bars of estimates, and of losses without bound, where ``domain`` leaves room for words, which tell them.

    ``rows`` are those of :func:`marked`, ``domain`` is that of :func:`drop_domain`; ``extreme`` gets the words.
    """
    room = (domain[1] - domain[0]) * _ROOM_FOR_WORDS / (1 + _MARGIN + _ROOM_FOR_WORDS)
    ends = np.array([domain[0], domain[1] - room])
    outside = (rows["drop"] < ends[0]) | (rows["drop"] > ends[1])
    cut = outside & ((rows["source"] != "measured") | ~np.isfinite(rows["drop"]))
    if not cut.any():
        return rows
    arrows = np.where(rows["drop"] > 0, "▸ ", "◂ ")
    numbers = {name: rows[name].mask(cut, rows[name].clip(*ends)) for name in ("drop", "low", "high")}
    return rows.assign(**numbers, extreme=rows["extreme"].mask(cut, arrows + rows["change_text"]))


def _measured_if_any(rows: pd.DataFrame) -> pd.DataFrame:
    known = rows[rows["source"] == "measured"]
    return known if len(known) else rows


def reached_note(result: RunResult) -> str:
    """Return the note on the reachable levels of whole filters or channels; empty for single weights."""
    what = result.compression.whole_units
    if not what:
        return ""
    if not result.profile.sizes_known:
        return (
            f"{what}. How many there are is not in the file, so a layer may have got up to 1 / (number of filters) "
            "less than the level says."
        )
    return f"{what}, so a layer moves in steps of 1 / (their number); the column Reached says what it truly got."


def curve_rows(rows: pd.DataFrame, scale: LevelScale) -> pd.DataFrame:
    """Add ``place``, the level in people's unit of ``scale``, to rows of a measurement frame."""
    return rows.assign(place=(rows["level"] * scale.per_level).round(6))


def layer_rewards(rows: pd.DataFrame, result: RunResult, metric: Metric) -> list[float] | None:
    """Return −(1 − share of right answers) · ln(MACs left) of each of the ``rows``; None where it has no meaning.

    The layer's MACs are counted as in Distiller's notebook of sensitivities, with the level's share of its inputs and
    of its outputs gone: MACs · (1 − level)². Source: He et al. 2018, "AMC: AutoML for model compression and
    acceleration on mobile devices", section 3.4, where the compute of the whole network is meant.
    """
    macs = {layer.name: layer.macs for layer in result.profile.layers}
    if not (metric.is_share and metric.primary) or result.compression.scale.stronger_is_lower or not any(macs.values()):
        return None
    return [
        (value / metric.factor - 1) * math.log(max(1.0, sum(macs.get(name, 0) for name in members) * (1 - level) ** 2))
        for value, members, level in zip(rows["value"], rows["members"].str.split(", "), rows["level"], strict=True)
    ]
