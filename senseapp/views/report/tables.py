"""The tables of a report: layers at every level, files, classes, and schedules with their proofs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from senseapp.metrics import METRICS, Metric
from senseapp.prove.decision import Decision
from senseapp.records.answers import ChangedAnswers
from senseapp.records.candidate import Candidate
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.promise import images_text
from senseapp.records.resolution import everyday
from senseapp.records.schedule import Schedule, ValidationResult
from senseapp.views.frames import files, results
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import STEPS, loss_figures, size_changes, step_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table of texts whose first column names the row; cells that are ``figures``, not words, stand to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    figures: bool = True


def files_table(candidates: Sequence[Candidate], decided: Decision) -> ReportTable | None:
    """Return every file that was made, with its own figures; None where none was."""
    if not candidates:
        return None
    rows = files.candidates_frame(candidates, decided)
    cells = rows[["name", "size", "time", "answers", "loss", "standing", "integers"]]
    return ReportTable(
        title="Files that were made and measured",
        columns=("File", "Size", "Time", "Answers", files.loss_head(decided), "Worth taking", "In integers"),
        rows=tuple(tuple(map(str, row)) for row in cells.to_numpy()),
        note=f"{files.original_row(candidates)['description']}. {files.JUDGED_FOR[decided.goal]} Each row was measured "
        "on the file itself, in turns with the original; weights and compact weights open to one network, and were "
        "measured once.",
        figures=False,
    )


def class_tables(changed: Sequence[ChangedAnswers]) -> tuple[ReportTable, ...]:
    """Return what each class loses, for each model whose answers were compared by class."""
    return tuple(
        ReportTable(
            title=f"What each class loses with {found.subject}: {found.sentence}",
            columns=columns,
            rows=tuple(tuple(map(str, row)) for row in rows),
            note=files.class_note(found),
        )
        for found in changed
        if found.classes
        for columns, rows in [files.class_table(found)]
    )


def layer_table(result: RunResult, name: str) -> ReportTable:
    """Return one row per layer or group, and one column per level: the change, and its 95 % interval in brackets."""
    metric, scale, frame = everyday(result, name), result.compression.scale, results.measurement_frame(result, name)
    levels = [scale.text(level) for level in results.ordered_levels(result)]
    cells = dict(zip(zip(frame["row"], frame["level_text"], strict=True), _cells(frame, metric), strict=True))
    return ReportTable(
        title=f"{metric.axis_title if metric.as_answers else metric.change_title} when one layer is compressed",
        columns=("Layer", *levels),
        rows=tuple((row, *(cells.get((row, level), "–") for level in levels)) for row in frame["row"].unique()),
        note="In brackets: the 95 % interval; ≈ marks estimates, which have none. The run's CSV has all metrics.",
    )


def _cells(frame: pd.DataFrame, metric: Metric) -> Iterator[str]:
    texts = frame["change_text"]
    if metric.as_answers:  # of what they are stands in the title
        texts = texts.str.removesuffix(f" {metric.change_unit}").str.removeprefix("about ")
    for change, interval, source in zip(texts, frame["interval_text"], frame["source"], strict=True):
        says_more = set(interval.split(" to ")) != {change}
        yield f"≈ {change}" if source == "estimated" else f"{change} ({interval})" if says_more else change


def apart_table(result: RunResult) -> ReportTable | None:
    """Return the layers without a value, with the reason; None if every layer has one."""
    frame = results.apart_frame(result)
    if frame.empty:
        return None
    return ReportTable(
        title=f"{fmt.plural(frame['layer'].nunique(), 'layer')} without a value, or without one at some levels",
        columns=("Layer", "Status", "Levels", "Reason"),
        rows=tuple(tuple(map(str, row)) for row in frame[["row", "status", "levels", "reason"]].to_numpy()),
        note="Where nothing could be measured a layer is not robust and not fragile, for the reason given.",
        figures=False,
    )


def unlisted_table(profile: ModelProfile) -> ReportTable | None:
    """Return the weights that belong to no layer, by module; None if there are none."""
    if not profile.unlisted:
        return None
    rows = []
    for item in profile.unlisted:
        share = fmt.percent(item.num_params / max(1, profile.num_params), digits=2)
        rows.append((item.module or "(the network itself)", item.module_type, ", ".join(item.parameters), share))
    return ReportTable(
        title=f"{fmt.plural(len(rows), 'module')} with weights that are not analysed",
        columns=("Module", "Type", "Weights", "Share of the parameters"),
        rows=tuple(rows),
        note="These weights are used without a convolution or linear layer, so no compression here touches them. "
        "Position embeddings, attention with inputs of several widths and recurrent layers have such weights.",
        figures=False,
    )


_METHODS = {
    "optimal": "Least damage for the budget",
    "gamma": "Proportional rule",
    "uniform": "The same level everywhere",
    "manual": "Chosen by hand",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSection:
    """One schedule, with what was measured of it; its ``facts`` each say predicted or measured."""

    title: str
    facts: dict[str, str]
    proof: ReportTable | None
    amounts: ReportTable
    notes: tuple[str, ...]


def schedule_sections(
    schedules: Sequence[Schedule], validations: Sequence[ValidationResult], result: RunResult
) -> tuple[ScheduleSection, ...]:
    """Return the schedules with a proof, and those without."""
    proven = [validation.schedule for validation in validations]
    sections = [_section(each.schedule, each, result) for each in validations]
    return (*sections, *(_section(each, None, result) for each in schedules if each not in proven))


def _section(schedule: Schedule, validation: ValidationResult | None, result: RunResult) -> ScheduleSection:
    budget = schedule.budget
    method = _METHODS.get(schedule.method, schedule.method)
    notes, proof = schedule.notes, None
    if validation is not None:
        images = max((change.num_samples for change in validation.changes), default=0)
        judging = (name for name, view in METRICS.items() if view.is_everyday)
        proof = ReportTable(
            title="Proof: the compressed model, measured",
            columns=files.PROOF_COLUMNS,
            rows=tuple(files.proof_rows(validation, judging)),
            note=f"Measured on {images_text(images, held_out=validation.held_out)}{validation.also_rounded}. "
            "Above zero is worse; intervals are paired by image.",
        )
        steps = "; ".join(step_lines(validation))
        notes += (validation.delivered_reason, steps and f"{STEPS} {steps}.", *validation.notes)
    losses = loss_figures(schedule, validation, everyday(result, schedule.metric))
    amounts = results.schedule_frame(schedule, result)
    columns = {"members": "Layer", "amount_text": "Amount"} | ({"reason": "Why"} if any(amounts["reason"]) else {})
    return ScheduleSection(
        title=f"{method}, {files.figure_text(budget.kind, budget.target) if budget is not None else 'no budget'}",
        facts={
            **dict([*losses.items()][-1:]),  # the prediction only until the loss is measured
            **({"Measured": "Not yet"} if validation is None else size_changes(validation)),
        },
        proof=proof,
        amounts=ReportTable(
            title="Amount of each layer",
            columns=tuple(columns.values()),
            rows=tuple(tuple(map(str, row)) for row in amounts[[*columns]].to_numpy()),
            figures=False,
        ),
        notes=tuple(filter(None, notes)),
    )
