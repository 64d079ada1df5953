"""Choice of the runs to compare, and of their levels and metric; stored in the URL."""

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import ASKED_SETTINGS, choose
from senseapp.app.common.expert import metric_help, metrics_offered, metrics_shown
from senseapp.app.common.figure import show_caveat
from senseapp.app.common.notices import complain, errors_here
from senseapp.app.common.run_guard import run_labels, run_line
from senseapp.app.common.state import RUN_PARAMETER, session
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.metrics import METRICS, Metric, divergence_among
from senseapp.records.comparison import BOTH_PARTS, Side, shared_metrics
from senseapp.records.headline import compared_levels, shown_metric
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import RunResult
from senseapp.tasks import task_named
from senseapp.views.frames.comparison import letter
from senseapp.views.frames.results import ordered_levels
from senseapp.views.words.wording import caveat_of, provenance_line

MOST_RUNS = 4  # columns beside each other that still hold a name; the letters and colours are distinct up to eight
_RUNS = "compare.runs"


def choose_runs() -> list[RunRecord]:
    """Show the picker of runs, filled in from the link (also shared runs) or with the last ones; return the chosen."""
    ids = tuple(dict.fromkeys(st.query_params.get_all(RUN_PARAMETER))) or session().compared
    linked: list[RunRecord] = []
    for run_id in ids[:MOST_RUNS]:
        with errors_here():  # one that cannot be seen is left out
            linked.append(backend.service().run(run_id))
    session().compared = tuple(record.run_id for record in linked)
    known = {record.run_id: record for record in (*backend.service().runs(), *linked)}
    labels = run_labels(known.values())
    st.session_state[_RUNS] = [record.run_id for record in linked]

    def keep_runs() -> None:
        chosen = st.session_state[_RUNS]
        session().compared = tuple(chosen)
        st.query_params[RUN_PARAMETER] = chosen
        for name in ASKED_SETTINGS:  # of the first of the runs before
            st.query_params.pop(name, None)

    st.multiselect(
        "Runs",
        list(known),
        format_func=labels.__getitem__,
        key=_RUNS,
        max_selections=MOST_RUNS,
        placeholder="Choose one run, or up to four",
        help="Two runs or more are compared with each other. One run alone: its estimate with its measurement.",
        on_change=keep_runs,
    )
    return linked


_MOST_CHIPS = 4  # levels that fit beside the name in half of the page


def choose_sides(records: Sequence[RunRecord]) -> list[Side]:
    """Show a card with the level of each run, and return the sides; empty (with a sentence) while there are none."""
    found = []
    for record in records:
        try:
            result = backend.result_of(record.run_id)
        except SenseError as error:
            complain(f"{record.title}: {error}")
            continue
        if result is None or not any(item.changes for item in result.shown):
            st.info(f"{record.title} has no values yet.", icon=":material/hourglass_bottom:")
            continue
        found.append((record, result))
    if not found:
        return []
    sides = []
    levels, columns = compared_levels([result for _, result in found]), st.columns(max(2, len(found)))
    for index, ((record, result), usual, column) in enumerate(zip(found, levels, columns, strict=False)):
        with column.container(border=True, height="stretch"):
            level = _card(record, result, index, usual, count=len(found))
        sides.append(Side(title=record.title, result=result, level=level))
    if len(sides) > 1:
        return sides
    # the estimate and the measurement of a run, if it has both at the level
    sides = [replace(sides[0], part=part) for part in BOTH_PARTS]
    if all(side.metrics for side in sides):
        return sides
    st.info(
        "Choose a second run. (Estimate and measurement can be compared in runs that have both.)", icon=":material/add:"
    )
    return []


def _card(record: RunRecord, result: RunResult, index: int, usual: float, *, count: int) -> float:
    """Show the title and the provenance of one run, and a choice of its level, which is returned."""
    name = f"{letter(index)} · {record.title}" if count > 1 else record.title
    head = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small")
    head.markdown(md("**{}**", name), width="content")
    levels = ordered_levels(result)
    is_list = count > 2 or len(levels) > _MOST_CHIPS
    level = choose(
        "Level",
        {level: result.compression.scale.text(level) for level in levels},
        usual,
        "compare",
        f"level-{record.run_id[:8]}",
        place=head,
        is_list=is_list,
        label_visibility="collapsed",
        width=110 if is_list else "content",
    )
    st.caption(md("{}  \n{}", run_line(record), provenance_line(result)))
    show_caveat(caveat_of(result))
    return level


def choose_metric(sides: Sequence[Side]) -> Metric | None:
    """Show the picker of the metrics that all sides have; None (with a sentence) if there is none."""
    shared = shared_metrics(sides)
    names = [name for name in METRICS if name in shared]
    if not names:
        tasks = [side.result.spec.model.task for side in sides]
        if len(set(tasks)) > 1:
            why, had = "The networks of these runs do different things", [task_named(each).label for each in tasks]
        else:
            measured = ([METRICS[name].label for name in METRICS if name in side.metrics] for side in sides)
            why, had = "These runs have no metric in common", [", ".join(each) for each in measured]
        facts = "; ".join(f"{side.title}: {each}" for side, each in zip(sides, had, strict=True))
        st.info(f"{why}. {facts}.", icon=":material/info:")
        return None
    preferred = (shown_metric(sides[0].result), divergence_among(names), names[0])
    usual = next(name for name in preferred if name in names)
    shown = {name: metrics_shown(name, sides)[0] for name in metrics_offered(names, usual)}
    labels = {name: each.label for name, each in shown.items()}
    about = metric_help([*shown.values()])
    return shown[choose("Metric", labels, usual, "compare", "metric", is_list=True, help=about)]
