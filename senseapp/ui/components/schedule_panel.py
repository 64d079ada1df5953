"""The Schedule page's body: controls beside the amounts per layer, the figures, and the target files."""

from __future__ import annotations

import streamlit as st

from senseapp.errors import SenseError
from senseapp.results import Schedule, SensitivityResult
from senseapp.ui import format as fmt
from senseapp.ui.charts import schedule_bars
from senseapp.ui.components.downloads import downloads
from senseapp.ui.components.figure import caveat_of, figure, rows_height
from senseapp.ui.components.figures_row import figures_row
from senseapp.ui.components.notices import complain
from senseapp.ui.components.proof_block import proof_block
from senseapp.ui.components.schedule_controls import ScheduleSettings, choose_schedule
from senseapp.ui.frames import UNTOUCHED_BITS, schedule_frame
from senseapp.ui.vocabulary import METRICS

__all__ = ["schedule_panel"]

_AXES = {
    "sparsity": "Weights at zero (%)",
    "pruning": "Channels removed (%)",
    "quantization": "Bits per weight",
}
_MOST_BITS = 8.0


@st.fragment
def schedule_panel(run_id: str, result: SensitivityResult) -> None:
    """Show it all; a moved slider answers without running the rest of the page again."""
    left, right = st.columns([3, 5], gap="large")
    with left:
        settings = choose_schedule(run_id, result)
    with right:
        try:
            schedule = settings.solve(result)
        except SenseError as error:
            complain(str(error))
            return
        _figures(schedule, settings, result)
        _amounts(schedule, result, run_id)
        for note in schedule.notes:
            st.caption(f":material/info: {note}")
    proof_block(schedule, result, run_id)
    downloads(schedule, result.profile, run_id)


def _figures(schedule: Schedule, settings: ScheduleSettings, result: SensitivityResult) -> None:
    metric = METRICS[schedule.metric]
    before = 4 * sum(layer.num_params for layer in result.profile.layers)
    achieved = schedule.achieved
    if "bits" in achieved and result.spec.sensitivity.compression.kind == "quantization":
        changed = {"Average bits": f"32 → {achieved['bits']:.2f}"}
    elif not result.profile.sizes_known:
        changed = {"Mean amount over layers": fmt.percent(achieved["params"], digits=1)}
    else:
        changed = {
            "Weights left": f"100 % → {fmt.percent(1 - achieved['params'], digits=1)}",
            "MACs": f"{fmt.count(result.profile.macs)} → {fmt.count((1 - achieved['macs']) * result.profile.macs)}",
        }
    if before:
        after = fmt.bytes_size((1 - achieved["bytes"]) * before)
        changed = {"Size of the weights": f"{fmt.bytes_size(before)} → {after}", **changed}
    figures = {
        **changed,
        f"Predicted {metric.label}": metric.change(schedule.predicted_damage),
        "Uniform would give": _uniform(settings, result, schedule),
    }
    helps = {
        f"Predicted {metric.label}": "Sum of what the layers lose alone, each measured at its level. Layers together "
        "may lose more or less: measure the compressed model before you rely on it.",
        "Size of the weights": "Stored sparse where that is smaller; float32 before.",
        "MACs": "Of a kernel that skips what is zero or gone.",
        "Uniform would give": "The prediction for the same level in every layer at the same budget.",
    }
    figures_row(figures, helps=helps, key="schedule_figures")


def _uniform(settings: ScheduleSettings, result: SensitivityResult, schedule: Schedule) -> str:
    try:
        uniform = settings.solve(result, method="uniform")
    except SenseError:  # no common level meets the budget, which the optimal choice can
        return "not possible"
    return METRICS[schedule.metric].change(uniform.predicted_damage)


def _amounts(schedule: Schedule, result: SensitivityResult, run_id: str) -> None:
    kind = result.spec.sensitivity.compression.kind
    rows = schedule_frame(schedule, result)
    largest = 100.0
    if kind == "quantization":
        largest = UNTOUCHED_BITS if (rows["amount"] > _MOST_BITS).any() else _MOST_BITS
    spared = rows.loc[rows["amount_text"] == "left alone", "row"]
    figure(
        "How much is each layer compressed?",
        schedule_bars(rows, title=_AXES[kind], largest=largest),
        alt_text=f"Amount per layer: {', '.join(rows['description'].head(5))} and so on; "
        f"{fmt.plural(len(spared), 'layer')} left alone",
        key=f"schedule.bars.{run_id}",
        caveat=caveat_of(result),
        reading="Colour says how sensitive the layer is alone: blue is robust, red is fragile.",
        frame_height=rows_height(len(rows)),
    )
