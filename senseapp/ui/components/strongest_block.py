"""The search for the strongest schedule within a loss: ask for it, watch it, take what it found."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from senseapp.errors import NotFound, SenseError
from senseapp.metrics import METRICS
from senseapp.results import JobSnapshot, StrongestFound
from senseapp.service import DropLimit
from senseapp.service.strongest_search import StrongestSearch
from senseapp.ui import backend
from senseapp.ui.components.job_line import job_line
from senseapp.ui.components.notices import complain
from senseapp.ui.components.run_guard import may_start
from senseapp.ui.trade_off_frames import figure_text

_POLL_SECONDS = 1.0


def strongest_block(run_id: str, drop: DropLimit) -> StrongestFound | None:
    """Return what a search for ``drop`` found; until it has, show how far it is, or the button that starts it."""
    try:
        found = backend.service().work.outcome(StrongestSearch(run_id=run_id, drop=drop))
        snapshot = backend.service().work.progress(StrongestSearch(run_id=run_id, drop=drop))
    except SenseError as error:
        complain(str(error))
        return None
    if found is not None:
        st.success(_sentence(found, drop), icon=":material/check_circle:")
    elif snapshot is not None and not snapshot.state.finished:
        st.fragment(_progress, run_every=_POLL_SECONDS)(run_id, drop)
    else:
        _start(run_id, drop, snapshot)
    return found


def _start(run_id: str, drop: DropLimit, snapshot: JobSnapshot | None) -> None:
    if snapshot is not None and snapshot.error:
        complain(snapshot.error)
    if not may_start(run_id, "this search"):
        return
    st.markdown(
        "Whole schedules are compressed and measured on the images of the run, each halfway between what still held "
        "and what lost too much."
    )
    if st.button("Search", key=f"schedule.search.{run_id}", type="primary", icon=":material/search:"):
        try:
            backend.service().work.start(StrongestSearch(run_id=run_id, drop=drop))
        except SenseError as error:
            complain(str(error))
        else:
            st.rerun()


def _progress(run_id: str, drop: DropLimit) -> None:
    snapshot = backend.service().work.progress(StrongestSearch(run_id=run_id, drop=drop))
    if snapshot is None or snapshot.state.finished:
        st.rerun()
    job_line(snapshot)
    st.button("Cancel", key=f"schedule.search_stop.{run_id}", on_click=_cancel, args=(run_id, drop))


def _cancel(run_id: str, drop: DropLimit) -> None:
    with suppress(NotFound):  # deleted meanwhile; the page says so
        backend.service().work.cancel(StrongestSearch(run_id=run_id, drop=drop))


def _sentence(found: StrongestFound, drop: DropLimit) -> str:
    view, budget = METRICS[drop.metric], found.schedule.budget
    changes = [(change, tried) for tried in found.tried if (change := tried.change(drop.metric)) is not None]
    held = [(change, tried) for change, tried in changes if change.delta <= drop.allowed_drop]
    if budget is None or not held:
        return "Found."
    best, last = held[-1]
    repaired = " after repair" if last.repaired else ""
    return (
        f"{figure_text(budget.kind, found.schedule.achieved.get(budget.kind, budget.target))}: {view.change_inside} "
        f"{view.change_text(best.delta)} ({view.interval_text(best.ci_low, best.ci_high)}) measured{repaired} on "
        f"{best.num_samples} images of the run, the strongest of {len(found.tried)} schedules tried. "
        "Verify measures it on other images."
    )
