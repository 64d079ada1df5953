"""The left side of the Schedule page: how to choose, budget, limits; every change gives a new schedule at once."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.app.common import backend
from senseapp.app.common.address import SWITCH, bound, choose, number, one_of, span, whole
from senseapp.app.common.expert import expert_toggle
from senseapp.app.common.state import LayerEdits, edits_key, layer_edits, session
from senseapp.app.schedule.settings import ScheduleSettings, choose_partner, choose_time, edits_form
from senseapp.core.markdown import md
from senseapp.descriptions import LevelScale
from senseapp.metrics import METRICS, divergence_among
from senseapp.records.deployment import MILLISECONDS
from senseapp.records.measurement import RunResult
from senseapp.records.resolution import hides_losses
from senseapp.records.schedule import Limits, ResourceBudget
from senseapp.server.run_tasks import DropLimit
from senseapp.views.frames.results import metrics_of

_METHODS = {"optimal": "Goal", "strongest": "Largest loss", "gamma": "Proportional"}
_METHOD_HELP = md(
    "**Goal** chooses one level per layer so that the predicted damage of all together is smallest. "
    "**Largest loss** measures whole schedules to find the strongest one that loses no more than you allow. "
    "**Proportional** takes a layer the further down, the less it suffers; its strength says how much more."
)
_BUDGETS: dict[str, str] = {
    "params": "Weights removed",
    "bytes": "Bytes saved if stored compactly",
    "macs": "Multiplications saved",
    "bits": "Average bits",
    MILLISECONDS: "Milliseconds of a call",
}
_BUDGET_HELP = (
    "What the target counts, over all compressible layers: weights set to zero or removed, bytes of weights, "
    "multiply-accumulates, or the average number of bits per weight. Bytes are predicted for compact storage: one bit "
    "for each position and what is not zero, at its bits; the files say their own sizes. Milliseconds add up what "
    "layers take, and what changes between 8 bits and full precision costs."
)
_PERCENTS = (1, 99)  # of a slider: 0 asks for nothing, and 100 leaves no network
_USUAL_PERCENT = 50  # the first target of a run without a recommendation: the middle of the slider


def choose_schedule(run_id: str, result: RunResult, first: DeltaGenerator) -> ScheduleSettings:
    """Show the controls that fit the run's compression: how much must go or may be lost in ``first``, others here."""
    scale = result.compression.scale
    method = _choose_method(run_id, scale)
    partner = choose_partner(run_id) if method == "optimal" else None
    kinds = result.compression.description.budgets
    chosen = "bytes" if partner is not None else _choose_budget(run_id, result, timed=method == "optimal")
    in_time = chosen == MILLISECONDS
    with first:
        time = choose_time(run_id, result) if in_time else None
    kind = next((kind for kind in ("bytes", *kinds) if kind == chosen), kinds[0])
    target = 0.5 if kind != "bits" else 4.0
    with first:
        allowed = _choose_loss(run_id, result) if method == "strongest" else None
        if allowed is None and not in_time:
            target = _choose_bits(run_id, result) if kind == "bits" else _choose_fraction(run_id, result)
    edits = _edits(run_id, result)
    low, high = _fraction_limits(run_id) if scale.any_between else _bit_limits(run_id, result)
    limits = Limits(min_level=low, max_level=high, layers=dict(edits.bounds), fixed=dict(edits.fixed))
    return ScheduleSettings(
        method="gamma" if method == "gamma" else "optimal",
        budget=ResourceBudget(kind=kind, target=target),
        limits=limits,
        gamma=_choose_gamma(run_id) if method == "gamma" else 1.5,
        drop=replace(allowed, kind=kind, limits=limits) if allowed is not None else None,
        partner=partner,
        time=time,
        awaits_times=in_time and time is None,
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


def _choose_method(run_id: str, scale: LevelScale) -> str:
    methods = {name: text for name, text in _METHODS.items() if scale.any_between or name != "gamma"}
    return choose("How to choose", methods, "optimal", run_id, "choose", help=_METHOD_HELP)


def _choose_budget(run_id: str, result: RunResult, *, timed: bool) -> str:
    kinds = (*result.compression.description.budgets, *([MILLISECONDS] if timed else []))
    offered = {kind: _BUDGETS[kind] for kind in kinds}
    return choose("Goal", offered, kinds[0], run_id, "goal", is_list=True, help=_BUDGET_HELP)


def _choose_fraction(run_id: str, result: RunResult) -> float:
    percent = st.slider(
        "Target",
        *_PERCENTS,
        format="%d %%",
        **bound(run_id, "target", whole(*_PERCENTS), _first_percent(run_id, result), key=f"schedule.target.{run_id}"),
        help="How much must go, of what the budget counts.",
    )
    return float(percent) / 100


def _recommended(run_id: str, kind: str) -> float | None:
    """Return the target of what is recommended; None where nothing is, or in another budget."""
    found = backend.recommendation_of(run_id)
    budget = found.schedule.budget if found is not None and found.schedule is not None else None
    return budget.target if budget is not None and budget.kind == kind else None


def _first_percent(run_id: str, result: RunResult) -> int:
    """Return a target to begin with: what is recommended, else one that no layer is taken further for than measured."""
    if recommended := _recommended(run_id, "params"):
        least, most = _PERCENTS
        return min(max(round(100 * recommended), least), most)
    if result.compression.description.sets_bits:
        return _USUAL_PERCENT
    strongest = 100 * max(result.levels)  # at which every layer would be taken to its end
    return max(1, min(_USUAL_PERCENT, int(strongest * 2 / 3)))


def _choose_bits(run_id: str, result: RunResult) -> float:
    measured = [int(level) for level in result.levels]
    choices = result.spec.sensitivity.compression.scale.choices
    first = max(_recommended(run_id, "bits") or float(min(max(4, min(measured)), max(measured))), min(choices))
    ends = (min(choices), max(*choices, first))  # where some layers have to stay as they are, more are recommended
    found = st.slider(
        "Average bits",
        *ends,
        step=0.1,
        **bound(run_id, "bits", number(*ends), first, key=f"schedule.bits.{run_id}"),
        help="Average number of bits over all weights of compressible layers; unmeasured layers count with 32.",
    )
    return float(found)


def _fraction_limits(run_id: str) -> tuple[float, float]:
    low, high = st.slider(
        "Smallest and largest amount per layer",
        0,
        99,
        format="%d %%",
        **bound(run_id, "limits", span(whole(0, 99)), (0, 90), key=f"schedule.limits.{run_id}"),
        help="No layer gets less than the first or more than the second. The table below limits single layers.",
    )
    return low / 100, high / 100


def _bit_limits(run_id: str, result: RunResult) -> tuple[float, float]:
    scale = result.compression.scale
    untouched = int(scale.untouched)
    bits = [*range(int(min(scale.choices)), int(max(scale.choices)) + 1), untouched]
    usual = (min(int(level) for level in result.levels), untouched)
    low, high = st.select_slider(
        "Fewest and most bits per layer",
        bits,
        **bound(run_id, "limits", span(one_of(bits)), usual, key=f"schedule.limits.{run_id}"),
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


def _choose_gamma(run_id: str) -> float:
    found = st.slider(
        "Proportional rule · strength",
        0.0,
        5.0,
        step=0.1,
        **bound(run_id, "gamma", number(0, 5), 1.5, key=f"schedule.gamma.{run_id}"),
        help="0 treats all layers alike; larger values spare fragile layers more.",
    )
    return float(found)


def _choose_loss(run_id: str, result: RunResult) -> DropLimit:
    """Return how much may be lost; the budget and the limits are still to be filled in."""
    metrics = [name for name in metrics_of(result) if METRICS[name].additive]
    finer = divergence_among(metrics)
    usual = finer if finer and hides_losses(result, metrics[0]) else metrics[0]
    offered = {name: METRICS[name].label for name in metrics}
    view = METRICS[choose("Loss measured by", offered, usual, run_id, "loss_by", is_list=True)]
    if hidden := hides_losses(result, view.name):
        st.caption(md(":material/info: {}.", hidden))
    first = 1.0 if view.is_share else 0.05
    allowed = st.number_input(
        f"Largest loss ({view.change_unit})",
        min_value=0.0,
        step=0.5 if view.is_share else 0.01,
        format="%.1f" if view.is_share else "%.3f",
        **bound(run_id, f"loss_{view.name}", number(0), first, key=f"schedule.drop.{view.name}.{run_id}"),
        help="A schedule that is measured to lose more is not taken.",
    )
    repair = expert_toggle(
        "Repair where it helps",
        **bound(run_id, "repair_tried", SWITCH, usual=True, key=f"schedule.drop_repair.{run_id}"),
        help="Each schedule tried is repaired without training, where it measures better so.",
    )
    return DropLimit(
        kind="params", allowed_drop=allowed / view.factor, metric=view.name, repair=repair, limits=Limits()
    )
