"""The finding of a run in one sentence, and the level and the metric that it is about."""

from collections.abc import Sequence

import numpy as np

from senseapp.core.texts import plural
from senseapp.metrics import METRICS, MetricChange, divergence_among
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
