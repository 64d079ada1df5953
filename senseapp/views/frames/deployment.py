"""The rows that compare a file that runs with the original and with other files of the same network."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from senseapp.metrics import METRICS, MetricChange, divergence_among, primary_among
from senseapp.records.deployment import Deployment, Median
from senseapp.views.words import format as fmt

_FILES = {
    "file": "This file",
    "original": "The original, in float",
    "int8": "All of it in int8",
    "default": "",
}
"""Titles of files; that of the runtime's own quantizer is the runtime's."""
_UNKNOWN = "–"


def shown_metrics(record: Deployment) -> list[str]:
    """Return the metrics of the table: the one that people judge a model by, and the finest."""
    names = [change.metric for change in record.figures["file"].changes]
    return [name for name in (primary_among(names), divergence_among(names)) if name] or names[:1]


def deployment_frame(record: Deployment) -> pd.DataFrame:
    """Return a row per file, the file itself first, and one of what the simulation predicted of it.

    Columns are ``file``, the name of each of :func:`shown_metrics`, ``time``, ``share`` and ``size``: texts, with the
    95 % interval of what was measured.
    """
    names = shown_metrics(record)
    shown = [name for name in _FILES if name in record.figures and (name, record.settings.kind) != ("int8", "int8")]
    rows = [
        {
            "file": _FILES[name] or record.runtime.own_default,
            **_readings(record.figures[name].changes, names),
            "time": _milliseconds(record.figures[name].seconds),
            "share": _percent(record.figures[name].time_ratio),
            "size": fmt.bytes_size(record.figures[name].file_bytes),
        }
        for name in shown
    ]
    if record.simulated:
        unknown = dict.fromkeys(("time", "share", "size"), _UNKNOWN)
        rows.insert(1, {"file": "Predicted by simulation", **_readings(record.simulated, names), **unknown})
    return pd.DataFrame(rows, columns=["file", *names, "time", "share", "size"])


def _readings(changes: Iterable[MetricChange], names: list[str]) -> dict[str, str]:
    found = {change.metric: _reading(change) for change in changes if change.metric in names}
    return {name: found.get(name, _UNKNOWN) for name in names}


def _reading(change: MetricChange) -> str:
    """Return a metric's value with the interval that belongs to its drop; its unit is in the head of the column."""
    metric = METRICS[change.metric]
    sign = -1 if metric.higher_is_better else 1
    ends = sorted(change.value + sign * (end - change.delta) for end in (change.ci_low, change.ci_high))
    low, high = (min(1.0, max(0.0, end)) for end in ends) if metric.is_share else ends
    value = metric.value_text(change.value).removesuffix(metric.value_unit).strip()
    return f"{value} ({metric.interval_text(low, high)})"


def _milliseconds(seconds: Median) -> str:
    value, low, high = (f"{1000 * each:.3g}" for each in (seconds.value, seconds.low, seconds.high))
    return f"{value} ({low} to {high})"


def _percent(ratio: Median) -> str:
    value, low, high = (f"{100 * each:.0f}" for each in (ratio.value, ratio.low, ratio.high))
    return f"{value} ({low} to {high})"
