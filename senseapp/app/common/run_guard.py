"""Common parts of pages about one run: guards for a run without results, header, report, background tasks."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Literal

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.decided import Asked, asked_of
from senseapp.app.common.download import offer_file
from senseapp.app.common.notices import POLL_SECONDS, complain, empty_state, progress_bar
from senseapp.app.common.state import current_run, session
from senseapp.core.errors import NotFound, SenseError
from senseapp.core.markdown import md
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import Schedule
from senseapp.server.finished_runs import OutcomeT, TaskT
from senseapp.server.service import Service
from senseapp.server.tasks import FinishedRunTask
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import STATES, download_stem


def require_run(what: str) -> RunRecord:
    """Return the run this page is about; without one, say so and stop the page."""
    run_id = current_run() or _latest_run()
    if not run_id:
        empty_state(what, level=1)
        st.stop()
    try:
        return backend.service().run(run_id)
    except SenseError as error:
        session().last_run = ""
        complain(str(error))
        st.page_link("pages/runs.py", label="See your runs", icon=":material/list:")
        st.stop()


def _latest_run() -> str:
    """Return the newest run of this visitor, for a tab that has not looked at any yet; empty without one."""
    records = backend.service().runs() if backend.visitor().is_known else ()
    finished = (record for record in records if record.state is RunState.DONE)
    latest = next(finished, next(iter(records), None))
    if latest is not None:
        session().last_run = latest.run_id
    return session().last_run


def require_result(record: RunRecord) -> RunResult:
    """Return the result of the run; without one, show the run's state and stop the page."""
    try:
        result = backend.result_of(record.run_id)
    except SenseError as error:
        complain(str(error))
        st.stop()
    if result is None or not result.shown:
        state = STATES[record.state]
        st.info(f"{state.label}: nothing has been measured yet.", icon=state.icon)
        st.stop()
    return result


def run_header(record: RunRecord, *, line: bool = True) -> st.delta_generator.DeltaGenerator:
    """Show the run's title, its state and its ``line`` in as few lines as can be; return the room beside the title."""
    state = STATES[record.state]
    with st.container(gap="xsmall"):
        first = st.container(
            horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", key="run_header"
        )
        title, beside = (
            first.container(horizontal=True, vertical_alignment="center", gap="small", width="content", key=key)
            for key in ("run_title", "run_actions")
        )
        title.title(record.title, anchor=False, width="content")
        title.badge(state.label, icon=state.icon, color=state.color)  # type: ignore[arg-type]
        if line:
            st.caption(run_line(record))
        if record.read_only:
            owner = record.owner_name or "its owner"
            st.caption(md(":material/visibility: Shared by {}; you can look, not change.", owner))
        if record.origin:
            st.caption(md(":material/history: {}", record.origin))
    return beside


def run_line(record: RunRecord) -> str:
    """Return model, compression, levels, images and age of a run in one line."""
    settings = record.spec.sensitivity
    parts = [
        record.spec.model.title,
        f"{settings.compression.description.line}: {settings.compression.scale.texts(settings.levels)}",
        "imported figures" if record.spec.data.kind == "imported" else f"images: {record.spec.data.title}",
        fmt.age(record.created_seconds, time.time()),
    ]
    if settings.mode == "quick":
        parts.insert(2, "quick estimate")
    return " · ".join(parts)


def report_button(record: RunRecord, result: RunResult, *, key: str, schedules: tuple[Schedule, ...] = ()) -> None:
    """Offer the run's report with these ``schedules`` beside the proven ones; made on click, in a thread of its own."""
    service, asked = backend.service(), asked_of(record, result.judged_by)
    offer_file(
        "Download report",
        lambda: make_report(service, record, result, schedules, asked),
        f"{download_stem(record.spec)}-report.html",
        key=key,
        icon=":material/description:",
        type="tertiary",
        help="One HTML file: the answer, the layers, files, proofs and settings. It opens in any browser, offline.",
    )


def make_report(
    service: Service, record: RunRecord, result: RunResult, schedules: tuple[Schedule, ...], asked: Asked | None = None
) -> bytes:
    """Return the report with all proofs that the run has, and the answer to what the page asks."""
    candidates = service.work.candidates(record.run_id)
    from senseapp.views.report.document import ReportContents, build_report  # loads the drawing library, 88 MB

    contents = ReportContents(
        title=record.title,
        result=result,
        schedules=schedules,
        validations=service.validations(record.run_id),
        changed=service.changed_answers(record.run_id),
        candidates=candidates,
        decided=asked.decide(candidates) if asked is not None else None,
        finished=record.state.finished,
    )
    return build_report(contents).encode()


def outcome_or_offer(
    task: FinishedRunTask[OutcomeT],
    label: str,
    what: str,
    *,
    key: str,
    icon: str,
    text: str = "",
    about: str | None = None,
    kind: Literal["primary", "secondary", "tertiary"] = "secondary",
) -> OutcomeT | None:
    """Return what ``task`` has found; until then show ``text`` and the button, of key ``{key}.{run_id}``, to start it.

    While it is on its way, watch it instead, with a button of key ``{key}_stop.{run_id}`` that ends it. A visitor who
    may not start it is told that nobody has asked for ``what`` it is.
    """
    work, run_id = backend.service().work, task.run_id
    if (found := work.outcome(task)) is not None or watched(task, cancel=f"{key}_stop"):
        return found
    snapshot = work.progress(task)
    if snapshot is not None and snapshot.error:
        complain(snapshot.error)
        label = "Try again"
    if backend.service().run(run_id).read_only:
        st.info(f"Nobody has asked for {what} yet; only the owner of this run can.", icon=":material/visibility:")
        return None
    if text:
        st.markdown(text)
    if st.button(label, key=f"{key}.{run_id}", type=kind, icon=f":material/{icon}:", help=about):
        work.start(task)
        st.rerun()
    return None


def watched(task: TaskT, *, cancel: str) -> bool:
    """Return whether ``task`` is running; show its progress and a button of key ``{cancel}.{run_id}`` to end it."""
    snapshot = backend.service().work.progress(task)
    if snapshot is None or snapshot.state.finished:
        return False

    def stop() -> None:
        with suppress(NotFound):  # deleted meanwhile; the page says so
            backend.service().work.cancel(task)

    def watch() -> None:
        snapshot = backend.service().work.progress(task)
        if snapshot is None or snapshot.state.finished:
            st.rerun()
        progress_bar(snapshot)
        st.button("Cancel", key=f"{cancel}.{task.run_id}", on_click=stop)

    st.fragment(watch, run_every=POLL_SECONDS)()
    return True
