"""Work on a finished run in the background: the button that starts it, its progress, and the button that ends it."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.notices import complain, job_line
from senseapp.app.common.run_guard import may_start
from senseapp.core.errors import NotFound
from senseapp.server.finished_runs import TaskT

_POLL_SECONDS = 1.0


def start_label(task: TaskT, label: str, what: str, *, cancel: str) -> str:
    """Return what the button says that starts ``task``, ``label`` at first; empty where this visitor cannot start it.

    While it is on its way, watch it instead, with a button of key ``{cancel}.{run_id}`` that ends it.
    """
    if watched(task, cancel=cancel):
        return ""
    snapshot = backend.service().work.progress(task)
    if snapshot is not None and snapshot.error:
        complain(snapshot.error)
        label = "Try again"
    return label if may_start(task.run_id, what) else ""


def watched(task: TaskT, *, cancel: str) -> bool:
    """Tell whether ``task`` is on its way; show how far it is, with a button of key ``{cancel}.{run_id}`` to end it."""
    snapshot = backend.service().work.progress(task)
    if snapshot is None or snapshot.state.finished:
        return False
    st.fragment(_watch, run_every=_POLL_SECONDS)(task, cancel)
    return True


def begin(task: TaskT) -> None:
    """Put a task in the queue, and draw the page anew."""
    backend.service().work.start(task)
    st.rerun()


def _watch(task: TaskT, cancel: str) -> None:
    snapshot = backend.service().work.progress(task)
    if snapshot is None or snapshot.state.finished:
        st.rerun()
    job_line(snapshot)
    st.button("Cancel", key=f"{cancel}.{task.run_id}", on_click=_cancel, args=(task,))


def _cancel(task: TaskT) -> None:
    with suppress(NotFound):  # deleted meanwhile; the page says so
        backend.service().work.cancel(task)
