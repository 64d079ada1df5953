"""Frames of one level over all layers, and of one layer over all levels."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from senseapp.results import SensitivityResult, Status
from senseapp.spec import PruningConfig, SparsityConfig
from senseapp.ui import format as fmt
from senseapp.ui.frames import metrics_of
from senseapp.ui.vocabulary import METRICS, MetricView, strength

__all__ = ["EXTREMES", "drop_domain", "layer_frame", "marked", "reached_note", "reached_text"]

EXTREMES = ("loses most", "loses least")
_MARGIN, _ROOM_FOR_WORDS = 0.03, 0.2


def marked(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``extreme`` to the rows of a level: :data:`EXTREMES` at its largest and smallest drop, else empty."""
    words = {}
    if len(rows) > 1:
        words = {rows["drop"].idxmin(): EXTREMES[1], rows["drop"].idxmax(): EXTREMES[0]}
    return rows.assign(extreme=[words.get(index, "") for index in rows.index])


def drop_domain(rows: pd.DataFrame, metric: MetricView) -> tuple[float, float]:
    """Return the ends of an axis that holds zero, all drops of ``rows`` with their intervals, and words."""
    low = min(0.0, float(rows["low"].min()), float(rows["drop"].min()))
    high = max(metric.factor * metric.notable, float(rows["high"].max()), float(rows["drop"].max()))
    return low - _MARGIN * (high - low), high + _ROOM_FOR_WORDS * (high - low)


def reached_note(result: SensitivityResult) -> str:
    """Say how far levels can be reached where whole filters or channels go; empty where single weights do."""
    compression = result.spec.sensitivity.compression
    if isinstance(compression, PruningConfig):
        what = "Whole channels are removed"
    elif isinstance(compression, SparsityConfig) and compression.granularity == "filter":
        what = "Whole filters are set to zero"
    else:
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
    kind = result.spec.sensitivity.compression.kind
    found = [item for item in result.shown if layer == item.layer or layer in item.members]
    rows = []
    for item in sorted(found, key=lambda item: strength(kind, item.level)):
        measured = item.status is Status.MEASURED
        row = {
            "level_text": fmt.level(kind, item.level),
            "reached_text": reached_text(kind, item.achieved_level) if measured else "–",
            "source": ("estimated" if item.estimated else "measured") if measured else "none",
            "reason": item.reason,
        }
        for change in item.changes:
            view = METRICS[change.metric]
            row[change.metric] = view.reading(change.value)
            row[f"{change.metric}_change"] = view.change(change.delta)
        rows.append(row)
    return pd.DataFrame(rows, columns=_layer_columns(metrics_of(result)))


def reached_text(kind: str, level: float) -> str:
    """Return a level that was truly reached, to a tenth of a percent."""
    return fmt.level(kind, level) if kind == "quantization" else fmt.percent(level, digits=1)


def _layer_columns(metrics: Sequence[str]) -> list[str]:
    pairs = [column for name in metrics for column in (name, f"{name}_change")]
    return ["level_text", "reached_text", *pairs, "source", "reason"]
