"""Common parts of pages about one run: guards, header, report, background tasks, and what is asked of its files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import SWITCH, bound, choose, named, one_of, setting
from senseapp.app.common.download import file_button, offer_file
from senseapp.app.common.notices import POLL_SECONDS, complain, empty_state, progress_bar
from senseapp.app.common.state import RUN_PARAMETER, session
from senseapp.core.errors import NotFound, SenseError
from senseapp.core.markdown import md
from senseapp.core.texts import distinct
from senseapp.descriptions.targets import TARGETS
from senseapp.formats.registry import FORMATS
from senseapp.metrics import METRICS
from senseapp.prove.decision import Decision, decision
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import DeploySettings
from senseapp.records.goal import GOALS
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.promise import CONFIDENCE, Promise, certainty_text, too_few
from senseapp.records.schedule import Schedule
from senseapp.records.spec import Goal
from senseapp.server.delivery_tasks import DeliverTask
from senseapp.server.finished_runs import OutcomeT, TaskT
from senseapp.server.service import Service
from senseapp.server.tasks import FinishedRunTask
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import STATES, download_stem


def require_run(what: str) -> RunRecord:
    """Return the run this page is about; without one, say so and stop the page."""
    run_id = st.query_params.get(RUN_PARAMETER) or session().last_run
    if not run_id and backend.visitor().is_known:  # a tab that has not looked at any yet: the newest of this visitor
        records = backend.service().runs()
        finished = [record for record in records if record.state is RunState.DONE]
        run_id = next((record.run_id for record in (*finished, *records)), "")
    session().last_run = run_id
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
    state = STATES[backend.service().work.as_it_goes(record).state]
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


def run_line(record: RunRecord, network: str = "") -> str:
    """Return model, ``network`` that it was found to be, compression, levels, images and age of a run in one line."""
    settings = record.spec.sensitivity
    parts = [
        record.spec.model.title,
        f"{settings.compression.description.line}: {settings.compression.scale.texts(settings.levels)}",
        "imported figures" if record.spec.data.kind == "imported" else f"images: {record.spec.data.title}",
        fmt.age(record.created_seconds, time.time()) if record.state.finished else "",
    ]
    if settings.mode == "quick":
        parts.insert(2, "quick estimate")
    return " · ".join(dict.fromkeys(filter(None, (network, *parts))))


def run_labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return a distinct label for each run, by its id; it does not change with the age of the run."""
    labels, begun = {}, {}
    for record in records:
        settings = record.spec.sensitivity
        labels[record.run_id] = f"{record.title} · {settings.compression.scale.texts(settings.levels)}"
        begun[record.run_id] = f" · {datetime.fromtimestamp(record.created_seconds):%-d %b, %H:%M:%S}"
    count = Counter(labels.values())
    return distinct({key: label + begun[key] * (count[label] > 1) for key, label in labels.items()})


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


_TOLERANCES = (0.2, 0.5, 1.0, 2.0, 5.0)  # of the usual one


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a visitor asks of a run: the arguments of :func:`~senseapp.prove.decision.decision`."""

    goal: Goal
    tolerance: float
    promise: Promise | None
    target: str

    def decide(self, candidates: Sequence[Candidate]) -> Decision:
        """Return the decision among the ``candidates`` of the run."""
        return decision(candidates, self.goal, self.tolerance, self.promise, self.target)


def asked_of(record: RunRecord, metric: str) -> Asked:
    """Return what this visitor asks of a run whose files are judged by ``metric``; as on its Results page."""
    run_id, allowed = record.run_id, METRICS[metric].tolerable
    tolerance = setting(run_id, "tolerated", named(_tolerances(metric)), allowed)
    promised = setting(run_id, "promised", SWITCH, False) and _can_be_promised(metric, tolerance)
    return Asked(
        goal=setting(run_id, "for", one_of(GOALS), record.spec.goal),
        tolerance=tolerance,
        promise=Promise(most=tolerance) if promised else None,
        target=record.spec.target,
    )


def decided(record: RunRecord, candidates: Sequence[Candidate]) -> Decision:
    """Return the decision of a run; of one without files that there is none."""
    if not candidates:
        return decision((), record.spec.goal, 0.0)
    return asked_of(record, candidates[0].metric).decide(candidates)


def tested_schedule(run_id: str) -> Schedule | None:
    """Return the schedule of the file that a run recommends, else the one that its search tested, if any."""
    choice = decided(backend.service().run(run_id), backend.service().work.candidates(run_id)).choice
    if choice is not None and choice.schedule is not None:
        return choice.schedule
    found = backend.recommendation_of(run_id)
    return found.schedule if found is not None else None


def decisions(records: Sequence[RunRecord]) -> dict[str, Decision]:
    """Return the decision of each run with files, by id; that there is none to take only of finished ones."""
    found = {}
    for record in records:
        with suppress(SenseError):  # damaged files are said on the run's own page
            candidates = backend.service().work.candidates(record.run_id)
            answer = decided(record, candidates)
            if candidates and (answer.choice is not None or record.state is RunState.DONE):
                found[record.run_id] = answer
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


def choose_tolerance(run_id: str, metric: str) -> float:
    """Show what a file may lose, in the unit of ``metric``: one setting of the run on every page."""
    view, allowed = METRICS[metric], _tolerances(metric)
    chosen: float = st.segmented_control(
        f"Tolerable loss ({view.change_unit})" if view.change_unit else "Tolerable loss",
        list(allowed.values()),
        format_func=lambda loss: f"{view.factor * loss:g}",
        required=True,
        **bound(run_id, "tolerated", named(allowed), list(allowed.values())[2]),
        help=f"{view.change_title}, at most, of a file that is recommended. The same on Results and Schedule.",
    )
    return chosen


def _can_be_promised(metric: str, allowed: float) -> bool:
    return METRICS[metric].is_share and 0 < allowed < 1


def choose_promise(run_id: str, metric: str, allowed: float) -> Promise | None:
    """Show whether the tolerated loss is promised: one setting of the run on every page; None where it is not.

    Nothing is shown for a ``metric`` without a largest value, of which nothing can be promised.
    """
    if not _can_be_promised(metric, allowed):
        return None
    is_promised = st.toggle(
        f"Promise it with {certainty_text(CONFIDENCE)}",
        **bound(run_id, "promised", SWITCH, False),
        help="Only files are recommended whose loss on new images is shown to be within this: the upper bound on "
        "unseen images decides, which chose nothing, with every file that was tried on them accounted for. Takes more "
        "images than a tolerated loss does.",
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


def can_search(record: RunRecord) -> bool:
    """Return whether files can be made of a run."""
    return record.state is RunState.DONE and record.spec.data.kind != "imported"


def answer_button(record: RunRecord, asked: Asked, chosen: Candidate | None, *, primary: bool = True) -> None:
    """Show the button to what a decision says to use: a file, targets, or the original as its runtime's file."""
    if chosen is None:
        _original_file(record, asked)
    elif asked.goal == "targets" and (schedule := chosen.schedule) is not None:
        if (result := backend.result_of(record.run_id)) is None:
            return
        # in the first format that can hold it
        form = next(each for each in FORMATS.values() if not each.mismatch(schedule) and each.render is not None)
        offer_file(
            f"Get the targets ({form.title})",
            partial(form.write, schedule, result.profile),
            f"{download_stem(record.spec)}-schedule{form.suffix}",
            key=f"recommendation.targets.{record.run_id}",
            type="primary" if primary else "secondary",
            help="One amount for each layer. Other formats are under Schedule.",
        )
    else:
        file_button(record.run_id, chosen, primary=primary)


def _original_file(record: RunRecord, asked: Asked) -> None:
    """Hand out the original as the file of its runtime, which no file replaces, or show the button that makes it."""
    if asked.goal == "targets" or not can_search(record) or not TARGETS[asked.target].runtime.is_installed:
        return
    settings = DeploySettings(kind="float", runtime=TARGETS[asked.target].runtime_name)
    made = outcome_or_offer(
        DeliverTask(run_id=record.run_id, settings=settings),
        f"Make the original's file ({TARGETS[asked.target].runtime.suffix})",
        "the original's file",
        key="recommendation.original",
        icon="deployed_code",
        kind="primary",
    )
    for candidate in made.candidates if made is not None else ():
        file_button(record.run_id, candidate, primary=True)
