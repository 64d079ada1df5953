"""The file that a runtime runs, made of proven weights: its settings, progress, figures and download."""

from __future__ import annotations

import os

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, choose, number, whole
from senseapp.app.common.decided import Asked, asked_of, choose_promise, choose_tolerance, has_enough_images
from senseapp.app.common.download import file_button, other_files
from senseapp.app.common.expert import expert, notes_shown
from senseapp.app.common.notices import errors_here, show_notes
from senseapp.app.common.run_guard import outcome_or_offer
from senseapp.app.common.tables import text_table
from senseapp.app.schedule.settings import choose_runtime
from senseapp.core.markdown import code, md
from senseapp.descriptions.runtimes import runtime_words
from senseapp.records.candidate import Delivery
from senseapp.records.deployment import DeployKind, Deployment, DeploySettings
from senseapp.records.measurement import RunResult
from senseapp.records.promise import Promise, refusal, verdicts
from senseapp.server.delivery_tasks import MOST_CHANGED, DeliverTask
from senseapp.server.run_tasks import Int8Trial, Verification
from senseapp.views.frames.files import DEPLOYED_COLUMNS, STANDINGS, deployed_rows
from senseapp.views.words import format as fmt
from senseapp.views.words.check import OPERATOR_COLUMNS, operator_rows

_KINDS: dict[DeployKind, str] = {
    "quickest": "As quick as possible",
    "mixed": "8-bit within a time",
    "int8": "All 8-bit",
    "float": "Full precision",
}
_KIND_HELP = md(
    "**8-bit** computes with whole numbers of 8 bits: a quarter of the size, and on most processors quicker. A few "
    "layers may bear it badly; they are found by measurement and keep **full precision**: as few as a limit on changed "
    "answers takes (**as quick as possible**), or as many as a limit on the time allows. "
    "What the schedule zeroes or removes is gone from each of these files."
)


def deploy_block(proof: Verification, result: RunResult) -> None:
    """Show the files made from the weights of ``proof``, how far they are, or the button that makes them."""
    run_id = proof.run_id
    with st.container(gap="small"):
        st.markdown(md("## The file that runs"))
        allowed = choose_tolerance(run_id, result.judged_by, page="schedule")
        promise = choose_promise(run_id, result.judged_by, allowed, page="schedule")
        task = DeliverTask(
            run_id=run_id,
            schedule=proof.schedule,
            repair=proof.repair,
            adapting=proof.adapting,
            allowed_drop=allowed,
            promise=promise,
            settings=_choose(run_id, allowed),
            other=proof.other,
        )
        with errors_here():
            work = backend.service().work
            known, asked = work.candidates(run_id), asked_of(backend.service().run(run_id), result.judged_by)
            made = tuple(each for each in known if each.schedule == proof.schedule)
            if work.outcome(task) is None:
                if any(each.runs for each in made):  # by the run itself, or with other settings
                    _files(run_id, Delivery(candidates=made), promise, asked)
                if not has_enough_images(known, promise):
                    return
            runtime = runtime_words(task.settings.runtime)
            runs = f"which {runtime.label} runs {runtime.runs_on}".rstrip()
            delivery = outcome_or_offer(
                task,
                "Make another with these settings" if made else "Make the file and measure it",
                "this file",
                key="schedule.deploy",
                icon="rocket_launch",
                text=""
                if made
                else f"The tested weights become one {runtime.file_title} file, {runs}. It runs here "
                "beside the original: what it answers, how long it takes, how large it is. If the tested weights lose "
                "more than is tolerated, adapted ones are tried too.",
            )
            if delivery is not None:
                _files(run_id, delivery, promise, asked)
            elif task.settings.kind != "float" and not backend.service().run(run_id).read_only:
                _time_int8(run_id, task.settings)


def _time_int8(run_id: str, settings: DeploySettings) -> None:
    """Show what a first file in int8 takes beside float on this machine, or the button that times it."""
    task = Int8Trial(run_id=run_id, threads=settings.threads, batch=settings.batch, runtime=settings.runtime)
    found = outcome_or_offer(
        task, "Do 8-bit numbers pay here?", "this answer", key="schedule.int8", icon="speed", kind="tertiary"
    )
    if found is None:
        return
    if found.pays:
        st.caption(md(":material/speed: {}", found.sentence))
    else:
        st.warning(found.sentence, icon=":material/speed:")
    st.caption(found.machine_sentence)


def _choose(run_id: str, allowed: float) -> DeploySettings:
    runtime = choose_runtime(run_id)
    chosen: DeployKind = "float"
    if runtime_words(runtime).has_int8:
        chosen = choose("How it computes", _KINDS, "quickest", run_id, "form", help=_KIND_HELP)
    usual = DeploySettings()
    with st.popover("How it is timed", icon=":material/timer:", type="tertiary"):
        cores = os.cpu_count() or 1
        threads = st.number_input(
            "Threads", 1, cores, **bound(run_id, "threads", whole(1, cores), 1, key=f"schedule.deploy_threads.{run_id}")
        )
        batch = st.number_input(
            "Images in one call",
            1,
            64,  # a larger batch takes long, and says nothing of the time of one image
            **bound(run_id, "batch", whole(1, 64), 1, key=f"schedule.deploy_batch.{run_id}"),
        )
        most = st.number_input(
            "Longest time, as a multiple of all 8-bit",
            1.0,
            10.0,
            step=0.1,
            format="%.1f",
            disabled=chosen != "mixed",
            **bound(run_id, "most_time", number(1, 10), usual.most_time, key=f"schedule.deploy_time.{run_id}"),
            help="How much slower layers in full precision may make the file.",
        )
    return DeploySettings(
        kind=chosen,
        most_changed=min(allowed, MOST_CHANGED) if chosen == "quickest" else usual.most_changed,
        most_time=most if chosen == "mixed" else usual.most_time,
        threads=threads,
        batch=batch,
        runtime=runtime,
    )


def _files(run_id: str, delivery: Delivery, promise: Promise | None, asked: Asked) -> None:
    """Show each file with its own figures and its button, the best of those that run first.

    Files that do not keep a promise have no button.
    """
    known = backend.service().work.candidates(run_id)
    answer = asked.decide(known)
    running = sorted(
        (each for each in delivery.candidates if each.runs),
        key=lambda each: (not answer.offers(each), each.figures.file_bytes),
    )
    tests = verdicts(known, promise) if promise is not None else {}
    good = [each for each in delivery.candidates if promise is None or tests[each.file].holds]
    for place, each in enumerate(running):
        refused = refusal(tests[each.file], promise) if promise is not None else ""
        worth = answer.offers(each)
        against = refused or ("" if worth else f"Not worth taking: {STANDINGS[answer.standings[each.file]]}.")
        st.markdown(md("**{}**: {}", each.made_of, each.headline))
        if each.bound_text:
            st.caption(md(":material/verified: {}", each.bound_text))
        if against:
            st.warning(against, icon=":material/warning:")
        if each in good:
            file_button(run_id, each, primary=not against, key=f"schedule.deployed_file.{place}")
        if each.deployment is None:
            continue
        if expert() and len(each.deployment.figures) > 2:
            with st.expander(
                md("Beside all of it in int8 and {}", each.deployment.own_title), icon=":material/table_rows:"
            ):
                _measured(each.deployment, f"{run_id}.{place}")
        else:
            show_notes(notes_shown(each.deployment.notes))
    show_notes(notes_shown(delivery.notes))
    if good:
        other_files(run_id, good, next((each for each in running if each in good), good[0]))


def _measured(record: Deployment, run_id: str) -> None:
    show = st.warning if len(record.findings) > 1 else st.success
    show(md("\n\n").join(record.findings), icon=":material/speed:")
    rows = deployed_rows(record)
    alt_text = "; ".join(map(", ".join, rows))
    text_table(DEPLOYED_COLUMNS, rows, alt_text=alt_text, key=f"schedule.deployed.{run_id}")
    settings = record.settings
    st.caption(
        f"Measured in {record.runtime.label} on {fmt.plural(record.images, 'image')}, with 95 % intervals. Times are "
        f"of {fmt.plural(settings.batch, 'image')} a call on {fmt.plural(settings.threads, 'thread')} of this machine "
        f"({record.machine}), all files in turns; on another processor they differ."
    )
    if record.in_float:
        named = md(", ").join(map(code, record.in_float))
        st.markdown(
            md(
                "**In float, where int8 was measured to do harm** ({}): {}",
                fmt.plural(len(record.in_float), "part"),
                named,
            )
        )
    if whole := sum(each.seconds for each in record.operators):
        share = fmt.percent(sum(each.seconds for each in record.operators if each.is_border) / whole)
        about = "of the file's operators' time converts between float and int8."
        st.markdown(md("**Where the time goes**: {} {}", share, about))
        text_table(
            OPERATOR_COLUMNS,
            operator_rows(record.operators),
            alt_text="What operators of each kind take in the original and in the file",
            key=f"schedule.operators.{run_id}",
        )
    show_notes(record.notes)
