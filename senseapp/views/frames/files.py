"""Rows about files that can be delivered: their figures, what runs beside them, whole schedules, changed answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from senseapp.metrics import METRICS, Metric, MetricChange, divergence_among, primary_among
from senseapp.prove.decision import Decision, Standing
from senseapp.records.answers import AnswerDifferences, ChangedAnswers, LabelledAnswer
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import MILLISECONDS, Deployment, Median
from senseapp.records.measurement import change_in
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import ValidationResult
from senseapp.views.words import format as fmt
from senseapp.views.words.check import milliseconds

STANDINGS: dict[Standing, str] = {
    "chosen": "recommended",
    "alternative": "yes",
    "dominated": "another file is clearly better",
    "no gain": "not clearly smaller or faster",
    "loses too much": "loses more than is tolerated",
}
"""What a decision says of a file."""
_CANDIDATE_COLUMNS = (
    *("file", "name", "run", "megabytes", "milliseconds", "time_share", "value", "low", "high", "beaten", "size"),
    *("time", "answers", "standing", "opened_by", "description"),
)


def candidates_frame(candidates: Iterable[Candidate], decided: Decision, *, run: str = "") -> pd.DataFrame:
    """Return a row per candidate of a run with its decision, the smallest first.

    ``megabytes`` and ``milliseconds`` are those of the file, ``time_share`` is in percent of the original's time;
    ``value``, ``low`` and ``high`` are in the unit of the metric that people judge it by, ``beaten`` marks what is
    neither recommended nor an alternative; the other columns are texts.
    """
    rows = [_candidate_row(each, run=run, standing=decided.standings[each.file]) for each in candidates]
    return pd.DataFrame(rows, columns=list(_CANDIDATE_COLUMNS)).sort_values(["megabytes", "value"], ignore_index=True)


def _candidate_row(candidate: Candidate, *, run: str, standing: Standing) -> dict[str, object]:
    figures, view = candidate.figures, METRICS[candidate.metric]
    low, high = candidate.interval
    return {
        "file": candidate.file,
        "name": candidate.made_of,
        "run": run,
        "megabytes": figures.file_bytes / 1e6,
        "milliseconds": 1000 * figures.seconds.value,
        "time_share": 100 * figures.time_ratio.value,
        "value": view.factor * candidate.loss.value,
        "low": view.factor * low,
        "high": view.factor * high,
        "beaten": standing not in ("chosen", "alternative"),
        "size": fmt.bytes_size(figures.file_bytes),
        "time": candidate.time_text,
        "answers": candidate.answers_text,
        "standing": STANDINGS[standing],
        "opened_by": candidate.opened_by,
        "description": f"{candidate.made_of}: {candidate.headline}",
    }


def answers_axis(candidates: Sequence[Candidate]) -> str:
    """Return the title of the axis of ``value``."""
    view = METRICS[candidates[0].metric]
    return view.value_axis if view.additive else view.axis


def original_row(candidates: Sequence[Candidate], *, run: str = "") -> dict[str, object]:
    """Return the row of the uncompressed network: its size, its time, and what it does in the unit of ``value``."""
    first = next((each for each in candidates if each.runs), candidates[0])
    view = METRICS[first.metric]
    value = view.factor * first.loss.baseline if view.additive else 0.0
    size = fmt.bytes_size(first.original.file_bytes)
    return {
        "run": run,
        "megabytes": first.original.file_bytes / 1e6,
        "milliseconds": 1000 * first.original.seconds.value,
        "value": value,
        "description": f"The original: {size}, {1000 * first.original.seconds.value:.3g} ms a call",
    }


_FILES = {
    "file": "This file",
    "original": "The original, in float",
    "int8": "All of it in int8",
    "default": "",
}
"""Titles of files; that of the runtime's own quantizer says in which setting."""
_UNKNOWN = "–"


def shown_metrics(record: Deployment) -> list[str]:
    """Return the metrics of the table: the one that people judge a model by, and the finest."""
    names = [change.metric for change in record.figures["file"].changes]
    return [name for name in (primary_among(names), divergence_among(names)) if name] or names[:1]


def deployment_frame(record: Deployment) -> pd.DataFrame:
    """Return a row of texts per file, the file itself first, with the 95 % interval of what was measured."""
    names = shown_metrics(record)
    shown = [name for name in _FILES if name in record.figures and (name, record.settings.kind) != ("int8", "int8")]
    rows = [
        (
            _FILES[name] or record.own_title,
            *_readings(record.figures[name].changes, names),
            milliseconds(record.figures[name].seconds),
            _percent(record.figures[name].time_ratio),
            fmt.bytes_size(record.figures[name].file_bytes),
        )
        for name in shown
    ]
    if record.simulated:
        rows.insert(1, ("Predicted by simulation", *_readings(record.simulated, names), *3 * (_UNKNOWN,)))
    heads = [f"{METRICS[name].label} ({METRICS[name].value_unit})".removesuffix(" ()") for name in names]
    return pd.DataFrame(rows, columns=["File", *heads, "A call", "% of the original's time", "Size"])


def _readings(changes: Sequence[MetricChange], names: list[str]) -> list[str]:
    found = [change_in(changes, name) for name in names]
    return [_UNKNOWN if change is None else _reading(change) for change in found]


def _reading(change: MetricChange) -> str:
    """Return a metric's value with the interval that belongs to its drop; its unit is in the head of the column."""
    metric = METRICS[change.metric]
    ends = _ends_of_value(change)
    low, high = (min(1.0, max(0.0, end)) for end in ends) if metric.is_share else ends
    value = metric.value_text(change.value).removesuffix(metric.value_unit).strip()
    return f"{value} ({metric.interval_text(low, high)})"


def _percent(ratio: Median) -> str:
    value, low, high = (f"{100 * each:.0f}" for each in (ratio.value, ratio.low, ratio.high))
    return f"{value} ({low} to {high})"


OURS, UNIFORM = "A level for each layer", "The same level for all"
_SCHEDULE_COLUMNS = ("source", "figure", "value", "low", "high", "proven", "description")
AXES: dict[str, str] = {
    "params": "Weights removed (%)",
    "bytes": "Bytes saved if stored compactly (%)",
    "macs": "Multiplications saved (%)",
    "bits": "Average bits of a weight",
    MILLISECONDS: "Predicted milliseconds of a call",
}
AS_THEY_ARE = ("bits", MILLISECONDS)
"""Kinds whose figures are no shares."""


def shown_figure(kind: str, figure: float) -> float:
    """Return a figure in the unit of its axis: percent removed, average bits or milliseconds."""
    return figure if kind in AS_THEY_ARE else 100 * figure


def figure_text(kind: str, figure: float) -> str:
    """Return a figure in words: ``62.5 % of the MACs saved``, ``4.2 bits on average``."""
    words = {
        "params": "of the weights removed",
        "bytes": "of the bytes saved if stored compactly",
        "macs": "of the multiplications saved",
    }
    if kind == MILLISECONDS:
        return f"{figure:.3g} ms a call"
    return f"{figure:.2f} bits on average" if kind == "bits" else f"{100 * figure:.1f} % {words[kind]}"


def recommended_frame(found: Recommendation) -> pd.DataFrame:
    """Return one row per measured schedule, in the order of their savings; ``proven`` ones are those of the proof.

    ``value``, ``low`` and ``high`` are what the metric itself shows, or the loss where value and loss do not differ by
    the baseline.
    """
    return pd.DataFrame(list(_rows(found)), columns=list(_SCHEDULE_COLUMNS))


def _rows(found: Recommendation) -> Iterator[dict[str, Any]]:
    for source, tried in ((OURS, found.tried), (UNIFORM, found.uniform)):
        for each in tried:
            if (change := each.change(found.metric)) is not None:
                yield _schedule_row(source, found.kind, each.figure, change, proven=False)
    if found.validation is None:
        return
    for source, change, achieved in (
        (OURS, found.loss, found.validation.schedule.achieved),
        (UNIFORM, found.uniform_loss, found.validation.uniform_achieved),
    ):
        if change is not None and found.kind in achieved:
            yield _schedule_row(source, found.kind, achieved[found.kind], change, proven=True)


def _schedule_row(source: str, kind: str, figure: float, change: MetricChange, *, proven: bool) -> dict[str, Any]:
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
    low, high = _ends_of_value(change)
    return change.value, low, high


def _ends_of_value(change: MetricChange) -> list[float]:
    """Return the ends of the interval that the loss gives the value."""
    sign = -1 if METRICS[change.metric].higher_is_better else 1
    return sorted(change.value + sign * (end - change.delta) for end in (change.ci_low, change.ci_high))


def baseline_value(found: Recommendation) -> float:
    """Return the figure of the uncompressed model, in the unit of ``value``."""
    view = METRICS[found.metric]
    known = (change for each in (*found.tried, *found.uniform) if (change := change_in(each.changes, found.metric)))
    first = next(known, None)
    return view.factor * first.baseline if first is not None and view.additive else 0.0


PROOF_COLUMNS = ("Model", "Metric", "Value", "Loss", "95 % interval")


def proof_rows(validation: ValidationResult, metrics: Iterable[str]) -> list[tuple[str, ...]]:
    """Return a row for each of the ``metrics`` and each form of the model; that which the file holds is marked."""
    forms = {
        "Compressed": validation.changes,
        f"Compressed, {validation.repair_words[1]}": validation.repaired,
        "Uniform": validation.uniform,
        "Uniform, repaired": validation.uniform_repaired,
    }
    rows: list[tuple[str, ...]] = []
    for name in metrics:
        view, first = METRICS[name], change_in(validation.changes, name)
        if first is not None and not view.divergence:
            rows.append(("Before", view.label, view.value_text(first.baseline), "", ""))
        for label, changes in forms.items():
            if (change := change_in(changes, name)) is not None:
                kept = " (delivered)" if changes is validation.kept_changes else ""
                interval = view.interval_text(change.ci_low, change.ci_high) if change.has_interval else "unknown"
                loss = view.change_text(change.delta)
                rows.append((f"{label}{kept}", view.label, view.value_text(change.value), loss, interval))
    return rows


CLASS_COLUMNS = ("Class", "Images", "Drop", "Interval", "Mark")


def class_note(found: ChangedAnswers) -> str:
    """Return the meaning of the drops of classes, and the correction of their intervals."""
    what = "of right answers" if found.by_labels else "of answers that stay the same, by the original's answer"
    what = f"of {found.measure}" if found.measure else what
    listed = f", the {len(found.classes)} that lose most" if len(found.classes) < found.num_classes else ""
    return (
        f"Drop {what} in {fmt.plural(found.num_classes, 'class', 'classes')}{listed}; {fmt.points(found.drop)} points "
        f"on average. Intervals hold for all classes together with 95 %."
    )


def class_rows(found: ChangedAnswers) -> list[tuple[str, int, str, str, str]]:
    """Return class, images, drop, interval, and the mark of those whose interval excludes the mean."""
    marks = {True: "loses more", False: "loses less"}
    return [
        (
            each.name,
            each.num_images,
            f"{fmt.points(each.drop)} points",
            fmt.points(each.low, each.high),
            marks[each.drop > found.drop] if each.stands_out else "",
        )
        for each in found.classes
    ]


def difference_sentence(found: AnswerDifferences) -> str:
    """Return the number of pictures on which two files differ, and which has more of these right."""
    if not found.num_images:
        return "They were measured on different images, so there is nothing to compare."
    total = fmt.plural(found.num_images, "picture")
    if not found.different:
        return f"Both give the same answers to {total}."
    some = f"{len(found.different)} of {total} {'is' if len(found.different) == 1 else 'are'} answered differently"
    if found.only_first is None or found.only_second is None:
        return f"{some}."
    neither = len(found.different) - found.only_first - found.only_second
    right = f"the first alone is right on {found.only_first}, the second alone on {found.only_second}"
    return f"{some}: {right}, neither on {neither}."


def difference_line(side: str, answer: LabelledAnswer, label: str | None) -> str:
    """Return the prediction of one side for a picture: ``First: crow (61 %), right``."""
    right = ", right" if label is not None and answer.text == label else ""
    return f"{side}: {answer.text} ({fmt.percent(answer.sure)}){right}"
