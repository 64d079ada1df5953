"""Data frames of a result, in display units; every chart and table is drawn from one of these."""

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

import pandas as pd

from senseapp import descriptions
from senseapp.core.texts import first_names
from senseapp.descriptions import Effect
from senseapp.metrics import METRICS, Metric, MetricChange
from senseapp.records.comparison import MatchedLayer
from senseapp.records.measurement import LayerMeasurement, RunResult, Status, counted
from senseapp.records.resolution import everyday, opening_level, shared_ranks
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.solve.curve_set import damage_metric
from senseapp.solve.curves import weight_bytes
from senseapp.views.palette import NO_VALUE, row_bands

_EDITED = ("layer", "row", "amount", "locked", "least", "most", "alone", "share", "damage", "reason")

COLUMNS = (
    "layer", "row", "order", "layer_type", "params", "macs", "level", "level_text", "reached", "drop", "low", "high",
    "value", "change_text", "interval_text", "unclear", "ranked", "source", "group",
    "members", "description",
)  # fmt: skip


def ordered_levels(result: RunResult) -> tuple[float, ...]:
    """Return the run's levels from the mildest to the strongest."""
    return tuple(result.compression.scale.sorted(result.levels))


def metrics_of(result: RunResult) -> tuple[str, ...]:
    """Return the metrics that have values, the ranking one first."""
    seen = [name for name in METRICS if name in result.shown_metrics]
    return tuple(sorted(seen, key=lambda name: name != result.metric))


def measurement_frame(
    result: RunResult, metric: str, *, level: float | None = None, view: Metric | None = None
) -> pd.DataFrame:
    """Return one row per layer (or coupled group) and level, or at one ``level``, that has a value of ``metric``.

    Columns are :data:`COLUMNS`, ``rank`` and ``band``. ``drop``, ``low``, ``high`` and ``value`` are in the units of
    the metric's axes; ``unclear`` says that the 95 % interval holds zero, ``band`` is the colour
    (:mod:`senseapp.views.palette`); ``rank`` is 1 for the most fragile at a level and shared by layers that cannot be
    told apart; ``source`` is ``measured`` or ``estimated``. Rows are in execution order, then by strength. Texts are in
    the words of ``view``, by default everyday ones.
    """
    view = everyday(result, metric) if view is None else view
    items = result.shown if level is None else result.at(level)
    frame = pd.DataFrame(_rows(result, items, view), columns=list(COLUMNS))
    frame = frame.sort_values("order", kind="stable", ignore_index=True)
    ranks = pd.Series(pd.NA, index=frame.index, dtype="Int64")  # estimates have none
    for _, rows in frame[frame["ranked"].astype(bool)].groupby("level"):
        ranks[rows.index] = shared_ranks(rows["drop"].tolist(), rows["low"].tolist(), rows["high"].tolist())
    most = 100 * max((share for _, share in view.as_answers), default=math.inf)  # beyond it, texts say "over"
    high = frame["high"].clip(upper=frame["drop"].clip(lower=most))  # a whisker no longer than its text
    return frame.assign(high=high, rank=ranks, band=row_bands(frame, view))


def _rows(result: RunResult, items: Iterable[LayerMeasurement], metric: Metric) -> Iterator[dict[str, Any]]:
    scale = result.compression.scale
    layers = {layer.name: layer for layer in result.profile.layers}
    texts = {level: scale.text(level) for level in result.levels}
    for item in sorted(items, key=lambda item: scale.strength(item.level)):
        change = item.change(metric.name)
        if change is None or item.status is not Status.MEASURED:
            continue
        layer = layers.get(item.layer)
        numbers = change_figures(change, metric, estimated=item.estimated)
        level_text = texts[item.level]
        source = "estimated" if item.estimated else "measured"
        yield {
            "layer": item.layer,
            "row": row_name(item),
            "order": layer.order if layer else len(layers),
            "layer_type": layer.layer_type if layer else "",
            "params": layer.num_params if layer else 0,
            "macs": layer.macs if layer else 0,
            "level": item.level,
            "level_text": level_text,
            "reached": item.achieved_level,
            "source": source,
            "group": item.group,
            "members": ", ".join(item.members) or item.layer,
            "description": f"{item.layer}: {named_change(metric, numbers['change_text'])} at {level_text}, {source}",
            **numbers,
        }


def row_name(item: LayerMeasurement | MatchedLayer | ScheduleEntry) -> str:
    """Name a coupled group by its first member and the number of others, ``conv1 (+2)``."""
    others = len(item.members) - 1
    return f"{item.layer} (+{others})" if others > 0 else item.layer


def change_figures(change: MetricChange, metric: Metric, *, estimated: bool) -> dict[str, Any]:
    """Return the figures in display units; an unknown interval gives a whisker of no length."""
    known = not estimated and change.has_interval
    low, high = (change.ci_low, change.ci_high) if known else (change.delta, change.delta)
    return {
        "drop": float(metric.shown(change.delta)),
        "low": float(metric.shown(low)),
        "high": float(metric.shown(high)),
        "value": metric.factor * change.value,
        "change_text": metric.change_text(change.delta),
        "interval_text": metric.interval_text(low, high) if known else "none: estimate" if estimated else "unknown",
        "unclear": known and low <= 0 <= high,
        "ranked": known,
    }


def named_change(metric: Metric, text: str) -> str:
    """Return a change as text: of a metric without a unit behind its name, ``harm 0.08``."""
    return text if metric.change_unit else f"{metric.change_inside} {text}"


def at_level(frame: pd.DataFrame, level: float, *, by_sensitivity: bool = False) -> pd.DataFrame:
    """Return the rows of one level, in network order or the most fragile first."""
    rows = frame[frame["level"] == level]
    return rows.sort_values(["drop", "layer"], ascending=[False, True]) if by_sensitivity else rows


def layer_rewards(rows: pd.DataFrame, result: RunResult, metric: Metric) -> list[float] | None:
    """Return −(1 − share of right answers) · ln(MACs left) of each of the ``rows``; None where it has no meaning.

    The layer's MACs are counted as in Distiller's notebook of sensitivities, with the level's share of its inputs and
    of its outputs gone: MACs · (1 − level)². Source: He et al. 2018, "AMC: AutoML for model compression and
    acceleration on mobile devices", section 3.4, where the compute of the whole network is meant.
    """
    macs = {layer.name: layer.macs for layer in result.profile.layers}
    if not (metric.is_share and metric.primary) or result.compression.scale.stronger_is_lower or not any(macs.values()):
        return None
    return [
        (value / metric.factor - 1) * math.log(max(1.0, sum(macs.get(name, 0) for name in members) * (1 - level) ** 2))
        for value, members, level in zip(rows["value"], rows["members"].str.split(", "), rows["level"], strict=True)
    ]


def apart_frame(result: RunResult) -> pd.DataFrame:
    """Return the layers without a value: columns ``layer``, ``row``, ``levels``, ``status`` and ``reason``."""
    scale = result.compression.scale
    words = {Status.NOT_APPLICABLE: "Cannot be compressed alone", Status.FAILED: "Measurement failed"}
    groups: dict[tuple[str, str, str, str], list[float]] = {}
    for item in result.shown:
        if item.status in words:
            groups.setdefault((item.layer, row_name(item), words[item.status], item.reason), []).append(item.level)
    rows = [(layer, row, scale.texts(found), status, reason) for (layer, row, status, reason), found in groups.items()]
    return pd.DataFrame(rows, columns=["layer", "row", "levels", "status", "reason"])


def counted_rows(rows: pd.DataFrame) -> str:
    """Return how many layers or groups the ``rows`` of one level are: ``14 groups (22 layers)``."""
    return counted([members.split(", ") for members in rows["members"]])


def schedule_frame(schedule: Schedule, result: RunResult, view: Metric | None = None) -> pd.DataFrame:
    """Return one row per layer or group of ``schedule``: ``amount`` is percent, or bits with 32 for untouched weights.

    Of zeros and bits together it is the percentage of bytes left. ``drop`` is what the layer loses on its own at the
    level shown first, 0 where that is unknown, and ``band`` its colour. Other columns: ``layer``, ``row``, ``members``,
    ``amount_text``, ``drop_text``, ``damage_text``, ``description`` and ``reason``, which says why a layer is left
    alone.
    """
    metric, scale = view or everyday(result, schedule.metric), result.compression.scale
    alone = {str(row["layer"]): row for row in _at_opening_level(result, metric).to_dict("records")}
    usual = median([float(row["drop"]) for row in alone.values()] or [0.0])
    fragile = max(float(metric.shown(metric.notable)), 2 * usual)
    mixed, parts = is_mixed(schedule, result), dict[str, list[ScheduleEntry]]()
    for entry in schedule.entries:
        parts.setdefault(entry.layer, []).append(entry)
    rows = []
    for layer, (entry, *others) in parts.items():
        own = alone.get(layer)
        if mixed:
            amount, text = _bytes_left([entry, *others], result)
        elif _is_left_alone(entry, result):
            amount, text = scale.shown(scale.untouched), "left alone"
        else:
            amount, text = scale.shown(entry.level), scale.reached_text(entry.level)
        rows.append(
            {
                "layer": layer,
                "row": row_name(entry),
                "members": ", ".join(entry.members),
                "amount": amount,
                "amount_text": text,
                "drop": float(own["drop"]) if own else 0.0,
                "band": int(own["band"]) if own else NO_VALUE,
                "drop_text": f"{named_change(metric, own['change_text'])} at {own['level_text']}" if own else "–",
                "damage_text": metric.change_text(entry.predicted_damage),
                "description": f"{layer}: {text}",
                "reason": _reason(entry, result, loss=float(own["drop"]) if own else None, fragile=fragile),
            }
        )
    return pd.DataFrame(rows)


def is_mixed(schedule: Schedule, result: RunResult) -> bool:
    """Return whether layers also get another compression than that of the run."""
    return any(entry.compression not in ("none", result.compression.kind) for entry in schedule.entries)


def _bytes_left(entries: list[ScheduleEntry], result: RunResult) -> tuple[float, str]:
    """Return the percentage of a layer's bytes that zeros and bits together leave, and both in words."""
    applied = [(descriptions.get(each.compression), each.level) for each in entries if each.compression != "none"]
    parts = sorted(applied, key=lambda part: part[0].order)
    weights = result.profile.layer(entries[0].layer).num_params
    left = weight_bytes(
        weights,
        zeros=next((weights * level for what, level in parts if what.zeroes_weights), 0.0),
        bits=next((level for what, level in parts if what.sets_bits), descriptions.DENSE_BITS),
    )
    words = [what.scale.reached_text(level) + " zeros" * what.zeroes_weights for what, level in parts]
    return 100 * left / weight_bytes(weights), " and ".join(words) or "left alone"


def _is_left_alone(entry: ScheduleEntry, result: RunResult) -> bool:
    scale, is_own = result.compression.scale, result.compression.kind == entry.compression
    return entry.compression == "none" or (is_own and scale.text(entry.level) == scale.text(scale.untouched))


def reasons_text(rows: pd.DataFrame) -> str:
    """Return why layers of :func:`schedule_frame` are left alone, in one line: ``Too fragile: conv1. …``."""
    reasons = rows[rows["amount_text"] == "left alone"].groupby("reason", sort=False)["row"]
    return " ".join(f"{str(reason).capitalize()}: {first_names(list(names), 3)}." for reason, names in reasons)


def _reason(entry: ScheduleEntry, result: RunResult, *, loss: float | None, fragile: float) -> str:
    """Return why a layer is left alone, from its ``loss`` alone, which is ``fragile`` or less; empty for the others."""
    if not _is_left_alone(entry, result):
        return "locked" if entry.locked else ""
    if entry.locked:
        return "locked by you"
    if loss is None:
        return "cannot be pruned" if result.compression.description.removes_channels else "not measured"
    if loss > fragile:
        return "too fragile"
    num_params = {layer.name: layer.num_params for layer in result.profile.layers}
    weights = sum(num_params.get(name, 0) for name in entry.members)
    is_small = weights < 0.5 * sum(num_params.values()) / max(1, len(num_params))  # half of an even share
    return "little to gain (few weights)" if is_small else "not needed for the target"


def _at_opening_level(result: RunResult, view: Metric) -> pd.DataFrame:
    """Return the rows of the level shown first, which nobody changes."""
    question = "rows of the opening level", view.name, view.label
    if question not in result.kept:
        level = opening_level(result, view.name)
        result.kept[question] = measurement_frame(result, view.name, level=level, view=view)
    rows: pd.DataFrame = result.kept[question]
    return rows


_QUESTIONS = {
    Effect.ZEROS: "How much of each layer is set to zero?",
    Effect.CHANNELS: "How much of each layer is removed?",
    Effect.BITS: "How many bits does each layer get?",
}


def amount_bars(
    schedule: Schedule, result: RunResult, view: Metric | None = None
) -> tuple[pd.DataFrame, str, str, float]:
    """Return what bars of a schedule are drawn of: the rows, their question, and title and end of the axis of amounts.

    Bits end at the most that can be asked for, and at those of an untouched layer only where there is one.
    """
    rows, scale = schedule_frame(schedule, result, view), result.compression.scale
    if is_mixed(schedule, result):
        return rows, "How much is left of each layer?", "Size left of the weights (%)", 100.0
    most = scale.per_level
    if scale.stronger_is_lower:
        most = max(scale.choices)
        most = scale.untouched if (rows["amount"] > most).any() else most
    return rows, _QUESTIONS[result.compression.description.effect], scale.axis, most


def editing_frame(
    result: RunResult,
    schedule: Schedule | None,
    *,
    fixed: Mapping[str, float],
    bounds: Mapping[str, tuple[float | None, float | None]],
    view: Metric | None = None,
) -> pd.DataFrame:
    """Return one row per layer or coupled group that can be scheduled, for the table that people edit.

    Columns are ``layer``, ``row``, ``amount``, ``locked``, ``least``, ``most``, ``alone`` (its loss alone, at the level
    shown first), ``share`` (of all compressible weights, in percent), ``damage`` and ``reason``. ``amount``, ``least``
    and ``most`` are in percent, or bits with 32 for untouched weights; missing where nothing was
    set.
    """
    view = view or everyday(result, schedule.metric if schedule is not None else damage_metric(result))
    scale, frame = result.compression.scale, _at_opening_level(result, view)
    made = schedule_frame(schedule, result, view).to_dict("records") if schedule is not None else []
    entries = {str(entry["layer"]): entry for entry in made}
    num_params = {layer.name: layer.num_params for layer in result.profile.layers}
    total = max(1, sum(num_params.values()))
    rows = []
    for item in frame.sort_values("order").to_dict("records"):
        layer = str(item["layer"])
        entry = entries.get(layer)
        ends = [None if end is None else scale.shown(end) for end in bounds.get(layer, (None, None))]
        held = scale.shown(fixed[layer]) if layer in fixed else None
        rows.append(
            {
                "layer": layer,
                "row": item["row"],
                "amount": held if entry is None else round(entry["amount"], 4),
                "locked": layer in fixed,
                "least": ends[0],
                "most": ends[1],
                "alone": f"{named_change(view, item['change_text'])} at {item['level_text']}",
                "share": 100 * sum(num_params[name] for name in str(item["members"]).split(", ")) / total,
                "damage": "–" if entry is None else entry["damage_text"],
                "reason": "" if entry is None else entry["reason"],
            }
        )
    numbers = {"amount": "float64", "least": "float64", "most": "float64"}
    return pd.DataFrame(rows, columns=list(_EDITED)).astype(numbers)
