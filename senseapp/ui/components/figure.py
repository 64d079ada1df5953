"""A chart with its question as title, its reading help, its text alternative and, if long, a scroll bar."""

from __future__ import annotations

import altair as alt
import streamlit as st

from senseapp.results import SensitivityResult
from senseapp.ui.charts.axes import PICK, ROW_STEP
from senseapp.ui.state import pick

__all__ = ["caveat_of", "figure", "rows_height", "show_caveat"]

_TALLEST = 560
_AXIS_HEIGHT = 70


def rows_height(rows: int) -> int | None:
    """Return the height of a scrolling frame for that many layer rows, or None if they fit without one."""
    return _TALLEST if rows * ROW_STEP + _AXIS_HEIGHT > _TALLEST else None


def caveat_of(result: SensitivityResult) -> str:
    """Return why the run's figures are indicative only; empty where they are not."""
    reasons = []
    if result.spec.data.kind == "random":
        reasons.append("the inputs are random")
    if not result.profile.pretrained:
        reasons.append("the weights are random")
    return f"Indicative only: {' and '.join(reasons)}" if reasons else ""


def show_caveat(caveat: str) -> None:
    """Show what :func:`caveat_of` says, so that no chart can be read without it; nothing for an empty text."""
    if caveat:
        st.badge(caveat, icon=":material/warning:", color="orange")


def figure(
    question: str,
    chart: alt.Chart | alt.LayerChart,
    *,
    alt_text: str,
    key: str,
    run_id: str = "",
    reading: str = "",
    caveat: str = "",
    frame_height: int | None = None,
) -> None:
    """Draw ``chart`` under ``question``.

    Args:
        question: the question that the chart answers.
        chart: what to draw; with a ``pick`` selection if ``run_id`` is given.
        alt_text: the finding in words, for screen readers.
        key: of the element; holds the run's id, so that a selection never leaks into another run.
        run_id: the run whose picked layer a click changes; empty for charts that do not pick.
        reading: how to read it, in small print.
        caveat: from :func:`caveat_of`; stands beside every chart of a run that is indicative only.
        frame_height: of a frame with a scroll bar; None draws the chart whole.
    """
    st.markdown(f"##### {question}")
    show_caveat(caveat)
    if reading:
        st.caption(reading)
    with st.container(height=frame_height or "content", border=False):
        if run_id:
            st.altair_chart(
                chart, key=key, alt=alt_text, selection_mode=[PICK], on_select=lambda: _take_pick(key, run_id)
            )
        else:
            st.altair_chart(chart, key=key, alt=alt_text)


def _take_pick(key: str, run_id: str) -> None:
    picked = st.session_state[key]["selection"].get(PICK) or []
    pick(run_id, str(picked[0]["layer"]) if picked else "")
