"""Frames of one level over all layers, and of one layer over all levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from senseapp.metrics import METRICS, Metric
from senseapp.results import SensitivityResult, Status
from senseapp.ui.frames import metrics_of

EXTREMES = ("loses most", "loses least")
_MARGIN, _ROOM_FOR_WORDS = 0.03, 0.2


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
    chart marks those that end outside. Where all are estimates, they count up to
    :meth:`Metric.largest_estimate`.
    """
    known = _measured_if_any(rows)
    drops = rows["drop"].to_numpy(dtype=float)
    shown = known[["low", "drop", "high"]].to_numpy(dtype=float)
    ends = np.append(shown[np.isfinite(shown)], [0.0, metric.factor * metric.notable])
    low, high = near_measured(drops[np.isfinite(drops)], ends)
    if not (rows["source"] == "measured").any():
        high = min(high, metric.largest_estimate(num_classes))
    return low - _MARGIN * (high - low), high + _ROOM_FOR_WORDS * (high - low)


def near_measured(values: NDArray[np.float64], measured: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of ``measured``, and of those ``values`` that are no further beyond them than they are apart."""
    low, high = float(np.nanmin(measured)), float(np.nanmax(measured))
    least, most = low - (high - low), high + (high - low)
    near = values[(values >= least) & (values <= most)]
    return min([low, *near.ravel()]), max([high, *near.ravel()])


def cut_short(rows: pd.DataFrame, domain: tuple[float, float]) -> pd.DataFrame:
    """End the bars of estimates, and of losses without bound, where ``domain`` leaves room for words, which tell them.

    Args:
        rows: of :func:`marked`.
        domain: of :func:`drop_domain`.
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


def reached_note(result: SensitivityResult) -> str:
    """Say how far levels can be reached where whole filters or channels go; empty where single weights do."""
    what = result.spec.sensitivity.compression.whole_units
    if not what:
        return ""
    if not result.profile.sizes_known:
        return (
            f"{what}. How many there are is not in the file, so a layer may have got up to 1 / (number of filters) "
            "less than the level says."
        )
    return f"{what}, so a layer moves in steps of 1 / (their number); the column Reached says what it truly got."


def layer_frame(result: SensitivityResult, layer: str) -> pd.DataFrame:
    """Return one row per level of ``layer``, the mildest first: every metric's value and change, or why there is none.

    Columns: ``level_text``, ``reached_text``, ``NAME`` and ``NAME_change`` for each metric, ``source``, ``reason``.
    """
    scale = result.spec.sensitivity.compression.scale
    found = [item for item in result.shown if layer == item.layer or layer in item.members]
    rows = []
    for item in sorted(found, key=lambda item: scale.strength(item.level)):
        measured = item.status is Status.MEASURED
        row = {
            "level_text": scale.text(item.level),
            "reached_text": scale.reached_text(item.achieved_level) if measured else "–",
            "source": ("estimated" if item.estimated else "measured") if measured else "none",
            "reason": item.reason,
        }
        for change in item.changes:
            view = METRICS[change.metric]
            row[change.metric] = view.value_text(change.value)
            row[f"{change.metric}_change"] = view.change_text(change.delta)
        rows.append(row)
    return pd.DataFrame(rows, columns=_layer_columns(metrics_of(result)))


def _layer_columns(metrics: Sequence[str]) -> list[str]:
    pairs = [column for name in metrics for column in (name, f"{name}_change")]
    return ["level_text", "reached_text", *pairs, "source", "reason"]
