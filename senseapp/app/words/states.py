"""The words of the interface: one label, colour and icon for each state."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.records.jobs import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """How a run's state is shown: a word, a badge colour and an icon as the second cue."""

    label: str
    color: str
    icon: str


STATES = {
    RunState.QUEUED: StateView(label="Waiting", color="gray", icon=":material/hourglass_empty:"),
    RunState.RUNNING: StateView(label="Running", color="blue", icon=":material/play_circle:"),
    RunState.DONE: StateView(label="Finished", color="green", icon=":material/check_circle:"),
    RunState.CANCELLED: StateView(label="Cancelled", color="gray", icon=":material/cancel:"),
    RunState.FAILED: StateView(label="Failed", color="red", icon=":material/error:"),
    RunState.INTERRUPTED: StateView(label="Interrupted", color="orange", icon=":material/pause_circle:"),
}
