"""The decision of a run as its pages ask for it: goal, tolerance and promise are settings of the run on every page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import SWITCH, bound, choose, named, one_of, setting
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.metrics import METRICS
from senseapp.prove.decision import Decision, decision
from senseapp.records.candidate import Candidate
from senseapp.records.goal import GOALS
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.promise import CONFIDENCE, Promise, certainty_text, too_few
from senseapp.records.spec import Goal

_TOLERANCES = (0.2, 0.5, 1.0, 2.0, 5.0)  # of the usual one


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a visitor asks of a run: the arguments of :func:`~senseapp.prove.decision.decision`."""

    goal: Goal
    tolerance: float
    promise: Promise | None

    def decide(self, candidates: Sequence[Candidate]) -> Decision:
        """Return the decision among the ``candidates`` of the run."""
        return decision(candidates, self.goal, self.tolerance, self.promise)


def asked_of(record: RunRecord, metric: str) -> Asked:
    """Return what this visitor asks of a run whose files are judged by ``metric``; as on its Results page."""
    run_id, allowed = record.run_id, METRICS[metric].tolerable
    tolerance = setting(run_id, "tolerated", named(_tolerances(metric)), allowed)
    promised = setting(run_id, "promised", SWITCH, False) and _can_be_promised(metric, tolerance)
    return Asked(
        goal=setting(run_id, "for", one_of(GOALS), record.spec.goal),
        tolerance=tolerance,
        promise=Promise(most=tolerance) if promised else None,
    )


def decided(record: RunRecord, candidates: Sequence[Candidate]) -> Decision:
    """Return the decision of a run; of one without files that there is none."""
    if not candidates:
        return decision((), record.spec.goal, 0.0)
    return asked_of(record, candidates[0].metric).decide(candidates)


def decisions(records: Sequence[RunRecord]) -> dict[str, Decision]:
    """Return the decision of each finished run with files, by id."""
    found = {}
    for record in records:
        if record.state is not RunState.DONE:
            continue
        with suppress(SenseError):  # damaged files are said on the run's own page
            candidates = backend.service().work.candidates(record.run_id)
            if candidates:
                found[record.run_id] = decided(record, candidates)
    return found


def _tolerances(metric: str) -> dict[str, float]:
    """Return the tolerable losses to choose from, by their text in the unit of ``metric``."""
    view = METRICS[metric]
    allowed = [round(share * view.tolerable, 9) for share in _TOLERANCES]
    return {f"{view.factor * loss:g}": loss for loss in allowed}


def choose_goal(record: RunRecord) -> Goal:
    """Show what the file is for: one setting of the run on every page."""
    return choose(
        "What do you need?",
        GOALS,
        record.spec.goal,
        record.run_id,
        "for",
        help="Which of the measured files is recommended: the smallest, the fastest here, or the strongest schedule "
        "for a training tool.",
    )


def choose_tolerance(run_id: str, metric: str, *, page: str) -> float:
    """Show what a file may lose, in the unit of ``metric``: one setting of the run on every page."""
    view, allowed = METRICS[metric], _tolerances(metric)
    chosen: float = st.segmented_control(
        f"Tolerable loss ({view.change_unit})" if view.change_unit else "Tolerable loss",
        list(allowed.values()),
        format_func=lambda loss: f"{view.factor * loss:g}",
        required=True,
        **bound(run_id, "tolerated", named(allowed), list(allowed.values())[2], key=f"{page}.tolerated.{run_id}"),
        help=f"{view.change_title}, at most, of a file that is recommended. The same on Results and Schedule.",
    )
    return chosen


def _can_be_promised(metric: str, allowed: float) -> bool:
    return METRICS[metric].is_share and 0 < allowed < 1


def choose_promise(run_id: str, metric: str, allowed: float, *, page: str) -> Promise | None:
    """Show whether the tolerated loss is promised: one setting of the run on every page; None where it is not.

    Nothing is shown for a ``metric`` without a largest value, of which nothing can be promised.
    """
    if not _can_be_promised(metric, allowed):
        return None
    is_promised = st.toggle(
        f"Promise it with {certainty_text(CONFIDENCE)}",
        **bound(run_id, "promised", SWITCH, False, key=f"{page}.promised.{run_id}"),
        help="Only files are offered whose loss on new images is shown to be within this: the upper bound on unseen "
        "images decides, which chose nothing, with every file that was tried on them accounted for. Takes more images "
        "than a tolerated loss does.",
    )
    return Promise(most=allowed) if is_promised else None


def has_enough_images(candidates: Sequence[Candidate], promise: Promise | None) -> bool:
    """Return whether the unseen images of a run can keep a promise; say how many it takes where they cannot."""
    if promise is None or not candidates:
        return True
    missing = too_few(max(each.images if each.held_out else 0 for each in candidates), promise)
    if missing:
        st.warning(md("{}", missing), icon=":material/warning:")
    return not missing
