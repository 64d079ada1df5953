"""The schedules of a report: their amounts, what they were predicted to lose, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from senseapp.metrics import METRICS, MetricChange
from senseapp.records.measurement import RunResult, change_in
from senseapp.records.resolution import opening_level
from senseapp.records.schedule import Schedule, ValidationResult
from senseapp.views.charts.layers import schedule_bars
from senseapp.views.frames.results import amount_bars
from senseapp.views.palette import fragility_legend
from senseapp.views.report.figures import ChartData, Figure, drawn
from senseapp.views.report.tables import ReportTable, is_mixed, schedule_table
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import STEPS, delivery, size_changes, step_lines

_METHODS = {
    "optimal": "Least damage for the budget",
    "gamma": "Proportional rule",
    "uniform": "The same level everywhere",
    "manual": "Chosen by hand",
}
_NAMED = 5
_BUDGETS = {"params": "weights", "macs": "MACs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSection:
    """One schedule, with what was measured of it; its ``facts`` each say predicted or measured."""

    title: str
    facts: dict[str, str]
    figure: Figure
    proof: ReportTable | None
    amounts: ReportTable
    notes: tuple[str, ...]


def schedule_sections(
    schedules: Sequence[Schedule],
    validations: Sequence[ValidationResult],
    result: RunResult,
    data: ChartData,
) -> tuple[ScheduleSection, ...]:
    """Return the schedules with a proof, and those without."""
    proven = [_section(validation.schedule, validation, result, data) for validation in validations]
    shown = [validation.schedule for validation in validations]
    return (*proven, *(_section(schedule, None, result, data) for schedule in schedules if schedule not in shown))


def _section(
    schedule: Schedule, validation: ValidationResult | None, result: RunResult, data: ChartData
) -> ScheduleSection:
    metric = METRICS[schedule.metric]
    predicted = validation.predicted if validation else schedule.predicted_damage
    facts = {
        "Method": _METHODS.get(schedule.method, schedule.method),
        "Goal": _budget(schedule),
        f"Predicted {metric.change_inside}": metric.change_text(predicted),
    }
    if validation is None:
        facts["Measured"] = "Not yet"
    else:
        facts |= size_changes(validation)
    return ScheduleSection(
        title=f"{facts['Method']}, {facts['Goal']}",
        facts=facts,
        figure=_figure(schedule, result, data),
        proof=_proof(validation) if validation else None,
        amounts=schedule_table(schedule, result),
        notes=(*schedule.notes, *(_notes(validation) if validation else ())),
    )


def _budget(schedule: Schedule) -> str:
    budget = schedule.budget
    if budget is None:
        return "no budget"
    if budget.kind == "bits":
        return f"{budget.target:g} bits on average"
    removed = fmt.percent(budget.target)
    if budget.kind == "bytes":
        return f"{removed} of the bytes removed if stored compactly"
    return f"{removed} of the {_BUDGETS[budget.kind]} removed"


def _figure(schedule: Schedule, result: RunResult, data: ChartData) -> Figure:
    rows, title, largest = amount_bars(schedule, result, mixed=is_mixed(schedule))
    chart = schedule_bars(rows, title=title, largest=largest)
    most = rows[rows["amount_text"] != "left alone"].nlargest(_NAMED, "drop")["description"].astype(str)
    spared = int((rows["amount_text"] == "left alone").sum())
    level = result.compression.scale.text(opening_level(result, schedule.metric))
    words = f"Of the most sensitive layers: {', '.join(most)}. {fmt.plural(spared, 'layer')} left alone."
    return Figure(
        question="How much is each layer compressed?",
        reading=f"Colour says what the layer loses alone ({METRICS[schedule.metric].label}) at {level}.",
        drawings=(drawn(chart, data, label="Amounts", words=words),),
        legend=fragility_legend(METRICS[schedule.metric], no_value=True),
    )


def _notes(validation: ValidationResult) -> tuple[str, ...]:
    steps = "; ".join(step_lines(validation))
    return tuple(note for note in (delivery(validation), steps and f"{STEPS} {steps}.", *validation.notes) if note)


def _proof(validation: ValidationResult) -> ReportTable:
    """Return what was measured, metric by metric: value, change and its interval."""
    measured = {
        "Measured": validation.changes,
        f"After {validation.repair_words[0]}": validation.repaired,
        "Uniform schedule of equal cost": validation.uniform,
        "Uniform, after repair": validation.uniform_repaired,
    }
    shown = {label: changes for label, changes in measured.items() if changes}
    images = {change.num_samples for changes in shown.values() for change in changes}
    metrics = [name for name in METRICS if change_in(validation.changes, name)]
    return ReportTable(
        title="Proof: the compressed model, measured",
        columns=("Metric", "Before", *shown),
        rows=tuple(tuple(_proof_row(name, list(shown.values()))) for name in metrics),
        note=f"Measured on {', '.join(str(count) for count in sorted(images))} images that the run has not measured on "
        "where there are enough; below each value what is lost, above zero for the worse, and in brackets its 95 % "
        "interval, paired by image.",
    )


def _proof_row(name: str, columns: Sequence[Sequence[MetricChange]]) -> Iterator[str]:
    view = METRICS[name]
    found = [change_in(changes, name) for changes in columns]
    yield view.label
    yield next((view.value_text(change.baseline) for change in found if change is not None), "–")
    for change in found:
        if change is None:
            yield "–"
        else:
            interval = view.interval_text(change.ci_low, change.ci_high) if change.has_interval else "interval unknown"
            yield f"{view.value_text(change.value)}\n{view.change_text(change.delta)}\n({interval})"
