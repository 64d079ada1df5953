"""A schedule that a person brings as a file, shown and verified in place of one that is solved."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from senseapp.export import read_schedule
from senseapp.results import Schedule, SensitivityResult
from senseapp.schedule import budget_of, damage_metric
from senseapp.ui.components.notices import errors_here

_MOST_MEGABYTES = 5


def schedule_file(run_id: str, result: SensitivityResult) -> Schedule | None:
    """Offer to open a file of senseapp's own; return its schedule, or None while there is no usable one."""
    with st.expander("Open a schedule file", icon=":material/upload_file:"):
        uploaded = st.file_uploader(
            "Schedule file",
            type=["json", "yaml", "yml", "csv"],
            key=f"schedule.file.{run_id}",
            help="JSON, YAML or CSV that senseapp wrote for this model. It stands in place of the settings above.",
            max_upload_size=_MOST_MEGABYTES,
        )
        if uploaded is not None:
            with errors_here():
                opened = _measured_by(result, read_schedule(uploaded.getvalue(), result.profile))
                st.markdown("This schedule is shown in place of the settings above. Remove the file to go back.")
                return opened
    return None


def _measured_by(result: SensitivityResult, schedule: Schedule) -> Schedule:
    """Return ``schedule`` with figures of this run; a file of rows alone has none."""
    return replace(
        schedule,
        metric=schedule.metric or damage_metric(result),
        achieved=budget_of(schedule, result) | schedule.achieved,
    )
