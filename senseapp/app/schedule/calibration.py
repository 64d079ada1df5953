"""The check of the images that int8 files are calibrated on: how many are enough, and what they do not cover."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.notices import errors_here
from senseapp.app.common.run_guard import begin, start_label
from senseapp.app.common.tables import show_table
from senseapp.core.markdown import md
from senseapp.metrics import METRICS
from senseapp.records.calibration import CalibrationCheck
from senseapp.server.layer_tasks import CalibrationTask
from senseapp.views.frames.files import calibration_frame

_WHAT = md(
    "Ranges of activations come from images of the run. Files calibrated on draws of 8, 16, 32 … of them are judged on "
    "others, where there are enough: from which number on does the draw not matter? Values of these beyond the ranges, "
    "and images that look raw, are reported. This takes minutes."
)


def calibration_block(task: CalibrationTask) -> None:
    """Show what the check found, how far it is, or the button that begins it."""
    with st.expander("Are the calibration images enough?", icon=":material/straighten:"), errors_here():
        found = backend.service().work.outcome(task)
        if found is not None:
            _found(found, task.run_id)
        elif label := start_label(task, "Check them", "this check", cancel="schedule.calibration_stop"):
            st.markdown(_WHAT)
            if st.button(label, key=f"schedule.calibration_check.{task.run_id}", icon=":material/straighten:"):
                begin(task)


def _found(found: CalibrationCheck, run_id: str) -> None:
    first, *others = found.findings
    show = st.success if found.enough is not None else st.warning
    show(first, icon=":material/straighten:")
    for sentence in others:
        st.warning(sentence, icon=":material/warning:")
    metric = METRICS[found.metric]
    head = f"{metric.label} ({metric.value_unit})" if metric.value_unit else metric.label
    columns = {"images": "Calibration images", "draws": "Draws", "value": f"{head}, over the draws"}
    show_table(calibration_frame(found), columns, alt_text=first, key=f"schedule.calibration.{run_id}")
