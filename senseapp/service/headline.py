"""A result in one sentence that a manager can read out."""

from __future__ import annotations

from senseapp.metrics import METRICS, divergence_among
from senseapp.results import MetricChange, SensitivityResult
from senseapp.results.counts import counted, plural
from senseapp.results.resolution import baseline_warning, smallest_visible_loss, visible_words


def headline_level(result: SensitivityResult) -> float:
    """Return the level nearest to 50 % (or 4 bits): the one that a summary speaks about."""
    usual = result.spec.sensitivity.compression.scale.usual
    return min(result.levels, key=lambda level: (abs(level - usual), level))


def shown_metric(result: SensitivityResult) -> str:
    """Return the ranking metric, or KL where nothing but a quick scan ran, which cannot estimate every metric."""
    found = result.shown_metrics
    return result.metric if result.metric in found else divergence_among(found) or result.metric


def headline(result: SensitivityResult) -> str:
    """Say which layer is the most fragile and what the images can show of the others, at :func:`headline_level`.

    "Most fragile: layer2.0.conv1 loses 6.4 points at 50 %. 14 of 21 layers lose nothing measurable: 512 images show
    losses from about 0.7 points." A layer loses nothing measurable if the 95 % interval of its drop reaches 0. Where
    the images cannot show a tolerable loss, that is the answer: "20 images cannot show a drop in top-1 accuracy under
    about 16 points". Estimates have no interval, so a run of estimates alone says that it is estimated. A model that
    does not do its task uncompressed is the headline itself.
    """
    if warning := baseline_warning(result):
        return warning
    level, metric = headline_level(result), shown_metric(result)
    ranked = result.ranked(level, metric)
    if not ranked:
        return f"No layer could be measured at {_level_text(result, level)}."
    worst, change = ranked[0]
    drop = f"{worst.layer}{_loses(change)} at {_level_text(result, level)}"
    if worst.estimated:
        return f"Most fragile by estimate: {drop}. Run the exact measurement to be sure."
    measured = [pair for pair in ranked if not pair[0].estimated]
    if not all(found.has_interval for _, found in measured):
        return f"Most fragile: {drop}. Which losses are more than chance is unknown."
    every = [item.members for item, _ in measured]
    intact = sum(found.ci_low <= 0 for _, found in measured)
    if not intact:
        return f"Most fragile: {drop}. Every layer measured loses something."
    visible = smallest_visible_loss(result, metric, level) or 0.0
    if intact == len(every):
        return _nothing_seen(result, level, metric, visible, counted(every)) + _first_stronger_loss(result, level)
    some = f"{intact} of {counted(every)}"
    if visible > METRICS[metric].notable:
        return f"Most fragile: {drop}. {some} cannot be told: {_too_few(result, metric, visible)}."
    lose = "lose" if intact != 1 else "loses"
    return f"Most fragile: {drop}. {some} {lose} nothing measurable{_shown(result, metric, visible)}."


def _nothing_seen(result: SensitivityResult, level: float, metric: str, visible: float, every: str) -> str:
    """Return what it means that no layer of ``every`` ("23 layers") loses for sure."""
    at, layers = _level_text(result, level), f"{every} measured"
    if visible <= METRICS[metric].notable:
        return f"No layer loses anything measurable at {at} ({layers}){_shown(result, metric, visible)}."
    finer = divergence_among(result.shown_metrics)
    instead = f", or use {METRICS[finer].label}" if finer and finer != metric else ""
    return f"{_sentence(_too_few(result, metric, visible))} at {at} ({layers}): add images{instead}."


def _too_few(result: SensitivityResult, metric: str, visible: float) -> str:
    return f"{_images(result)} cannot show losses under about {visible_words(metric, visible)}"


def _shown(result: SensitivityResult, metric: str, visible: float) -> str:
    """Return how small a loss the images show; nothing where even a loss of nothing is seen."""
    if not visible:
        return ""
    return f": {_images(result)} show losses from about {visible_words(metric, visible)}".replace("about < ", "under ")


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _images(result: SensitivityResult) -> str:
    return plural(result.num_samples, "image") if result.num_samples else "these images"


def _first_stronger_loss(result: SensitivityResult, level: float) -> str:
    """Return a further sentence on the mildest stronger level at which a layer measurably loses; empty if none."""
    scale = result.spec.sensitivity.compression.scale
    for other in scale.sorted(other for other in result.levels if scale.strength(other) > scale.strength(level)):
        ranked = result.ranked(other, shown_metric(result))
        if ranked and not ranked[0][0].estimated and ranked[0][1].ci_low > 0:
            worst, change = ranked[0]
            return f" Most fragile beyond that: {worst.layer}{_loses(change)} at {_level_text(result, other)}."
    return ""


def _level_text(result: SensitivityResult, level: float) -> str:
    return result.spec.sensitivity.compression.scale.text(level)


def _loses(change: MetricChange) -> str:
    """Return the change as people say it, to follow the name of a layer."""
    metric = METRICS[change.metric]
    return metric.finding.format(metric.change_text(change.delta))
