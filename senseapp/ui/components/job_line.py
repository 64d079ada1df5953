"""One line on a piece of background work: its place in the queue, or what it does and for how long."""

from __future__ import annotations

import streamlit as st

from senseapp.results import JobSnapshot
from senseapp.ui import format as fmt


def job_line(snapshot: JobSnapshot) -> None:
    """Show what ``snapshot`` says, with a bar where the number of steps is known."""
    waiting = f"Place {snapshot.queue_place} in the queue" if snapshot.queue_place else snapshot.phase or "Starting"
    text = f"{waiting} · {fmt.clock(snapshot.elapsed_seconds)} elapsed"
    if snapshot.total:
        st.progress(snapshot.fraction, text=text)
    else:
        st.markdown(f":material/hourglass: {text}")
