"""The Schedule page's body: controls beside the amounts per layer, the figures, and the target files."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, one_of, presets_button
from senseapp.app.common.figure import figure, figures_row, rows_height
from senseapp.app.common.notices import complain, wait_for
from senseapp.app.common.run_guard import report_button
from senseapp.app.schedule.controls import choose_schedule, take_target
from senseapp.app.schedule.deploy import deploy_block
from senseapp.app.schedule.files import downloads
from senseapp.app.schedule.layers import layer_rows, layer_table, spared_sentences
from senseapp.app.schedule.proof import proof_block, strongest_block, verified
from senseapp.app.schedule.settings import ScheduleSettings, partner_id, schedule_file
from senseapp.app.schedule.trade_off import trade_off_view
from senseapp.core.errors import InfeasibleBudget, SenseError
from senseapp.core.markdown import Markdown, md
from senseapp.metrics import METRICS
from senseapp.records.deployment import MILLISECONDS
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup
from senseapp.records.resolution import baseline_warning, opening_level
from senseapp.records.schedule import Schedule, StrongestFound
from senseapp.solve.time_budget import time_range
from senseapp.solve.trade_off import too_large
from senseapp.views.charts.layers import schedule_bars
from senseapp.views.frames.results import amount_bars
from senseapp.views.palette import fragility_legend
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of

_PARTS = ("Proof", "File that runs", "Trade-off", "Single layers", "Target files")


@st.fragment
def schedule_panel(run_id: str, result: RunResult) -> None:
    """Show it all; a moved slider answers without running the rest of the page again.

    The controls stand beside the answer and one chart; what follows from a schedule is in tabs below.
    """
    groups, exact = _groups(run_id, result)
    if warning := baseline_warning(result):
        st.warning(warning, icon=":material/warning:")
    left, right = st.columns([3, 5], gap="large")
    with left:
        settings = choose_schedule(run_id, result)
        opened = schedule_file(run_id, result)
        foot = st.container(horizontal=True)
        why = st.container()
    with right:
        found = strongest_block(run_id, settings.drop) if settings.drop is not None and opened is None else None
        schedule = opened or _schedule(run_id, settings, found, result, groups)
        if schedule is not None:
            _figures(schedule, settings, result, groups, measured=verified(schedule, run_id, partner=settings.partner))
            _amounts(schedule, settings, result, run_id)
    rows = layer_rows(run_id, schedule, result) if settings.partner is None else None
    if schedule is not None:
        with why:
            _why(schedule, settings, result, rows)
    key = f"schedule.part.{run_id}"
    bound(run_id, "part", one_of(_PARTS), _PARTS[0], key=key)
    proof, runs, costs, layers, files = st.tabs(_PARTS, on_change="rerun", key=key)
    is_final = schedule is not None and exact  # one of estimated size is about to be replaced
    if schedule is not None and is_final and result.spec.data.kind != "imported":
        with proof:
            proven = proof_block(schedule, result, run_id, partner=settings.partner)
        with runs:
            deploy_block(proven, result)
    else:
        for tab in (proof, runs):
            tab.caption(_why_no_proof(result, schedule))
    with costs:
        if settings.partner is None:
            trade_off_view(run_id, result, settings, schedule, groups=groups, found=found)
        else:
            st.caption("The trade-off is drawn for one compression alone.")
    with layers:
        if rows is not None:
            layer_table(run_id, rows, result)
        else:
            st.caption("Layers are locked before compressions are combined: choose nothing under Combine with.")
    with files:
        if schedule is not None and is_final:
            downloads(schedule, result.profile, run_id, partner_id=partner_id(run_id))
        else:
            st.caption("The files follow once there is a schedule.")
    with foot:  # of all that was drawn above and below
        presets_button("schedule", run_id)
        if schedule is not None and is_final:
            report_button(backend.service().run(run_id), result, key=f"schedule.report.{run_id}", schedules=(schedule,))


def _why_no_proof(result: RunResult, schedule: Schedule | None) -> Markdown:
    if result.spec.data.kind == "imported":
        return md(
            ":material/info: These figures were imported, so there is no model here to check or to make a file of. "
            "Apply the schedule in the tool that has the model."
        )
    return md("The proof follows once {}.", "its savings are known" if schedule else "there is a schedule")


def _groups(run_id: str, result: RunResult) -> tuple[tuple[CoupledGroup, ...], bool]:
    """Return what shrinks together when channels go, empty for other compressions; and False while it is found out."""
    if not result.compression.description.removes_channels:
        return (), True
    try:
        groups = backend.couplings_of(run_id)
    except SenseError as error:
        st.info(f"Savings of neighbouring layers are estimates: {error}", icon=":material/info:")
        return (), True
    if groups is None:
        wait_for(
            lambda: backend.couplings_of(run_id),
            "Looking which layers shrink together; until then, savings are estimates",
        )
    return groups or (), groups is not None


def _schedule(
    run_id: str,
    settings: ScheduleSettings,
    found: StrongestFound | None,
    result: RunResult,
    groups: tuple[CoupledGroup, ...],
) -> Schedule | None:
    if settings.awaits_times:
        return None
    if settings.drop is not None:
        return found.schedule if found is not None else None
    large = too_large(result)
    try:
        return _solved_elsewhere(run_id, settings, large, groups) if large else settings.solve(result, groups=groups)
    except InfeasibleBudget as error:
        complain(str(error))
        target = (run_id, result, settings.kind, error.nearest)
        st.button("Take the nearest target", key=f"schedule.nearest.{run_id}", on_click=take_target, args=target)
    except SenseError as error:
        complain(str(error))
    return None


def _solved_elsewhere(
    run_id: str, settings: ScheduleSettings, large: str, groups: tuple[CoupledGroup, ...]
) -> Schedule | None:
    """Return the schedule of a large run; until it is solved, None, and the page looks again."""
    if settings.partner is not None or settings.time is not None:
        complain(f"{large} are too large for two compressions or milliseconds here. Choose another goal.")
        return None

    def solved() -> Schedule | None:
        return backend.solved_of(
            run_id, settings.budget, method=settings.method, limits=settings.limits, gamma=settings.gamma, groups=groups
        )

    found = solved()
    if found is None:
        wait_for(solved, f"Solving the schedule of {large}")
    return found


def _figures(
    schedule: Schedule,
    settings: ScheduleSettings,
    result: RunResult,
    groups: tuple[CoupledGroup, ...],
    *,
    measured: str,
) -> None:
    metric = METRICS[schedule.metric]
    achieved, compression = schedule.achieved, result.spec.sensitivity.compression.description
    weight_bytes = 4 * sum(layer.num_params for layer in result.profile.layers)
    compact = "Size if stored sparse, as integers" if settings.partner is not None else compression.size_label
    if settings.partner is None and compression.sets_bits:
        changed = {"Average bits": f"32 → {achieved['bits']:.2f}"}
    elif not result.profile.sizes_known:
        changed = {"Mean amount over layers": fmt.percent(achieved["params"], digits=1)}
    else:
        changed = {
            "Weights left": f"100 % → {fmt.percent(1 - achieved['params'], digits=1)}",
            "Multiplications": " → ".join(fmt.count(left * result.profile.macs) for left in (1, 1 - achieved["macs"])),
        }
    if weight_bytes:
        before = result.profile.num_bytes or weight_bytes
        after = fmt.bytes_size(before - achieved["bytes"] * weight_bytes)
        changed = {compact: f"{fmt.bytes_size(before)} → {after}", **changed}
    figures = {
        **changed,
        f"Predicted {metric.change_inside}": metric.change_text(schedule.predicted_damage),
        "Checked": measured or md(":gray[not yet]"),
    }
    if settings.partner is not None:
        figures = {"Average bits": f"32 → {achieved['bits']:.2f}", **figures}
    elif settings.time is not None:
        untouched = time_range(result, settings.time.times)[1]
        figures = {"Predicted ms of a call": f"{1000 * untouched:.3g} → {achieved[MILLISECONDS]:.3g}", **figures}
    elif schedule.budget is not None and not too_large(result):
        asked = replace(settings, budget=schedule.budget)
        try:
            uniform = asked.solve(result, method="uniform", groups=groups)
            figures["Uniform would give"] = metric.change_text(uniform.predicted_damage)
        except SenseError:  # no common level meets the budget, which the optimal choice can
            figures["Uniform would give"] = "not possible"
    helps = {
        f"Predicted {metric.change_inside}": "What the layers lose alone, each measured at its level, and "
        "what they add to each other as far as their answers foretell it (after a quick scan they are summed). Measure "
        "the compressed model before you rely on it.",
        "Checked": "The same, measured on the whole compressed model: press Check the whole schedule below.",
        compact: "Predicted, of the whole model: float32 before; then one bit for each position in a compressed layer "
        "and what is not zero, at its bits. Once it is verified, every file says its size on the disk.",
        "Multiplications": "Of a kernel that skips what is zero or gone.",
        "Uniform would give": "The prediction for the same level in every layer at the same budget.",
    }
    figures_row(figures, helps=helps, key="schedule_figures")
    if settings.time is not None:
        for note in schedule.notes:
            st.caption(md(":material/info: {}", note))


def _amounts(schedule: Schedule, settings: ScheduleSettings, result: RunResult, run_id: str) -> None:
    rows, title, largest = amount_bars(schedule, result, mixed=settings.partner is not None)
    level = result.compression.scale.text(opening_level(result, schedule.metric))
    spared = rows.loc[rows["amount_text"] == "left alone", "row"]
    figure(
        "How much is each layer compressed?",
        schedule_bars(rows, title=title, largest=largest),
        alt_text=f"Amount per layer: {', '.join(rows['description'].head(5))} and so on; "
        f"{fmt.plural(len(spared), 'layer')} left alone",
        key=f"schedule.bars.{run_id}",
        caveat=caveat_of(result),
        reading=f"Colour says what the layer loses alone at {level}: {METRICS[schedule.metric].axis}.",
        legend=fragility_legend(METRICS[schedule.metric], no_value=True),
        frame_height=rows_height(len(rows)),
    )


def _why(schedule: Schedule, settings: ScheduleSettings, result: RunResult, rows: pd.DataFrame | None) -> None:
    """Show the spared layers with the reason, and other notes on the schedule."""
    if rows is not None:
        sentences = spared_sentences(rows, result.spec.sensitivity.compression.scale)
        if sentences:
            with st.expander("Which layers are spared, and why", icon=":material/help:"):
                st.markdown(md("\n").join(md("- {}", each) for each in sentences))
    elif settings.limits.fixed:
        locked, kind = ", ".join(settings.limits.fixed), result.compression.kind
        st.caption(md(":material/lock: Locked for {}, before the runs were combined: {}.", kind, locked))
    for note in schedule.notes:
        st.caption(md(":material/info: {}", note))
