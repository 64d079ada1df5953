"""Results in one sentence, and runs side by side: accuracy, and bytes that can be removed at one point of loss."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from senseapp.core.errors import InfeasibleBudget, InvalidSchedule, InvalidSpec
from senseapp.core.texts import csv_text, plural
from senseapp.metrics import METRICS, MetricChange, divergence_among, primary_among
from senseapp.records.measurement import LayerMeasurement, RunResult, counted
from senseapp.records.resolution import (
    baseline_warning,
    cannot_tell,
    everyday,
    opening_level,
    seen_from,
    smallest_visible_loss,
    unseen_below,
)


def headline_level(result: RunResult) -> float:
    """Return the level of summaries: the one that charts show first."""
    return opening_level(result, shown_metric(result))


def compared_levels(results: Sequence[RunResult]) -> list[float]:
    """Return the level at which each run is compared first: a common one for runs of one compression, if there is one.

    ``results`` are one or more; the first determines which of the common levels it is.
    """
    first, *others = results
    common = [level for level in first.levels if all(level in other.levels for other in others)]
    if common and len({result.compression.kind for result in results}) == 1:
        return [opening_level(first, shown_metric(first), common)] * len(results)
    return [headline_level(result) for result in results]


def shown_metric(result: RunResult) -> str:
    """Return the metric of findings, charts and reports, the same while a run works and afterwards.

    It is the one that a person chose, where it has values; else the divergence, which estimates have too.
    """
    found, chosen = result.shown_metrics, result.spec.sensitivity.metric
    return chosen if chosen is not None and chosen in found else divergence_among(found) or result.metric


def headline(result: RunResult) -> str:
    """Return the most fragile layer and the loss of the others, as far as images show it, at :func:`headline_level`.

    A layer loses nothing measurable if the 95 % interval of its drop reaches 0. If the images cannot show a tolerable
    loss, the headline says so. Estimates count only where nothing is measured, as in charts. A model that fails at its
    task uncompressed is the headline itself. Losses are in the :func:`shown_metric`.
    """
    if warning := baseline_warning(result):
        return warning
    level, metric = headline_level(result), shown_metric(result)
    ranked = result.ranked(level, metric)
    if not ranked:
        return f"No layer could be measured at {result.compression.scale.text(level)}."
    measured = [pair for pair in ranked if not pair[0].estimated]
    worst, change = (measured or ranked)[0]
    drop = f"{worst.layer}{_loses(change, result)} at {result.compression.scale.text(level)}"
    if not measured:
        return f"Most fragile by estimate: {drop}. Run the exact measurement to be sure."
    every = [item.members for item, _ in measured]
    most = "Most fragile" if len(measured) == len(ranked) else f"Most fragile of {counted(every)} measured"
    if not all(found.has_interval for _, found in measured):
        return f"{most}: {drop}. Which losses are more than chance is unknown."
    intact = sum(found.ci_low <= 0 for _, found in measured)
    if not intact:
        does = "changes the outputs" if METRICS[metric].divergence else "loses something"
        return f"{most}: {drop}. Every layer measured {does}{_open(result, metric, measured)}."
    visible = smallest_visible_loss(result, metric, level) or 0.0
    if intact == len(every):
        nothing = _nothing_seen(result, level, metric, visible, counted(every))
        return nothing + _first_stronger_loss(result, level, metric)
    some, few = f"{intact} of {counted(every)}", unseen_below(result.num_samples, everyday(result, metric), visible)
    if visible > everyday(result, metric).notable:
        return f"{most}: {drop}. Too few images to say for {some}: {few}."
    lose = "lose" if intact != 1 else "loses"
    return f"{most}: {drop}. {some} {lose} nothing measurable{_seen(result, metric, visible)}."


def _open(result: RunResult, metric: str, measured: Sequence[tuple[LayerMeasurement, MetricChange]]) -> str:
    """Return for how many of the layers the images leave open if the loss is tolerable, as a clause; empty for none."""
    low, delta, high = np.array([(found.ci_low, found.delta, found.ci_high) for _, found in measured]).T
    few = int(cannot_tell(low, delta, high, everyday(result, metric).notable).sum())
    if not few:
        return ""
    every = counted([item.members for item, _ in measured])
    return f"; {plural(result.num_samples, 'image')} cannot show if that is tolerable for {few} of {every}"


def _nothing_seen(result: RunResult, level: float, metric: str, visible: float, every: str) -> str:
    """Return the sentence for the case that no layer of ``every`` ("23 layers") loses significantly."""
    at, layers = result.compression.scale.text(level), f"{every} measured"
    if visible <= everyday(result, metric).notable:
        return f"No layer loses anything measurable at {at} ({layers}){_seen(result, metric, visible)}."
    finer = divergence_among(result.shown_metrics)
    instead = f", or look at {everyday(result, finer).change_inside}" if finer and finer != metric else ""
    few = unseen_below(result.num_samples, everyday(result, metric), visible)
    return f"{few[0].upper()}{few[1:]} at {at} ({layers}): add images{instead}."


def _seen(result: RunResult, metric: str, visible: float) -> str:
    """Return the smallest loss that the images show, as a clause; empty if it is 0."""
    return f": {seen_from(result.num_samples, everyday(result, metric), visible)}" if visible else ""


def _first_stronger_loss(result: RunResult, level: float, metric: str) -> str:
    """Return a sentence on the mildest stronger level with a measurable loss of a layer; empty if there is none."""
    scale = result.compression.scale
    for other in scale.sorted(other for other in result.levels if scale.strength(other) > scale.strength(level)):
        ranked = result.ranked(other, metric)
        if ranked and not ranked[0][0].estimated and ranked[0][1].ci_low > 0:
            worst, change = ranked[0]
            return f" Most fragile beyond that: {worst.layer}{_loses(change, result)} at {scale.text(other)}."
    return ""


def _loses(change: MetricChange, result: RunResult) -> str:
    """Return the change in words, to follow the name of a layer."""
    metric = everyday(result, change.metric)
    return metric.finding.format(metric.change_text(change.delta))


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
