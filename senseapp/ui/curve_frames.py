"""What curves are drawn of: the drop of a metric, the metric itself, or the reward of accuracy against compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from senseapp.compressions import LevelScale
from senseapp.metrics import METRICS, Metric, primary_among
from senseapp.results import SensitivityResult
from senseapp.ui.frames import metrics_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAxis:
    """One quantity that curves can show.

    Attributes:
        label: the name people see.
        title: of the axis.
        shown: from the rows of a metric to value, lower and upper end of its interval.
        reading: the value as text.
    """

    label: str
    title: Callable[[Metric], str]
    shown: Callable[[pd.DataFrame, Metric], tuple[pd.Series, pd.Series, pd.Series]]
    reading: Callable[[float, Metric], str]


def curve_rows(rows: pd.DataFrame, metric: Metric, axis: CurveAxis, scale: LevelScale) -> pd.DataFrame:
    """Return ``rows`` of :func:`senseapp.ui.frames.measurement_frame` with what ``axis`` shows of them.

    Further columns: ``place``, the level in people's unit of ``scale``; ``shown`` with
    ``shown_low`` and ``shown_high``; and ``shown_text``.
    """
    shown, low, high = axis.shown(rows, metric)
    return rows.assign(
        place=(rows["level"] * scale.per_level).round(6),
        shown=shown,
        shown_low=low,
        shown_high=high,
        shown_text=[axis.reading(value, metric) for value in shown],
    )


def accuracy_reward(top1: float, macs_left: float) -> float:
    """Return −(1 − top-1) · ln(MACs left): 0 for a model without errors, and lower with errors and with compute.

    Source: He et al. 2018, "AMC: AutoML for model compression and acceleration on mobile devices", section 3.4, where
    the compute of the whole network is meant.

    >>> round(accuracy_reward(0.75, 1_000_000), 3)
    -3.454
    """
    return (top1 - 1) * math.log(macs_left)


def reward_metric(result: SensitivityResult) -> str | None:
    """Return the share of right answers that the reward counts; None where it was not measured."""
    name = primary_among(metrics_of(result), labelled=True)
    return name if name and METRICS[name].is_share else None


def why_no_reward(result: SensitivityResult) -> str:
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


def _reward(rows: pd.DataFrame, metric: Metric) -> tuple[pd.Series, pd.Series, pd.Series]:
    found = [_rewards(values, rows["macs_left"], metric) for values in _value(rows, metric)]
    return found[0], found[1], found[2]


def _rewards(top1: pd.Series, macs_left: pd.Series, metric: Metric) -> pd.Series:
    pairs = zip(top1 / metric.factor, macs_left, strict=True)
    return pd.Series([accuracy_reward(value, macs) if macs > 0 else np.nan for value, macs in pairs], index=top1.index)


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
    "reward": CurveAxis(
        label="Reward",
        title=lambda _metric: "Reward: −(1 − top-1) · ln(MACs left)",
        shown=_reward,
        reading=lambda value, _metric: f"{value:.3f}".replace("-", "−"),
    ),
}
