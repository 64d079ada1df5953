"""Levels and metric of a comparison of runs, stored in the URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.expert import metric_shown, metrics_offered
from senseapp.app.common.figure import show_caveat
from senseapp.app.common.notices import complain
from senseapp.app.common.run_guard import run_line
from senseapp.app.common.state import session
from senseapp.app.compare.view import LEVEL_PARAMETER
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

_METRIC_PARAMETER = "metric"
_METRIC = "compare.metric"
_MOST_CHIPS = 4  # levels that fit beside the name in half of the page


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundSide:
    record: RunRecord
    result: RunResult


def choose_sides(records: Sequence[RunRecord]) -> list[Side]:
    """Show a card with the level of each run, and return the sides; empty (with a sentence) while there are none."""
    found = _with_values(records)
    if not found:
        return []
    levels = _levels(found)
    columns = st.columns(max(2, len(found)))
    for index, (one, level, column) in enumerate(zip(found, levels, columns, strict=False)):
        with column.container(border=True, height="stretch"):
            _card(one, index, level, count=len(found))
    if len(found) > 1:
        return [
            Side(title=one.record.title, result=one.result, level=level)
            for one, level in zip(found, levels, strict=True)
        ]
    return _parts_of(found[0], levels[0])


def _with_values(records: Sequence[RunRecord]) -> list[_FoundSide]:
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
        found.append(_FoundSide(record=record, result=result))
    return found


def _parts_of(one: _FoundSide, level: float) -> list[Side]:
    """Return the estimate and the measurement of a run as sides, if it has both at the level."""
    title, result = one.record.title, one.result
    sides = [
        Side(title=title, result=result, level=level, part=part)
        for part in (ComparedPart.ESTIMATED, ComparedPart.MEASURED)
    ]
    if all(side.metrics for side in sides):
        return sides
    st.info(
        "Choose a second run. (Estimate and measurement can be compared in runs that have both.)",
        icon=":material/add:",
    )
    return []


def _levels(found: Sequence[_FoundSide]) -> list[float]:
    """Return the level of each run: the URL's, else the usual one, the same in runs of one compression if possible."""
    linked = dict(zip(session().compared, st.query_params.get_all(LEVEL_PARAMETER), strict=False))
    levels = []
    for one, usual in zip(found, compared_levels([one.result for one in found]), strict=True):
        known = {_level_parameter(level): level for level in one.result.levels}
        levels.append(known.get(linked.get(one.record.run_id, ""), usual))
    return levels


def _level_parameter(level: float) -> str:
    return f"{level:g}"


def _card(one: _FoundSide, index: int, level: float, *, count: int) -> None:
    """Show the title and the provenance of one run, and a choice of its level."""
    name = f"{letter(index)} · {one.record.title}" if count > 1 else one.record.title
    head = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small")
    head.markdown(md("**{}**", name), width="content")
    _choose_level(head, one, level, narrow=count > 2)
    st.caption(md("{}  \n{}", run_line(one.record), provenance_line(one.result)))
    show_caveat(caveat_of(one.result))


def _choose_level(head: st.delta_generator.DeltaGenerator, one: _FoundSide, level: float, *, narrow: bool) -> None:
    """Let the level be chosen, from chips where there is room for them."""
    levels, key = ordered_levels(one.result), _level_key(one.record.run_id)
    st.session_state[key] = level
    look: dict[str, Any] = {"key": key, "label_visibility": "collapsed", "on_change": _keep_levels}
    look["format_func"] = one.result.spec.sensitivity.compression.scale.text
    if narrow or len(levels) > _MOST_CHIPS:
        head.selectbox("Level", levels, width=110, **look)
    else:
        head.segmented_control("Level", levels, required=True, width="content", **look)


def _level_key(run_id: str) -> str:
    return f"compare.level.{run_id}"


def _keep_levels() -> None:
    """Put the levels into the URL, in the order of the runs; one without values has none."""
    chosen = [st.session_state.get(_level_key(run_id)) for run_id in session().compared]
    st.query_params[LEVEL_PARAMETER] = ["" if level is None else _level_parameter(level) for level in chosen]


def choose_metric(sides: Sequence[Side]) -> Metric | None:
    """Show the picker of the metrics that all sides have; None (with a sentence) if there is none."""
    shared = shared_metrics(sides)
    names = [name for name in METRICS if name in shared]
    if not names:
        had = "; ".join(f"{side.title}: {', '.join(METRICS[name].label for name in METRICS if name in side.metrics)}"
                        for side in sides)  # fmt: skip
        st.info(f"These runs have no metric in common. {had}.", icon=":material/info:")
        return None
    preferred = (st.query_params.get(_METRIC_PARAMETER, ""), sides[0].result.metric, divergence_among(names), names[0])
    asked = next(name for name in preferred if name in names)
    names = metrics_offered(names, asked)
    st.session_state[_METRIC] = asked
    chosen = st.selectbox(
        "Metric",
        names,
        format_func=lambda name: metric_shown(name).label,
        key=_METRIC,
        help=md("\n").join(md("- **{}**: {}", metric_shown(name).label, METRICS[name].help) for name in names),
        on_change=_keep_metric,
    )
    return metric_shown(chosen)


def _keep_metric() -> None:
    st.query_params[_METRIC_PARAMETER] = st.session_state[_METRIC]
