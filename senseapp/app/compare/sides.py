"""Levels and metric of a comparison of runs, stored in the URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import choose
from senseapp.app.common.expert import metric_help, metric_shown, metrics_offered
from senseapp.app.common.figure import show_caveat
from senseapp.app.common.notices import complain
from senseapp.app.common.run_guard import run_line
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.metrics import METRICS, Metric, divergence_among
from senseapp.records.comparison import ComparedPart, Side, shared_metrics
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import RunResult
from senseapp.server.leaderboard import compared_levels
from senseapp.views.frames.comparison import letter
from senseapp.views.frames.results import ordered_levels
from senseapp.views.words.wording import caveat_of, provenance_line

_MOST_CHIPS = 4  # levels that fit beside the name in half of the page


Found = tuple[RunRecord, RunResult]


def choose_sides(records: Sequence[RunRecord]) -> list[Side]:
    """Show a card with the level of each run, and return the sides; empty (with a sentence) while there are none."""
    found = _with_values(records)
    if not found:
        return []
    sides = []
    levels, columns = compared_levels([result for _, result in found]), st.columns(max(2, len(found)))
    for index, ((record, result), usual, column) in enumerate(zip(found, levels, columns, strict=False)):
        with column.container(border=True, height="stretch"):
            level = _card(record, result, index, usual, count=len(found))
        sides.append(Side(title=record.title, result=result, level=level))
    return sides if len(sides) > 1 else _parts_of(sides[0])


def _with_values(records: Sequence[RunRecord]) -> list[Found]:
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
    return found


def _parts_of(whole: Side) -> list[Side]:
    """Return the estimate and the measurement of a run as sides, if it has both at the level."""
    sides = [replace(whole, part=part) for part in (ComparedPart.ESTIMATED, ComparedPart.MEASURED)]
    if all(side.metrics for side in sides):
        return sides
    st.info(
        "Choose a second run. (Estimate and measurement can be compared in runs that have both.)",
        icon=":material/add:",
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
        had = "; ".join(f"{side.title}: {', '.join(METRICS[name].label for name in METRICS if name in side.metrics)}"
                        for side in sides)  # fmt: skip
        st.info(f"These runs have no metric in common. {had}.", icon=":material/info:")
        return None
    preferred = (sides[0].result.metric, divergence_among(names), names[0])
    usual = next(name for name in preferred if name in names)
    names = [*metrics_offered(names, usual)]
    return metric_shown(
        choose(
            "Metric",
            {name: metric_shown(name).label for name in names},
            usual,
            "compare",
            "metric",
            is_list=True,
            help=metric_help(names),
        )
    )
