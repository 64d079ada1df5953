"""Which runs to compare; the URL holds the choice, so that it can be shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import streamlit as st

from senseapp.errors import SenseError
from senseapp.results import RunRecord
from senseapp.ui import backend
from senseapp.ui.components.notices import complain
from senseapp.ui.state import RUN_PARAMETER, session
from senseapp.ui.wording import compression_text

MOST_RUNS = 4
LEVEL_PARAMETER = "level"
_RUNS = "compare.runs"


def choose_runs() -> list[RunRecord]:
    """Show the picker of runs, filled in from the URL, and return those chosen; a link may name shared ones."""
    linked = _linked_runs()
    known = {record.run_id: record for record in (*backend.service().runs(), *linked)}
    labels = _labels(known.values())
    st.session_state[_RUNS] = [record.run_id for record in linked]
    st.multiselect(
        "Runs",
        list(known),
        format_func=labels.__getitem__,
        key=_RUNS,
        max_selections=MOST_RUNS,
        placeholder="Choose one run, or up to four",
        help="Two runs or more are compared with each other. One run alone: its estimate with its measurement.",
        on_change=_keep_runs,
    )
    return linked


def _labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return what stands for each run; the browser tells options apart by it, so no two are alike and none changes."""
    labels: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for record in sorted(records, key=lambda record: record.created_seconds):
        label = f"{record.title} · {compression_text(record.spec.sensitivity)}"
        seen[label] += 1
        labels[record.run_id] = label if seen[label] == 1 else f"{label} ({seen[label]})"
    return labels


def _linked_runs() -> list[RunRecord]:
    """Return the runs that the URL names, else those compared last; one that cannot be seen is said and left out."""
    ids = tuple(dict.fromkeys(st.query_params.get_all(RUN_PARAMETER))) or session().compared
    found = []
    for run_id in ids[:MOST_RUNS]:
        try:
            found.append(backend.service().run(run_id))
        except SenseError as error:
            complain(str(error))
    session().compared = tuple(record.run_id for record in found)
    if st.query_params.get_all(RUN_PARAMETER) != list(session().compared):
        st.query_params[RUN_PARAMETER] = list(session().compared)
    return found


def _keep_runs() -> None:
    chosen = st.session_state[_RUNS]
    session().compared = tuple(chosen)
    st.query_params[RUN_PARAMETER] = chosen
    st.query_params.pop(LEVEL_PARAMETER, None)  # they were those of the runs in their order
