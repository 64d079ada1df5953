"""The rows of the chart of a recommendation: what whole compressed models still do, against what is saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from senseapp.metrics import METRICS, Metric, MetricChange
from senseapp.records.layer_times import MILLISECONDS
from senseapp.records.measurement import change_in
from senseapp.records.recommendation import Recommendation

OURS, UNIFORM = "A level for each layer", "The same level for all"
COLUMNS = ("source", "figure", "value", "low", "high", "proven", "description")
AXES: dict[str, str] = {
    "params": "Weights removed (%)",
    "bytes": "Bytes saved if stored compactly (%)",
    "macs": "MACs saved (%)",
    "bits": "Average bits of a weight",
    MILLISECONDS: "Predicted milliseconds of a call",
}
AS_THEY_ARE = ("bits", MILLISECONDS)
"""Kinds whose figures are no shares."""


def shown_figure(kind: str, figure: float) -> float:
    """Return a figure in the unit of its axis: percent removed, average bits or milliseconds."""
    return figure if kind in AS_THEY_ARE else 100 * figure


def figure_text(kind: str, figure: float) -> str:
    """Return a figure as people say it: ``62.5 % of the MACs saved``, ``4.2 bits on average``."""
    words = {
        "params": "of the weights removed",
        "bytes": "of the bytes saved if stored compactly",
        "macs": "of the MACs saved",
    }
    if kind == MILLISECONDS:
        return f"{figure:.3g} ms a call"
    return f"{figure:.2f} bits on average" if kind == "bits" else f"{100 * figure:.1f} % {words[kind]}"


def recommended_frame(found: Recommendation) -> pd.DataFrame:
    """Return one row per measured schedule, in the order of their savings; ``proven`` ones are those of the proof.

    ``value``, ``low`` and ``high`` are what the metric itself shows, or the loss where value and loss do not differ by
    the baseline.
    """
    return pd.DataFrame(list(_rows(found)), columns=list(COLUMNS))


def _rows(found: Recommendation) -> Iterator[dict[str, Any]]:
    for source, tried in ((OURS, found.tried), (UNIFORM, found.uniform)):
        for each in tried:
            if (change := each.change(found.metric)) is not None:
                yield _row(source, found.kind, each.figure, change, proven=False)
    if found.validation is None:
        return
    figure = found.validation.schedule.achieved[found.kind]
    for source, change in ((OURS, found.loss), (UNIFORM, found.uniform_loss)):
        if change is not None:
            yield _row(source, found.kind, figure, change, proven=True)


def _row(source: str, kind: str, figure: float, change: MetricChange, *, proven: bool) -> dict[str, Any]:
    view = METRICS[change.metric]
    value, low, high = (view.factor * end for end in _ends(change, view))
    return {
        "source": source,
        "figure": round(shown_figure(kind, figure), 4),
        "value": value,
        "low": low,
        "high": high,
        "proven": proven,
        "description": f"{source}, {figure_text(kind, figure)}: {view.value_text(change.value)} "
        f"({change.num_samples} images{', not used for anything else' if proven else ''})",
    }


def _ends(change: MetricChange, view: Metric) -> tuple[float, float, float]:
    if not view.additive:
        return change.delta, change.ci_low, change.ci_high
    sign = -1 if view.higher_is_better else 1
    return change.value, *sorted(change.value + sign * (end - change.delta) for end in (change.ci_low, change.ci_high))  # type: ignore[return-value]


def baseline_value(found: Recommendation) -> float:
    """Return what the uncompressed model does, in the unit of ``value``."""
    view = METRICS[found.metric]
    known = (change for each in (*found.tried, *found.uniform) if (change := change_in(each.changes, found.metric)))
    first = next(known, None)
    return view.factor * first.baseline if first is not None and view.additive else 0.0
