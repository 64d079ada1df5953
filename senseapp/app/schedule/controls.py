"""Controls of the Schedule page: how to choose, budget, limits, single layers; every change gives a new schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.app.common.address import SWITCH, bound, choose, number, one_of, span, whole
from senseapp.app.common.expert import expert_toggle, metric_shown
from senseapp.app.common.run_guard import tested_schedule
from senseapp.app.common.state import LayerEdits, edits_key, layer_edits, session
from senseapp.app.schedule.settings import ScheduleSettings, choose_partner, choose_time, edits_form
from senseapp.core.markdown import md
from senseapp.descriptions import CompressionDescription, LevelScale
from senseapp.metrics import METRICS, divergence_among
from senseapp.records.deployment import MILLISECONDS
from senseapp.records.measurement import RunResult
from senseapp.records.resolution import hides_losses
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.server.run_tasks import DropLimit
from senseapp.solve.curve_set import damage_metric
from senseapp.views.frames.files import SHARES
from senseapp.views.frames.results import editing_frame, metrics_of
from senseapp.views.words import format as fmt

_METHODS = {"optimal": "Goal", "strongest": "Largest loss", "gamma": "Proportional"}
_METHOD_HELP = md(
    "**Goal** chooses one level per layer so that the predicted damage of all together is smallest. "
    "**Largest loss** measures whole schedules to find the strongest one that loses no more than you allow. "
    "**Proportional** takes a layer the further down, the less it suffers; its strength says how much more."
)
_BUDGETS = SHARES | {"bits": "Average bits", MILLISECONDS: "Milliseconds of a call"}
_BUDGET_HELP = (
    "What the target counts, over all compressible layers: weights set to zero or removed, bytes of weights, "
    "multiply-accumulates, or the average number of bits per weight, where unmeasured layers count with 32. Bytes are "
    "predicted for compact storage: one bit for each position and what is not zero, at its bits; the files say their "
    "own sizes. Milliseconds add up what layers take, and what changes between 8 bits and full precision costs."
)
_PERCENTS = (1, 99)  # of a slider: 0 asks for nothing, and 100 leaves no network
_USUAL_PERCENT = 50  # the first target of a run without a recommendation: the middle of the slider


def choose_schedule(run_id: str, result: RunResult, first: DeltaGenerator) -> ScheduleSettings:
    """Show the controls that fit the run's compression: how much must go or may be lost in ``first``, others here."""
    any_between, kinds = result.compression.scale.any_between, result.compression.description.budgets
    methods = {name: text for name, text in _METHODS.items() if any_between or name != "gamma"}
    method = choose("How to choose", methods, "optimal", run_id, "choose", help=_METHOD_HELP)
    partner = choose_partner(run_id) if method == "optimal" else None
    chosen = "bytes"
    if partner is None:
        offered = {kind: _BUDGETS[kind] for kind in (*kinds, *([MILLISECONDS] if method == "optimal" else []))}
        chosen = choose("Goal", offered, kinds[0], run_id, "goal", is_list=True, help=_BUDGET_HELP)
    in_time = chosen == MILLISECONDS
    with first:
        times, most_seconds = choose_time(run_id, result) if in_time else (None, 0.0)
    kind = next((kind for kind in ("bytes", *kinds) if kind == chosen), kinds[0])
    target = 0.5 if kind != "bits" else 4.0
    with first:
        allowed = _choose_loss(run_id, result) if method == "strongest" else None
        if allowed is None and not in_time:
            target = _choose_bits(run_id, result) if kind == "bits" else _choose_fraction(run_id, result)
            if _recommended(run_id, kind) is None:
                st.caption("A starting point, not a recommendation: move the target to what you need.")
    edits = _edits(run_id, result)
    low, high = _limits(run_id, result)
    limits = Limits(min_level=low, max_level=high, layers=dict(edits.bounds), fixed=dict(edits.fixed))
    gamma = 1.5
    if method == "gamma":
        gamma = st.slider(
            "Proportional rule · strength",
            0.0,
            5.0,
            step=0.1,
            **bound(run_id, "gamma", number(0, 5), gamma, key=f"schedule.gamma.{run_id}"),
            help="0 treats all layers alike; larger values spare fragile layers more.",
        )
    return ScheduleSettings(
        method="gamma" if method == "gamma" else "optimal",
        budget=ResourceBudget(kind=kind, target=target),
        limits=limits,
        gamma=float(gamma),
        drop=replace(allowed, kind=kind, limits=limits) if allowed is not None else None,
        partner=partner,
        times=times,
        most_seconds=most_seconds,
        awaits_times=in_time and times is None,
    )


def take_target(run_id: str, result: RunResult, kind: str, figure: float) -> None:
    """Move the target to ``figure`` (a fraction, or average bits) before the page is drawn again."""
    st.session_state[f"choose.{run_id}"] = "optimal"
    if kind == MILLISECONDS:
        st.session_state[f"schedule.ms.{run_id}"] = figure
    elif kind == "bits":
        choices = result.compression.scale.choices
        st.session_state[f"schedule.bits.{run_id}"] = min(max(choices), max(min(choices), round(figure, 1)))
    else:
        st.session_state[f"schedule.target.{run_id}"] = min(99, max(1, int(100 * figure + 1e-6)))


def _choose_fraction(run_id: str, result: RunResult) -> float:
    """Show the target: at first what is recommended, else one that no layer is taken further for than measured."""
    least, most = _PERCENTS
    strongest = 100 * max(result.levels)  # at which every layer would be taken to its end
    if recommended := _recommended(run_id, "params"):
        first = min(max(round(100 * recommended), least), most)
    elif result.compression.description.sets_bits:
        first = _USUAL_PERCENT
    else:
        first = max(1, min(_USUAL_PERCENT, int(strongest * 2 / 3)))
    percent = st.slider(
        "Target",
        least,
        most,
        format="%d %%",
        **bound(run_id, "target", whole(least, most), first, key=f"schedule.target.{run_id}"),
    )
    return float(percent) / 100


def _recommended(run_id: str, kind: str) -> float | None:
    """Return the target of what is recommended; None where nothing is, or in another budget."""
    tested = tested_schedule(run_id)
    budget = tested.budget if tested is not None else None
    return budget.target if budget is not None and budget.kind == kind else None


def _choose_bits(run_id: str, result: RunResult) -> float:
    measured = [int(level) for level in result.levels]
    choices = result.spec.sensitivity.compression.scale.choices
    first = max(_recommended(run_id, "bits") or float(min(max(4, min(measured)), max(measured))), min(choices))
    ends = (min(choices), max(*choices, first))  # where some layers have to stay as they are, more are recommended
    found = st.slider(
        "Average bits", *ends, step=0.1, **bound(run_id, "bits", number(*ends), first, key=f"schedule.bits.{run_id}")
    )
    return float(found)


def _limits(run_id: str, result: RunResult) -> tuple[float, float]:
    """Show the least and the most of a layer: amounts, or bits where levels lie on a grid."""
    scale, key = result.compression.scale, f"schedule.limits.{run_id}"
    if scale.any_between:
        least, most = st.slider(
            "Smallest and largest amount per layer",
            0,
            99,
            format="%d %%",
            **bound(run_id, "limits", span(whole(0, 99)), (0, 90), key=key),
            help="No layer gets less than the first or more than the second. The table below limits single layers.",
        )
        return least / 100, most / 100
    untouched = int(scale.untouched)
    bits = [*range(int(min(scale.choices)), int(max(scale.choices)) + 1), untouched]
    low, high = st.select_slider(
        "Fewest and most bits per layer",
        bits,
        **bound(run_id, "limits", span(one_of(bits)), (min(int(level) for level in result.levels), untouched), key=key),
        help=f"{untouched} lets a layer stay as it is. The table below limits single layers.",
    )
    return float(low), float(high)


def _edits(run_id: str, result: RunResult) -> LayerEdits:
    """Return the edits of single layers, written into the address, or taken from it into their table."""
    key = edits_key(run_id)
    before = st.session_state.get(key)
    layers = list(
        dict.fromkeys([*(layer.name for layer in result.profile.layers), *(one.layer for one in result.shown)])
    )
    bound(run_id, "locks", edits_form(layers, result.compression.scale.bounds), LayerEdits(), key=key)
    if before is not None and st.session_state[key] is not before:
        session().edit_round += 1
    return layer_edits(run_id)


def _choose_loss(run_id: str, result: RunResult) -> DropLimit:
    """Return how much may be lost; the budget and the limits are still to be filled in."""
    metrics = [name for name in metrics_of(result) if METRICS[name].additive]
    finer = divergence_among(metrics)
    usual = finer if finer and hides_losses(result, metrics[0]) else metrics[0]
    labels = {name: metric_shown(name, result).label for name in metrics}
    view = METRICS[choose("Loss measured by", labels, usual, run_id, "loss_by", is_list=True)]
    if hidden := hides_losses(result, view.name):
        st.caption(md(":material/info: {}.", hidden))
    first = 1.0 if view.is_share else 0.05
    allowed = st.number_input(
        f"Largest loss ({view.change_unit or view.axis})",
        min_value=0.0,
        step=0.5 if view.is_share else 0.01,
        format="%.1f" if view.is_share else "%.3f",
        **bound(run_id, f"loss_{view.name}", number(0), first, key=f"schedule.drop.{view.name}.{run_id}"),
        help="A schedule that is measured to lose more is not taken.",
    )
    if (shown := metric_shown(view.name, result)).as_answers:
        st.caption(f"That is {shown.change_text(allowed)}.")
    repair = expert_toggle(
        "Repair where it helps",
        **bound(run_id, "repair_tried", SWITCH, usual=True, key=f"schedule.drop_repair.{run_id}"),
        help="Each schedule tried is repaired without training, where it measures better so.",
    )
    return DropLimit(
        kind="params", allowed_drop=allowed / view.factor, metric=view.name, repair=repair, limits=Limits()
    )


def layer_table(run_id: str, schedule: Schedule | None, result: RunResult) -> None:
    """Show one row per layer or coupled group, to be changed; without a schedule, what was set."""
    edits, compression = layer_edits(run_id), result.compression.description
    view = metric_shown(schedule.metric if schedule is not None else damage_metric(result), result)
    rows = editing_frame(result, schedule, fixed=edits.fixed, bounds=edits.bounds, view=view)
    st.caption(
        "Type an amount to lock a layer at it, or tick Locked to keep what it has; all other layers are solved again. "
        "At least and At most limit one layer."
    )
    key = f"schedule.table.{session().edit_round}.{run_id}"
    counted = f" {view.change_unit.split()[-1]}" if view.as_answers else ""  # which the heads say
    st.data_editor(
        rows.assign(
            row=rows["row"].map(fmt.distinct_names(rows["row"], 21)),
            reason=rows["reason"].str.split(" (", regex=False).str[0],
            **{name: rows[name].str.replace(counted, "", regex=False) for name in ("alone", "damage")},
        ),
        key=key,
        hide_index=True,
        placeholder="",
        height=35 * min(len(rows) + 1, 16) + 3,  # of Streamlit's rows with their heads, before the table scrolls
        column_order=["row", "amount", "locked", "least", "most", "reason", "alone", "share", "damage"],
        disabled=["row", "alone", "share", "damage", "reason"],
        column_config=_columns(compression, view.change_title),
        on_change=lambda: _take_edits(key, run_id, rows, compression.scale),
        alt="Amount, lock and limits of each layer",
    )

    def unlock_all() -> None:
        st.session_state[edits_key(run_id)] = LayerEdits()
        session().edit_round += 1

    if edits.fixed or edits.bounds:
        st.button(
            "Unlock all layers", key=f"schedule.unlock.{run_id}", icon=":material/lock_open:", on_click=unlock_all
        )


def _columns(compression: CompressionDescription, lost: str) -> dict[str, Any]:
    scale = compression.scale
    low, high = map(scale.shown, scale.bounds)
    bounds: dict[str, Any] = {"min_value": low, "max_value": high, "step": scale.step}
    bounds["format"] = "%.1f %%" if scale.any_between else "%d"
    untouched = f"{scale.untouched:g} leaves a layer alone." if scale.untouched else None
    number = st.column_config.NumberColumn
    return {
        "row": st.column_config.TextColumn("Layer", width=150),
        "amount": number(compression.amount, width=70, help=untouched, **bounds),
        "locked": st.column_config.CheckboxColumn("Locked", width="small"),
        "least": number("At least", width="small", **bounds),
        "most": number("At most", width="small", **bounds),
        "reason": st.column_config.TextColumn("Why", width=155, help="Why a layer is left alone."),
        "alone": st.column_config.TextColumn("Loses alone", width=162, help=f"{lost}, of this layer alone."),
        "share": number("Weights", width=66, format="%.1f %%", help="Share of all compressible weights."),
        "damage": st.column_config.TextColumn("Predicted", width=112, help=f"{lost}, predicted of this amount."),
    }


def _take_edits(key: str, run_id: str, rows: pd.DataFrame, scale: LevelScale) -> None:
    """Keep what was typed; the table shows its own edits over new data, so one taken back starts it anew."""
    edits = layer_edits(run_id)
    for index, changes in st.session_state[key]["edited_rows"].items():
        row = rows.iloc[int(index)]
        if take_row(edits, str(row["layer"]), changes, row, scale):
            session().edit_round += 1


def take_row(edits: LayerEdits, layer: str, changes: dict[str, Any], row: pd.Series[Any], scale: LevelScale) -> bool:
    """Take the changes of one row; return whether something was taken back."""
    amount = changes.get("amount", row["amount"])
    lock = changes.get("locked", changes.get("amount") is not None or bool(row["locked"]))
    if lock and pd.notna(amount):
        edits.fixed[layer] = scale.from_shown(float(amount))
    else:
        edits.fixed.pop(layer, None)
    bounds = tuple(changes.get(name, row[name]) for name in ("least", "most"))
    least, most = (None if pd.isna(bound) else scale.from_shown(float(bound)) for bound in bounds)
    if least is None and most is None:
        edits.bounds.pop(layer, None)
    else:
        edits.bounds[layer] = (least, most)
    unlocked = not lock and (bool(row["locked"]) or changes.get("amount") is not None)
    return unlocked or None in changes.values()
