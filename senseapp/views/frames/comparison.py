"""Runs side by side, as data frames and in sentences: matched layers, moved ranks, and all runs."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from senseapp.metrics import METRICS, Metric, number_text
from senseapp.prove.decision import Decision
from senseapp.records.comparison import BOTH_PARTS, Comparison, MatchedLayer, Side
from senseapp.records.headline import shown_metric
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import RunResult
from senseapp.records.resolution import opening_level
from senseapp.views.frames.results import change_figures, row_name
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import STATES, caveat_of, compression_text

_PAIR_COLUMNS = (
    "layer", "row", "side", "source", "drop", "low", "high", "change_text", "interval_text", "rank_text", "members",
    "description",
)  # fmt: skip


def letter(index: int) -> str:
    """Return the letter that stands for a side where its title would be too long."""
    return "ABCDEFGH"[index]


def side_labels(sides: Sequence[Side]) -> list[str]:
    """Return a label for each side that no other has: ``A · demo, 50 %``, or ``A · estimated`` within one run."""
    names = (
        side.part
        if side.part != "shown"
        else f"{fmt.cut_middle(side.title)}, {side.result.compression.scale.text(side.level)}"
        for side in sides
    )
    return [f"{letter(index)} · {name}" for index, name in enumerate(names)]


def pair_frame(comparison: Comparison, views: Sequence[Metric]) -> pd.DataFrame:
    """Return one row per matched layer and side, in network order; columns are those of :data:`_PAIR_COLUMNS`.

    ``views`` are the metric in the words of each side, on one axis.
    """
    labels = side_labels(comparison.sides)
    rows = []
    for layer in comparison.layers:
        for index, (change, label, metric) in enumerate(zip(layer.changes, labels, views, strict=True)):
            figures = change_figures(change, metric, estimated=layer.estimated[index])
            source = "estimated" if layer.estimated[index] else "measured"
            own = {
                "layer": layer.layer,
                "row": row_name(layer),
                "side": label,
                "source": source,
                "rank_text": _rank_text(layer, index, len(comparison.layers)),
                "members": ", ".join(layer.members),
                "description": f"{layer.layer}, {label}: {figures['change_text']}, {source}",
            }
            rows.append(figures | own)
    return pd.DataFrame(rows, columns=list(_PAIR_COLUMNS))


def _rank_text(layer: MatchedLayer, index: int, count: int) -> str:
    """Return a rank with the ranks that the noise leaves possible, if any are ruled out: ``3 (2 to 5)``."""
    first, last = layer.rank_ranges[index]
    possible = f" ({first} to {last})" if first < last and (first, last) != (1, count) else ""
    return f"{layer.ranks[index]:g}{possible}"


def moves_frame(comparison: Comparison) -> pd.DataFrame:
    """Return the layers whose rank moved, the furthest first: their rank on each side, and whether chance explains it.

    Columns are ``layer``, ``row``, ``shift``, ``fragile_in`` (the side that ranks the layer as more fragile than any
    other does), ``sure`` and, for each side, ``rank_`` and ``change_`` with its letter.
    """
    metric, count = METRICS[comparison.metric], len(comparison.layers)
    sides = range(len(comparison.sides))
    rows = [
        {"layer": layer.layer, "row": row_name(layer), "shift": layer.rank_change}
        | {"fragile_in": letter(min(sides, key=lambda side: layer.ranks[side])), "sure": _sure(layer)}
        | {f"rank_{letter(side)}": _rank_text(layer, side, count) for side in sides}
        | {f"change_{letter(side)}": metric.change_text(layer.changes[side].delta) for side in sides}
        for layer in sorted(comparison.layers, key=lambda layer: -layer.rank_change)
        if layer.rank_change
    ]
    per_side = [f"{what}_{letter(side)}" for side in sides for what in ("rank", "change")]
    return pd.DataFrame(rows, columns=["layer", "row", "shift", "fragile_in", "sure", *per_side])


def _sure(layer: MatchedLayer) -> str:
    if layer.surely_moved:
        return "yes"
    known = all(change.has_interval for change in layer.changes) and not any(layer.estimated)
    return "no" if known else "unknown"


def unmatched_frame(comparison: Comparison) -> pd.DataFrame:
    """Return the layers that lack a value on a side: column ``layer``, and for each side its letter with the reason."""
    rows = [
        {"layer": layer} | {letter(side): reason or "has a value" for side, reason in enumerate(missing)}
        for layer, missing in comparison.unmatched.items()
    ]
    return pd.DataFrame(rows, columns=["layer", *(letter(side) for side in range(len(comparison.sides)))])


# Spearman's correlation from which each is said; below the last, the order is opposite
_WORDS = ((0.9, "almost alike"), (0.7, "much alike"), (0.4, "only partly alike"), (-0.4, "differently"))


def finding(comparison: Comparison) -> str:
    """Return the agreement of the sides' ranks: Spearman, number of layers, and moves beyond chance."""
    count = len(comparison.layers)
    if count < 2:
        return f"{'Only one' if count else 'No'} layer has a value in every run, so there are no ranks to compare."
    values = [comparison.agreement(0, other) for other in range(1, len(comparison.sides))]
    if any(math.isnan(value) for value in values):
        return "In one of the runs every layer loses the same, so there is no order to compare."
    numbers = [number_text(value, digits=2) for value in values]
    if len(values) > 1:
        found = ", ".join(f"{number} for {letter(side)}" for side, number in enumerate(numbers, start=1))
        return f"How far others rank {count} layers as A does (1 is the same order): {found}.{_sure_moves(comparison)}"
    parts = {side.part for side in comparison.sides}
    subject = "Estimate and measurement" if parts == set(BOTH_PARTS) else "A and B"
    alike = next((words for least, words in _WORDS if values[0] >= least), "in the opposite order")
    return f"{subject} rank {count} layers {alike}: {numbers[0]}, where 1 is the same order.{_sure_moves(comparison)}"


def _sure_moves(comparison: Comparison) -> str:
    """Count the moves that are no chance; say nothing where some figures have no interval."""
    found = [_sure(layer) for layer in comparison.layers]
    if "unknown" in found:
        return ""
    sure = found.count("yes")
    if not sure:
        return " No layer surely changed place: what differs may be chance."
    return f" {fmt.plural(sure, 'layer')} changed place in this order by more than chance."


def matching_text(comparison: Comparison, metric: Metric) -> str:
    """Return the ``metric`` as shown, the number of matched layers, and the number without a value in each run."""
    parts = [metric.label, f"{fmt.plural(len(comparison.layers), 'layer')} matched by name"]
    lacking = [sum(map(bool, side)) for side in zip(*comparison.unmatched.values(), strict=True)]
    missing = [f"{count} without a value in {letter(side)}" for side, count in enumerate(lacking) if count]
    return " · ".join(parts + missing)


def caveat_of_sides(sides: Sequence[Side]) -> str:
    """Return which sides are indicative only, and why; empty where none is."""
    found = [(letter(index), caveat_of(side.result)) for index, side in enumerate(sides)]
    return "; ".join(f"{name}: {caveat}" for name, caveat in found if caveat)


def runs_frame(
    records: Sequence[RunRecord], bars: Mapping[str, list[float]], files: Mapping[str, Decision], *, terms: bool
) -> pd.DataFrame:
    """Return a row for each run; ``bars`` and ``files``, by id, of runs where they are known.

    ``bars`` are what layers lose alone, ``files`` the decisions on their files: ``saved`` is the share of the original
    file's bytes that such a file saves, in percent, ``time`` its time with the interval, ``answers`` what it still
    answers; ``run`` is title, answers and age in one cell. Compressions are named in ``terms`` or in everyday words.
    """
    return pd.DataFrame(
        [_run_row(each, files.get(each.run_id), bars.get(each.run_id), terms=terms) for each in records]
    )


def _run_row(record: RunRecord, decided: Decision | None, bars: list[float] | None, *, terms: bool) -> dict[str, Any]:
    file = decided.choice if decided is not None and decided.goal != "targets" else None  # which is no file
    saved = decided.saved if decided is not None else None
    found = _answers(decided) or (record.headline or record.error or record.origin).split(". ")[0]
    return {
        "open": "Open",
        "run": f"{': '.join(filter(None, [record.title, found]))}, {fmt.age(record.created_seconds, time.time())}",
        "title": record.title,
        "state": STATES[record.state].label,
        "saved": None if saved is None else 100 * saved,
        "time": "" if file is None else file.time_text.replace(" the time", "").replace("while the computer was ", ""),
        "answers": found,
        "age": pd.Timestamp(record.created_seconds, unit="s", tz="UTC"),
        "bars": bars,
        "size": record.num_bytes,
        "tags": [*record.tags, *(["shared"] if record.shared else [])],
        "compression": compression_text(record.spec.sensitivity, terms=terms),
    }


def _answers(decided: Decision | None) -> str:
    """Return what the best file or schedule still answers, on how many images; that there is none; else nothing."""
    if decided is None or decided.choice is None:
        return decided.headline if decided is not None else ""
    found = decided.choice
    saved = found.schedule.achieved.get("bytes") if found.schedule is not None and decided.goal == "targets" else None
    targets = "" if saved is None else f"Targets save {fmt.percent(saved)}: "
    return f"{targets}{found.answers_text} ({fmt.plural(found.images, 'image')})"


def small_bars(result: RunResult) -> list[float]:
    """Return what layers lose alone at the first level, at least 0, in network order; the worst of a shared bar."""
    metric = shown_metric(result)
    level = opening_level(result, metric)
    losses = [max(0.0, change.delta) for item in result.at(level) if (change := item.change(metric)) is not None]
    step = -(-len(losses) // 12) or 1  # the grid leaves 2 pixels between bars: of 24 in 64 pixels it draws none
    return [max(losses[start : start + step]) for start in range(0, len(losses), step)]
