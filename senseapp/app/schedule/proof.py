"""Measurements of whole schedules on request: the proof of one, and the search for the strongest within a loss."""

from functools import partial
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.app.common import backend
from senseapp.app.common.address import SWITCH, bound, choose
from senseapp.app.common.download import offer_file
from senseapp.app.common.expert import expert, expert_toggle
from senseapp.app.common.notices import errors_here, show_notes
from senseapp.app.common.run_guard import outcome_or_offer
from senseapp.app.common.tables import changed_answers, figures_row, text_table
from senseapp.core.errors import NotFound
from senseapp.core.markdown import Markdown, md
from senseapp.metrics import METRICS
from senseapp.records.candidate import named
from senseapp.records.deployment import model_file, small_form
from senseapp.records.measurement import RunResult, change_in
from senseapp.records.promise import images_text
from senseapp.records.schedule import Adapting, Schedule, StrongestFound, ValidationResult
from senseapp.server.run_tasks import DropLimit, StrongestSearch, Verification
from senseapp.server.service import Service
from senseapp.views.frames.files import PROOF_COLUMNS, figure_text, proof_rows
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import STEPS, size_changes, step_lines


def _proof_details(proof: Verification, validation: ValidationResult) -> None:
    """Show sizes before and after, the pictures that change, and the files.

    To experts also every form of the model that was measured, what each step of its making gained, and every note.
    """
    if expert():
        rows = proof_rows(validation, [change.metric for change in validation.changes])
        alt_text = "What was measured of each form of the model"
        text_table(PROOF_COLUMNS, rows, alt_text=alt_text, key="schedule_proof")
        if validation.delivered_reason:
            st.markdown(validation.delivered_reason)
        if steps := step_lines(validation):
            st.markdown(md("{}\n\n{}", STEPS, md("\n").join(md("- {}", line) for line in steps)))
        show_notes(validation.notes)
    figures_row(size_changes(validation), key="schedule_proof_sizes")
    if (changed := backend.service().work.changed(proof)) is not None:
        with st.popover("Pictures that change", icon=":material/compare:"):
            changed_answers(changed, key=f"proof.{proof.run_id}")
    _compressed_model(proof)


def _judged_by(result: RunResult, validation: ValidationResult) -> str:
    """Return the run's metric or a primary one, other than the schedule's own; that one if there is no other."""
    name = validation.schedule.metric
    asked = (result.metric, *(metric.name for metric in METRICS.values() if metric.primary))
    return next((one for one in asked if one != name and change_in(validation.changes, one)), name)


_ADAPTING: dict[Adapting, str] = {"off": "Off", "minutes": "Minutes", "best": "Best"}


def proof_block(
    schedule: Schedule, result: RunResult, run_id: str, details: DeltaGenerator, *, partner: RunResult | None = None
) -> Verification:
    """Show what was measured of ``schedule`` in a line, how far its proof is, or the button that starts one.

    What is set for a proof and all that it measured stand in ``details``. Return the proof. ``partner`` holds the
    results of the second run, where the schedule was made from two.
    """
    action = st.container(gap="small")
    with details:
        repair = expert_toggle(
            "Repair without training",
            **bound(run_id, "repair", SWITCH, usual=True, key=f"schedule.repair.{run_id}"),
            help="Corrects what compression shifts on average in each layer, on images without labels (at most 256). "
            "Kept only where it measures better on images that it was not fitted to.",
        )
        usual: Adapting = "minutes" if result.spec.sensitivity.adapted else "off"
        adapting = choose(
            "Adapt weights",
            _ADAPTING,
            usual,
            run_id,
            "adapt",
            help="Gives the weights that are left new values that make up for what compression took away, on images of "
            "the run without labels. Best takes minutes more. Kept only where it measures better on images that it was "
            "not fitted to.",
        )
    other = partner.spec.sensitivity.compression if partner is not None else None
    proof = Verification(run_id=run_id, schedule=schedule, repair=repair, adapting=adapting, other=other)
    with action, errors_here():
        validation = outcome_or_offer(
            proof,
            "Check the whole schedule",
            "a proof of this schedule",
            key="schedule.verify",
            icon="science",
            about="The loss is predicted from layers alone: check what they lose together.",
            kind="primary",
        )
        if validation is not None:
            st.markdown(_proven_line(validation, result))
            with details:
                _proof_details(proof, validation)
    return proof


def _proven_line(validation: ValidationResult, result: RunResult) -> Markdown:
    """Return the loss that was measured of the delivered form, with its interval."""
    view = METRICS[_judged_by(result, validation)]
    change = change_in(validation.kept_changes, view.name)
    if change is None:
        return md("Checked.")
    repaired = f", after {validation.repair_words[0]}" if validation.keeps_repair else ""
    interval = view.interval_text(change.ci_low, change.ci_high)
    loss = f"{view.change_inside} {view.change_text(change.delta)} (95 % interval {interval})"
    images = images_text(change.num_samples, held_out=validation.held_out) + validation.also_rounded + repaired
    return md(":material/check_circle: **Measured**: {} on {}.", loss, images)


def _compressed_model(proof: Verification) -> None:
    owned = backend.service()
    files = owned.work.compressed_model(proof)
    name = partial(named, owned.run(proof.run_id).spec.model, proof.schedule)
    with st.container(horizontal=True):
        for path in files:
            form = model_file(path.name)
            offer_file(
                f"Compressed model: {form.title} ({fmt.bytes_size(path.stat().st_size)})",
                partial(_model_file, owned, proof, path.name),
                name(form.suffix),
                key=f"schedule.model.{form.suffix}.{proof.run_id}",
            )
    for small in filter(None, (small_form(path.name) for path in files)):
        st.caption(md("The same weights in **{}** are read by these lines:", name(small.suffix)))
        st.code(small.reader(name(small.suffix)), language=None, wrap_lines=True)


def _model_file(owned: Service, proof: Verification, name: str) -> Path:
    """Return where a file of the compressed model lies, if its visitor may still read the run."""
    for path in owned.work.compressed_model(proof):
        if path.name == name:
            return path
    raise NotFound("This file of the compressed model is gone. Check the schedule again.")


def strongest_block(run_id: str, drop: DropLimit) -> StrongestFound | None:
    """Return the result of a search for ``drop``; before that, show its progress, or the button that starts it."""
    search, found = StrongestSearch(run_id=run_id, drop=drop), None
    with errors_here():
        text = (
            "Tries up to 7 schedules and keeps the smallest that stays within your limit: each is compressed whole and "
            "measured on the images of the run."
        )
        found = outcome_or_offer(
            search, "Search", "this search", key="schedule.search", icon="search", text=text, kind="primary"
        )
        if found is not None:
            st.success(_sentence(found, drop), icon=":material/check_circle:")
    return found


def _sentence(found: StrongestFound, drop: DropLimit) -> str:
    view, budget = METRICS[drop.metric], found.schedule.budget
    changes = [(change, tried.repaired) for tried in found.tried if (change := tried.change(drop.metric)) is not None]
    held = [(change, repaired) for change, repaired in changes if change.delta <= drop.allowed_drop]
    if budget is None or not held:
        return "Found."
    best, repaired = held[-1]
    return (
        f"{figure_text(budget.kind, found.schedule.achieved.get(budget.kind, budget.target))}: {view.change_inside} "
        f"{view.change_text(best.delta)} ({view.interval_text(best.ci_low, best.ci_high)}) measured"
        f"{' after repair' * (repaired and expert())} on {best.num_samples} images of the run, the strongest of "
        f"{len(found.tried)} schedules tried. Check the whole schedule to measure it on other images."
    )
