"""A result in one sentence that a manager can read out."""

from __future__ import annotations

from senseapp.results import LayerMeasurement, MetricChange, SensitivityResult
from senseapp.spec import QuantizationConfig

__all__ = ["headline", "headline_level", "shown_metric"]

_POINTS = ("top1", "top5", "agreement")  # shares of images, spoken of in points of a hundred
_UNITS = {"loss": "nats of loss", "kl": "nats of KL divergence", "sqnr": "noise per signal"}
_USUAL_FRACTION = 0.5
_USUAL_BITS = 4.0


def headline_level(result: SensitivityResult) -> float:
    """Return the level nearest to 50 % (or 4 bits): the one that a summary speaks about."""
    usual = _USUAL_BITS if isinstance(result.spec.sensitivity.compression, QuantizationConfig) else _USUAL_FRACTION
    return min(result.levels, key=lambda level: (abs(level - usual), level))


def shown_metric(result: SensitivityResult) -> str:
    """Return the ranking metric, or KL where nothing but a quick scan ran, which cannot estimate every metric."""
    found = result.shown_metrics
    return result.metric if result.metric in found or "kl" not in found else "kl"


def headline(result: SensitivityResult) -> str:
    """Say which layer is the most fragile and how many lose nothing, at :func:`headline_level`.

    "Most fragile: layer2.0.conv1, −6.4 points at 50 %. 14 of 21 layers lose nothing measurable." A layer loses
    nothing measurable if the 95 % interval of its drop reaches 0. Estimates have no interval, so a run of
    estimates alone says nothing about that, and says that it is estimated.
    """
    level = headline_level(result)
    ranked = result.ranked(level, shown_metric(result))
    if not ranked:
        return f"No layer could be measured at {_level_text(result, level)}."
    worst, change = ranked[0]
    drop = f"{worst.layer}, {_drop_text(change)} at {_level_text(result, level)}"
    if worst.estimated:
        return f"Most fragile by estimate: {drop}. Run the exact measurement to be sure."
    measured = [pair for pair in ranked if not pair[0].estimated]
    if not all(found.has_interval for _, found in measured):
        return f"Most fragile: {drop}. Which losses are more than chance is unknown."
    total = sum(_num_layers(item) for item, _ in measured)
    intact = sum(_num_layers(item) for item, found in measured if found.ci_low <= 0)
    if intact == total:
        counted = f"{total} layer{'s' if total != 1 else ''} measured"
        intact_at = f"No layer loses anything measurable at {_level_text(result, level)} ({counted})."
        return intact_at + _first_stronger_loss(result, level)
    if not intact:
        return f"Most fragile: {drop}. Every layer measured loses something."
    return f"Most fragile: {drop}. {intact} of {total} layers {'lose' if intact != 1 else 'loses'} nothing measurable."


def _first_stronger_loss(result: SensitivityResult, level: float) -> str:
    """Return a further sentence on the mildest stronger level at which a layer measurably loses; empty if none."""
    bits = isinstance(result.spec.sensitivity.compression, QuantizationConfig)
    stronger = [other for other in result.levels if (other < level if bits else other > level)]
    for other in sorted(stronger, reverse=bits):
        ranked = result.ranked(other, shown_metric(result))
        if ranked and not ranked[0][0].estimated and ranked[0][1].ci_low > 0:
            worst, change = ranked[0]
            return f" Most fragile beyond that: {worst.layer}, {_drop_text(change)} at {_level_text(result, other)}."
    return ""


def _num_layers(item: LayerMeasurement) -> int:
    return len(item.members) or 1


def _level_text(result: SensitivityResult, level: float) -> str:
    if isinstance(result.spec.sensitivity.compression, QuantizationConfig):
        return f"{level:g} bits"
    return f"{100 * level:g} %"


def _drop_text(change: MetricChange) -> str:
    """Return the change as people say it: points lost with a minus, growth of an error with a plus."""
    if change.metric in _POINTS:
        points = _signed(-100 * change.delta, digits=1)
        return f"{points} points of agreement" if change.metric == "agreement" else f"{points} points"
    return f"{_signed(change.delta, digits=3)} {_UNITS[change.metric]}"


def _signed(value: float, *, digits: int) -> str:
    rounded = round(value, digits)
    if rounded == 0:
        return f"{0:.{digits}f}"
    return f"{'−' if rounded < 0 else '+'}{abs(rounded):.{digits}f}"
