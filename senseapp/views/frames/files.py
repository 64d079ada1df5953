"""Rows about files that can be delivered: their figures, what runs beside them, whole schedules, changed answers."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from senseapp.core.texts import distinct
from senseapp.metrics import METRICS, Metric, MetricChange
from senseapp.prove.decision import Decision, Standing
from senseapp.records.answers import AnswerDifferences, ChangedAnswers, ClassDrop, LabelledAnswer
from senseapp.records.candidate import Candidate, judged_by, value_interval, with_one_original
from senseapp.records.deployment import MILLISECONDS, Deployment
from senseapp.records.executed import IntegerShare
from senseapp.records.measurement import change_in
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import StrongestFound, ValidationResult
from senseapp.records.spec import Goal
from senseapp.solve.trade_off import TradeOffPoint
from senseapp.views.words import format as fmt
from senseapp.views.words.check import milliseconds

STANDINGS: dict[Standing, str] = {
    "chosen": "recommended",
    "alternative": "yes",
    "dominated": "another is clearly better in one way, and as good in the others",
    "no gain": "not clearly smaller or faster",
    "not faster": "slower, or not clearly faster",
    "loses too much": "loses more than is tolerated",
    "not shown": "no: not shown to keep what is promised",
    "other images": "not compared: measured on other images",
    "other target": "not compared: for another target",
}
"""What a decision says of a file."""
JUDGED_FOR: dict[Goal, str] = {
    "smaller": "Files are judged by size.",
    "faster": "Files are judged by time; where none is clearly faster, by size, if they take about as long.",
    "targets": "A schedule is recommended, not a file: the file marked is the one that the schedule was tested in.",
    "look": "Files are judged by size, as only the layers were asked for.",
}
"""What the files of a run are judged for, by its goal."""
JUDGED_BY: dict[Goal, str] = {"smaller": "size", "faster": "time", "targets": "schedule", "look": "size"}
"""The same in one word."""
RUNS = ("weights only, for PyTorch", "runs as it is")
"""What a file is, by whether a runtime runs it."""


def candidates_frame(candidates: Iterable[Candidate], decided: Decision, *, run: str = "") -> pd.DataFrame:
    """Return a row per candidate of a run with its decision, the smallest first.

    ``megabytes`` and ``milliseconds`` are those of the file, ``times`` is its time as a multiple of the original's,
    with the interval ``times_low`` to ``times_high``; ``value``, ``low`` and ``high`` (:meth:`Decision.loss`) are in
    the unit of the metric that people judge it by, ``beaten`` marks what is neither recommended nor an alternative,
    ``runs`` is one of :data:`RUNS`; the other columns are texts.
    """
    rows = []
    for each in with_one_original(candidates):
        factor, (low, high) = METRICS[each.metric].factor, value_interval(decided.loss(each))
        standing = decided.standings[each.file]
        rows.append(
            {
                "file": each.file,
                "name": each.made_of,
                "run": run,
                "megabytes": each.figures.file_bytes / 1e6,
                "milliseconds": 1000 * each.figures.seconds.value,
                "times": each.figures.time_ratio.value,
                "times_low": each.figures.time_ratio.low,
                "times_high": each.figures.time_ratio.high,
                "value": factor * each.loss.value,
                "low": factor * low,
                "high": factor * high,
                "beaten": standing not in ("chosen", "alternative"),
                "runs": RUNS[each.runs],
                "size": fmt.bytes_size(each.figures.file_bytes),
                "time": each.time_text,
                "answers": each.answers_text,
                "loss": "" if each.is_original else decided.loss_text(each),
                "standing": "the original" if each.is_original else STANDINGS[standing],
                "opened_by": each.opened_by,
                "integers": each.integers_text,
                "description": f"{each.made_of}{', weights only' * (not each.runs)}: {decided.line(each)}",
            }
        )
    frame = pd.DataFrame(rows).sort_values(["megabytes", "value"], ignore_index=True)
    return frame.assign(name=[*distinct(dict(enumerate(frame["name"]))).values()])


def loss_head(decided: Decision) -> str:
    """Return the head of the column ``loss``."""
    return "95 % interval" if decided.promise is None else f"Loss, {decided.promise.certainty}"


def answers_axis(candidates: Sequence[Candidate]) -> str:
    """Return the title of the axis of ``value``."""
    view = METRICS[candidates[0].metric]
    return view.value_axis if view.additive else view.axis


def original_row(candidates: Sequence[Candidate], *, run: str = "") -> dict[str, object]:
    """Return the row of the uncompressed network: its size, its time, and what it does in the unit of ``value``."""
    first = next((each for each in candidates if each.runs), candidates[0])
    view = METRICS[first.metric]
    value = view.factor * first.loss.baseline if view.additive else 0.0
    return {
        "run": run,
        "megabytes": first.original.file_bytes / 1e6,
        "milliseconds": 1000 * first.original.seconds.value,
        "times": 1.0,
        "value": value,
        "description": f"The original: {fmt.bytes_size(first.original.file_bytes)}, "
        f"{1000 * first.original.seconds.value:.3g} ms a call",
    }


_FILES = {"file": "This file", "original": "The original", "int8": "All of it in 8-bit numbers", "default": ""}
"""Titles of files; that of the runtime's own quantizer says in which setting."""
DEPLOYED_COLUMNS = ("File", "Answers", "A call", "% of the original's time", "Size")


def deployed_rows(record: Deployment) -> list[tuple[str, ...]]:
    """Return a row of texts per file, the file itself first, with the 95 % intervals of answers and times."""
    rows: list[tuple[str, ...]] = []
    for name, title in _FILES.items():
        if name in record.figures and (name, record.settings.kind) != ("int8", "int8"):
            each = record.figures[name]
            share = " to ".join(f"{100 * end:.0f}" for end in (each.time_ratio.low, each.time_ratio.high))
            times = milliseconds(each.seconds), f"{100 * each.time_ratio.value:.0f} ({share})"
            rows.append((title or record.own_title, _answers(each.changes), *times, fmt.bytes_size(each.file_bytes)))
    if record.simulated:
        rows.insert(1, ("Predicted by simulation", _answers(record.simulated), *3 * ("–",)))
    return rows


INTEGER_COLUMNS = ("In float", "Operator", "% of the multiplications", "Why")


def integer_rows(found: IntegerShare) -> list[tuple[str, ...]]:
    """Return a row of texts per product that a file computes in float, the largest first."""
    return [(each.name, each.kind, f"{100 * each.macs / found.macs:.2g}", each.reason) for each in found.in_float]


def _answers(changes: Sequence[MetricChange]) -> str:
    """Return the metric that people judge a file by, with the interval that belongs to its drop."""
    change = change_in(changes, judged_by(changes))
    assert change is not None
    view, (value, low, high) = METRICS[change.metric], _ends(change)
    return f"{view.label} {view.value_text(value)} ({view.interval_text(low, high)})"


OURS, UNIFORM, PROPORTIONAL = "A level for each layer", "The same level for all", "Proportional rule"
SHARES = {"params": "Weights removed", "bytes": "Size of the weights saved", "macs": "Multiplications saved"}
AXES = {kind: f"{title} (%)" for kind, title in SHARES.items()}
AXES |= {"bits": "Average bits of a weight", MILLISECONDS: "Predicted milliseconds of a call"}


def range_question(kind: str) -> str:
    """Return the question that whole schedules over the range of a budget answer."""
    return "How few bits are enough?" if kind == "bits" else "How much can be removed?"


AS_THEY_ARE = ("bits", MILLISECONDS)
"""Kinds whose figures are no shares."""


def shown_figure(kind: str, figure: float) -> float:
    """Return a figure in the unit of its axis: percent removed, average bits or milliseconds."""
    return figure if kind in AS_THEY_ARE else 100 * figure


def figure_text(kind: str, figure: float) -> str:
    """Return a figure in words: ``62.5 % of the MACs saved``, ``4.2 bits on average``."""
    if kind == MILLISECONDS:
        return f"{figure:.3g} ms a call"
    return f"{figure:.2f} bits on average" if kind == "bits" else f"{100 * figure:.1f} % of the {SHARES[kind].lower()}"


def predicted_frame(curves: Mapping[str, Sequence[TradeOffPoint]], view: Metric) -> pd.DataFrame:
    """Return a row per point of each named curve; columns as in :func:`recommended_frame`."""
    return _models(
        _model_row(name, point.kind, point.figure, (max(0.0, point.damage),) * 3, view, _lost(view, point.damage))
        for name, points in curves.items()
        for point in points
    )


def measured_frame(
    validations: Iterable[ValidationResult], found: StrongestFound | None, *, kind: str, view: Metric
) -> pd.DataFrame:
    """Return a row per measurement, in the words of ``view``, of a schedule whose savings of ``kind`` are known.

    Columns as in :func:`recommended_frame`.
    """
    measured: list[tuple[str, float | None, MetricChange | None]] = []
    for each in validations:
        figure = each.schedule.achieved.get(kind)
        measured.append(("Measured", figure, change_in(each.kept_changes, view.name)))
    if found is not None and found.schedule.budget is not None and found.schedule.budget.kind == kind:
        measured += [("Tried in a search", tried.figure, tried.change(view.name)) for tried in found.tried]
    rows = []
    for name, figure, change in measured:
        if figure is not None and change is not None:
            ends = tuple(max(0.0, end) for end in (change.delta, change.ci_low, change.ci_high))
            text = f"{_lost(view, change.delta)} ({view.interval_text(change.ci_low, change.ci_high)})"
            rows.append(_model_row(name, kind, figure, ends, view, text, whole=True))
    return _models(rows)


def _lost(view: Metric, damage: float) -> str:
    return view.change_text(damage) if view.as_answers else f"{view.change_inside} {view.change_text(damage)}"


def recommended_frame(found: Recommendation) -> pd.DataFrame:
    """Return a row per measured schedule, in the order of their savings; ``whole`` ones are those of the proof.

    ``value``, ``low`` and ``high`` are what the metric itself shows, or the loss where value and loss do not differ by
    the baseline. Other columns are ``source``, ``figure`` and ``description``.
    """
    view = METRICS[found.metric]
    known = [
        (source, each.figure, each.change(found.metric), False)
        for source, tried in ((OURS, found.tried), (UNIFORM, found.uniform))
        for each in tried
    ]
    if (proof := found.validation) is not None:
        proven = ((OURS, found.loss, proof.schedule.achieved), (UNIFORM, found.uniform_loss, proof.uniform_achieved))
        known += [(source, made[found.kind], loss, True) for source, loss, made in proven if found.kind in made]
    rows = []
    for source, figure, change, whole in known:
        if change is not None:
            images = fmt.plural(change.num_samples, "unseen image" if whole and found.held_out else "image")
            text = f"{view.value_text(change.value)} ({images})"
            rows.append(_model_row(source, found.kind, figure, _ends(change), view, text, whole=whole))
    return _models(rows)


_MODELS = ["source", "figure", "value", "low", "high", "whole", "description"]


def _models(rows: Iterable[tuple[object, ...]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=_MODELS).astype({"whole": bool})


def _model_row(
    source: str, kind: str, figure: float, ends: tuple[float, ...], view: Metric, text: str, *, whole: bool = False
) -> tuple[object, ...]:
    """Return the values of :data:`_MODELS`."""
    shown, said = round(shown_figure(kind, figure), 4), f"{source}, {figure_text(kind, figure)}: {text}"
    return source, shown, *(float(view.shown(end)) for end in ends), whole, said


def _ends(change: MetricChange) -> tuple[float, float, float]:
    """Return the value and the interval that the loss gives it, or the loss itself."""
    return change.value if METRICS[change.metric].additive else change.delta, *value_interval(change)


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


_CLASS_COLUMNS = ("Class", "Images", "Drop", "Interval", "Mark")


def class_note(found: ChangedAnswers) -> str:
    """Return the meaning of the drops of classes, or that each class has too few images to say anything of it."""
    if not any(map(_tells, found.classes)):
        return "Each class has too few images to say what it loses."
    what = "of right answers" if found.by_labels else "of answers that stay the same, by the original's answer"
    what = f"of {found.measure}" if found.measure else what
    listed = f", the {len(found.classes)} that lose most" if len(found.classes) < found.num_classes else ""
    return (
        f"Drop {what} in {fmt.plural(found.num_classes, 'class', 'classes')}{listed}; {fmt.points(found.drop)} points "
        f"on average. Intervals hold for all classes together with 95 %."
    )


def class_table(found: ChangedAnswers) -> tuple[tuple[str, ...], list[tuple[str | int, ...]]]:
    """Return columns and rows: class, images, drop, interval, and the mark of those whose interval excludes the mean.

    Where no class has images enough to tell its drop, there are no rows; where none is marked, no marks.
    """
    marks, few = {True: "loses more", False: "loses less"}, ("too few images", "")
    if not any(map(_tells, found.classes)):
        return _CLASS_COLUMNS, []
    width = len(_CLASS_COLUMNS) - (not any(each.stands_out for each in found.classes))
    rows: list[tuple[str | int, ...]] = [
        (
            *(each.name, each.num_images),
            *((f"{fmt.points(each.drop)} points", fmt.points(each.low, each.high)) if _tells(each) else few),
            marks[each.drop > found.drop] if each.stands_out else "",
        )[:width]
        for each in found.classes
    ]
    return _CLASS_COLUMNS[:width], rows


def _tells(each: ClassDrop) -> bool:
    return each.low > 0 or each.high <= 0.1  # of a class: an interval from no loss to a larger one tells nothing


def difference_sentence(found: AnswerDifferences, names: Sequence[str]) -> str:
    """Return the number of pictures on which two files of these names differ, and which has more of these right."""
    if not found.num_images:
        return "They were measured on different images, so there is nothing to compare."
    total = fmt.plural(found.num_images, "picture")
    if not found.different:
        return f"Both give the same answers to {total}."
    some = f"{len(found.different)} of {total} {'is' if len(found.different) == 1 else 'are'} answered differently"
    if found.only_first is None or found.only_second is None:
        return f"{some}."
    neither = len(found.different) - found.only_first - found.only_second
    right = f"{names[0]} alone is right on {found.only_first}, {names[1]} alone on {found.only_second}"
    return f"{some}: {right}, neither on {neither}."


def difference_line(side: str, answer: LabelledAnswer) -> str:
    """Return the prediction of one side for a picture: ``A: crow (61 %), right``."""
    right = ", right" if answer.text == answer.label else ""
    return f"{side}: {answer.text} ({fmt.percent(answer.sure)}){right}"
