"""The Schedule page's body: controls beside the amounts per layer, the figures, and the target files."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.expert import expert, metric_shown
from senseapp.app.common.figure import figure, rows_height
from senseapp.app.common.notices import complain, show_notes, wait_for
from senseapp.app.common.run_guard import report_button
from senseapp.app.common.tables import figures_row
from senseapp.app.schedule.controls import choose_schedule, layer_table, take_target
from senseapp.app.schedule.files import deploy_block, downloads
from senseapp.app.schedule.proof import proof_block, strongest_block
from senseapp.app.schedule.settings import ScheduleSettings, schedule_file
from senseapp.app.schedule.trade_off import trade_off_view
from senseapp.core.errors import InfeasibleBudget, SenseError
from senseapp.core.markdown import Markdown, md
from senseapp.records.deployment import MILLISECONDS
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup
from senseapp.records.resolution import baseline_warning, opening_level
from senseapp.records.schedule import Schedule, StrongestFound
from senseapp.server.run_tasks import Verification
from senseapp.solve.time_budget import time_range
from senseapp.solve.trade_off import too_large
from senseapp.views.charts.layers import schedule_bars
from senseapp.views.frames.results import amount_bars, reasons_text
from senseapp.views.palette import NO_VALUE, fragility_legend
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of, loss_figures

_PARTS = {
    "Proof": ":material/science:",
    "File that runs": ":material/deployed_code:",
    "Target files": ":material/data_object:",
    "Single layers": ":material/layers:",
    "Trade-off": ":material/show_chart:",
}
"""Titles and icons of what is folded below the schedule."""
_CHART_HEIGHT = 200  # pixels: with the answer above it and the folded parts below, on one screen


@st.fragment
def schedule_panel(run_id: str, result: RunResult) -> None:
    """Show it all; a moved slider answers without running the rest of the page again.

    The target and the proof stand beside the figures and one chart; all else is folded below.
    """
    groups, exact = _groups(run_id, result)
    if warning := baseline_warning(result):
        st.warning(warning, icon=":material/warning:")
    left, right = st.columns([3, 5], gap="large")
    with left:
        target = st.container()
        with st.expander("More settings", icon=":material/tune:"):
            settings = choose_schedule(run_id, result, target)
            opened = schedule_file(run_id, result)
            foot = st.container(horizontal=True)
    with right:
        found = strongest_block(run_id, settings.drop) if settings.drop is not None and opened is None else None
        schedule = opened or _schedule(run_id, settings, found, result, groups)
        figures = st.container()  # filled once it is known what was proven
        if schedule is not None:
            _amounts(schedule, result, run_id)
    is_final = schedule is not None and exact  # one of estimated size is about to be replaced
    proven = None
    with st.container(gap="xsmall"):
        proof, runs, files, layers, costs = (st.expander(title, icon=icon) for title, icon in _PARTS.items())
    with left:
        if schedule is not None and is_final and result.spec.data.kind != "imported":
            proven = proof_block(schedule, result, run_id, proof, partner=settings.partner)
        else:
            st.caption(_why_no_proof(result, schedule))
    if schedule is not None:
        with figures:
            _figures(schedule, settings, result, proven)
    with runs:
        if proven is not None:
            deploy_block(proven, result)
        else:
            st.caption(_why_no_proof(result, schedule))
    with files:
        if schedule is not None and is_final:
            partner_id = str(st.session_state.get(f"schedule.partner.{run_id}") or "")  # of choose_partner
            downloads(schedule, result.profile, run_id, partner_id=partner_id)
        else:
            st.caption("The files follow once there is a schedule.")
    with layers:
        if settings.partner is None:
            layer_table(run_id, schedule, result)
        else:
            st.caption("Layers are locked before compressions are combined: choose nothing under Combine with.")
        if schedule is not None:
            if settings.partner is not None and settings.limits.fixed:
                locked, kind = ", ".join(settings.limits.fixed), result.compression.kind
                st.caption(md(":material/lock: Locked for {}, before the runs were combined: {}.", kind, locked))
            show_notes(schedule.notes)
    with costs:
        if settings.partner is None:
            trade_off_view(run_id, result, settings, schedule, groups=groups, found=found)
        else:
            st.caption("The trade-off is drawn for one compression alone.")
    with foot:  # of all that was drawn
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
    if settings.partner is not None or settings.times is not None:
        complain(f"{large} are too large for two compressions or milliseconds here. Choose another goal.")
        return None

    method, budget, limits, gamma = settings.method, settings.budget, settings.limits, settings.gamma
    key = "solved", run_id, method, gamma, len(groups), repr(budget), repr(limits)

    def solved() -> Schedule | None:
        return backend.ask(
            key,
            lambda owned: owned.work.solved(run_id, budget, method=method, limits=limits, gamma=gamma, groups=groups),
        )

    found = solved()
    if found is None:
        wait_for(solved, f"Solving the schedule of {large}")
    return found


_COMPACT = "Size of the weights, counted"
_FILE = "This schedule's file that runs"
_HELPS = {
    _COMPACT: "Predicted, of the weights of the compressible layers alone: what they would need if each took only the "
    "bits it is left with, and one bit for each position where some are zero. The compact file of weights (under "
    "Proof) is about as large. A file that runs is larger: it holds the whole network, and no weight takes fewer than "
    "8 bits in it. The smallest of those made of this schedule stands beside, where there is one.",
    "Multiplications": "Of a kernel that skips what is zero or gone.",
}


def _figures(schedule: Schedule, settings: ScheduleSettings, result: RunResult, proven: Verification | None) -> None:
    """Show what is left: milliseconds, bytes, bits or weights, the file's size; the predicted and the measured loss.

    Experts see the multiplications too.
    """
    metric, achieved = metric_shown(schedule.metric, result), schedule.achieved
    left = dict[str, str]()
    if settings.times is not None:
        untouched = time_range(result, settings.times)[1]
        left["Predicted ms of a call"] = f"{fmt.short(1000 * untouched)} → {fmt.short(achieved[MILLISECONDS])}"
    if result.profile.num_params:
        left[_COMPACT] = f"100 % → {fmt.percent(1 - achieved['bytes'], digits=1)}"
    if settings.partner is not None or result.compression.description.sets_bits:
        left["Average bits"] = f"32 → {achieved['bits']:.2f}"
    elif not result.profile.sizes_known:
        left["Mean amount over layers"] = fmt.percent(achieved["params"], digits=1)
    else:
        left["Weights left"] = f"100 % → {fmt.percent(1 - achieved['params'], digits=1)}"
        if expert():
            counts = (fmt.count(share * result.profile.macs) for share in (1, 1 - achieved["macs"]))
            left["Multiplications"] = " → ".join(counts)
    work = backend.service().work
    validation = work.outcome(proven) if proven is not None else None
    if validation is not None and proven is not None:
        files = [each for each in work.candidates(proven.run_id) if each.schedule == schedule and each.runs]
        if files:
            least = min(files, key=lambda each: each.figures.file_bytes)
            sizes = least.original.file_bytes, least.figures.file_bytes
            left[_FILE] = f"{' → '.join(map(fmt.bytes_size, sizes))} ({fmt.percent(sizes[1] / sizes[0])})"
    helps = _HELPS | {
        f"Predicted {metric.change_inside}": "What the layers lose alone, each measured at its level, and what they "
        "add to each other as far as their answers foretell it. A repair of the whole is not in it. Check the whole "
        f"schedule before you rely on it. {metric.help}",
        f"Measured {metric.change_inside}": "Of the whole compressed network as it is delivered, after a repair where "
        "that helps, with the 95 % interval, on images that the run has not measured on, where it has enough. "
        f"{metric.help}",
    }
    losses = loss_figures(schedule, validation, metric)
    if len(losses) > 1 and not expert():  # the line of the proof says what was measured
        losses = {}
    figures_row(left | losses, helps=helps, key="schedule_figures")
    show_notes(schedule.notes if settings.times is not None else filter(None, [schedule.beyond_budget]))


def _amounts(schedule: Schedule, result: RunResult, run_id: str) -> None:
    metric = metric_shown(schedule.metric, result)
    rows, question, title, largest = amount_bars(schedule, result, metric)
    level = result.compression.scale.text(opening_level(result, schedule.metric))
    figure(
        question,
        schedule_bars(rows, title=title, largest=largest),
        alt_text=f"Amount per layer: {', '.join(rows['description'].head(5))} and so on; "
        f"{fmt.plural(len(rows.loc[rows['amount_text'] == 'left alone', 'row']), 'layer')} left alone",
        key=f"schedule.bars.{run_id}",
        caveat=caveat_of(result),
        reading=f"Colour: what the layer loses alone at {level}. {reasons_text(rows)}".strip(),
        legend=fragility_legend(metric, no_value=bool((rows["band"] == NO_VALUE).any())),
        frame_height=rows_height(len(rows), tallest=_CHART_HEIGHT),
    )
