"""Frames of one level over all layers, of one layer over all levels, and of the quantities that curves can show."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from senseapp.descriptions import LevelScale
from senseapp.metrics import METRICS, Metric, primary_among
from senseapp.records.measurement import RunResult
from senseapp.views.frames.results import metrics_of

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAxis:
    """One quantity that curves can show; ``shown`` gives value, lower and upper end, ``reading`` a value as text."""

    label: str
    title: Callable[[Metric], str]
    shown: Callable[[pd.DataFrame, Metric], tuple[pd.Series, pd.Series, pd.Series]]
    reading: Callable[[float, Metric], str]


def curve_rows(rows: pd.DataFrame, metric: Metric, axis: CurveAxis, scale: LevelScale) -> pd.DataFrame:
    """Return ``rows`` of :func:`senseapp.views.frames.results.measurement_frame` with what ``axis`` shows of them.

    Further columns: ``place``, the level in people's unit of ``scale``; ``shown`` with ``shown_low`` and
    ``shown_high``; and ``shown_text``.
    """
    shown, low, high = axis.shown(rows, metric)
    texts = [axis.reading(value, metric) for value in shown]
    place = (rows["level"] * scale.per_level).round(6)
    return rows.assign(place=place, shown=shown, shown_low=low, shown_high=high, shown_text=texts)


def accuracy_reward(top1: float, macs_left: float) -> float:
    """Return −(1 − top-1) · ln(MACs left): 0 for a model without errors, and lower with errors and with compute.

    Source: He et al. 2018, "AMC: AutoML for model compression and acceleration on mobile devices", section 3.4, where
    the compute of the whole network is meant; Distiller's notebook takes the layer's MACs · (1 − level)².

    >>> round(accuracy_reward(0.75, 1_000_000), 3)
    -3.454
    """
    return (top1 - 1) * math.log(macs_left)


def reward_metric(result: RunResult) -> str | None:
    """Return the share of right answers that the reward counts; None where it was not measured."""
    name = primary_among(metrics_of(result), labelled=True)
    return name if name and METRICS[name].is_share else None


REWARD_READING = (
    "Higher is better: errors and remaining compute both pull the reward down. Compress a layer as far as its curve "
    "rises, and stop at its top."
)
REWARD_HELP = (
    "The reward is −(1 − top-1) · ln(MACs left). The layer's MACs are counted as in Distiller's notebook, with the "
    "level's share of its inputs and of its outputs gone: MACs · (1 − level)². The network's are what is truly left of "
    "the whole network, as in AMC's search."
)


def why_no_reward(result: RunResult) -> str:
    """Return why the reward cannot be drawn; empty where it can."""
    if reward_metric(result) is None:
        return "The reward needs top-1 accuracy, and so images with labels."
    if not result.profile.macs:
        return "The reward needs the MACs of each layer, which these figures come without."
    if not any(item.removed_macs for item in result.shown):
        return "The reward counts the MACs that are left, and quantization takes none away."
    return ""


def _drop(rows: pd.DataFrame, _metric: Metric) -> tuple[pd.Series, pd.Series, pd.Series]:
    return rows["drop"], rows["low"], rows["high"]


def _value(rows: pd.DataFrame, metric: Metric) -> tuple[pd.Series, pd.Series, pd.Series]:
    value = rows["value"]
    if not metric.additive:
        return value, value, value
    better, worse = rows["low"] - rows["drop"], rows["high"] - rows["drop"]
    return (value, value - worse, value - better) if metric.higher_is_better else (value, value + better, value + worse)


def _reward(column: str) -> Callable[[pd.DataFrame, Metric], tuple[pd.Series, pd.Series, pd.Series]]:
    """Return what shows the reward with the MACs of ``column``."""

    def shown(rows: pd.DataFrame, metric: Metric) -> tuple[pd.Series, pd.Series, pd.Series]:
        def rewards(top1: pd.Series) -> pd.Series:
            pairs = zip(top1 / metric.factor, rows[column], strict=True)
            found = [accuracy_reward(value, macs) if macs > 0 else np.nan for value, macs in pairs]
            return pd.Series(found, index=rows.index)

        value, low, high = _value(rows, metric)
        return rewards(value), rewards(low), rewards(high)

    return shown


def _reward_axis(whose: str, title: str, column: str) -> CurveAxis:
    return CurveAxis(
        label=f"Reward, {whose} MACs",
        title=lambda _metric: title,
        shown=_reward(column),
        reading=lambda value, _metric: f"{value:.3f}".replace("-", "−"),
    )


CURVE_AXES = {
    "drop": CurveAxis(
        label="Drop",
        title=lambda metric: metric.axis,
        shown=_drop,
        reading=lambda value, metric: metric.change_text(value / metric.factor),
    ),
    "value": CurveAxis(
        label="Metric itself",
        title=lambda metric: metric.value_axis,
        shown=_value,
        reading=lambda value, metric: metric.value_text(value / metric.factor),
    ),
    "layer_reward": _reward_axis("layer's", "Reward: −(1 − top-1) · ln(layer's MACs left)", "layer_macs_left"),
    "reward": _reward_axis("network's", "Reward: −(1 − top-1) · ln(MACs left)", "macs_left"),
}
REWARDS = ("layer_reward", "reward")
"""The names in :data:`CURVE_AXES` of rewards: with the MACs of the layer, as in Distiller's notebook, or of all."""
