"""Runs of several models side by side: accuracy, and bytes that can be removed at one point of loss."""

from collections.abc import Sequence
from typing import Any

from senseapp.core.errors import InfeasibleBudget, InvalidSchedule, InvalidSpec
from senseapp.core.texts import csv_text, plural
from senseapp.metrics import METRICS, primary_among
from senseapp.records.headline import headline
from senseapp.records.measurement import RunResult
from senseapp.records.resolution import smallest_visible_loss

ALLOWED_DROP = 0.01
"""One point of a hundred."""


def leaderboard_row(result: RunResult, *, run: str) -> dict[str, Any]:
    """Return the columns of a finished run, called ``run``, in a table of several; None for what is unknown.

    ``bytes_removable`` is the largest share of bytes, of the schedules of the trade-off, with a predicted loss of at
    most :data:`ALLOWED_DROP` in ``drop_metric``: top-1, or agreement with the uncompressed model. Images that cannot
    show such a drop in one layer cannot show it in all; then ``source`` says so.
    """
    counted = primary_among({change.metric for item in result.measurements for change in item.changes}) or ""
    visible = smallest_visible_loss(result, counted) if counted else None
    is_shown = visible is None or visible <= ALLOWED_DROP
    removable = bytes_removable(result, counted) if counted and is_shown else None
    few = f"too few images to say: {plural(result.num_samples, 'image')}"
    return {
        "run": run,
        "model": result.profile.title,
        "compression": result.compression.kind,
        "levels": " ".join(f"{level:g}" for level in result.levels),
        "params": result.profile.num_params,
        "images": result.num_samples,
        "metric": result.metric,
        "baseline": result.baseline.get(result.metric) if METRICS[result.metric].needs_labels else None,
        "bytes_removable": removable,
        "drop_metric": counted,
        "source": few if not is_shown else "predicted" if removable is not None else "",
        "headline": headline(result),
    }


def ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs from which most can be removed first; unknown ones last, in their order."""
    return sorted(
        rows, key=lambda row: -1.0 if row["bytes_removable"] is None else row["bytes_removable"], reverse=True
    )


def leaderboard_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows, at least one, as a table; unknown figures are empty."""
    cells = ([f"{each:.6g}" if isinstance(each, float) else each for each in row.values()] for row in rows)
    return csv_text(list(rows[0]), cells)


def bytes_removable(result: RunResult, metric: str) -> float | None:
    """Return the largest share of bytes with a predicted loss of at most :data:`ALLOWED_DROP`; None if unknown."""
    from senseapp.solve.trade_off import trade_off  # loads scipy, which the app's start avoids

    try:
        points = trade_off(result, "bytes", metric=metric)
    except (InvalidSchedule, InvalidSpec, InfeasibleBudget):  # no layer has a curve, or no budget is possible
        return None
    return max((point.figure for point in points if point.damage <= ALLOWED_DROP), default=0.0)
