"""The file that a runtime runs, made of proven weights: its settings, progress, figures and download."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, number, one_of, whole
from senseapp.app.common.decided import Asked, asked_of, choose_promise, choose_tolerance, has_enough_images
from senseapp.app.common.download import file_button, other_files
from senseapp.app.common.int8_pays import show_int8_timing
from senseapp.app.common.notices import errors_here
from senseapp.app.common.run_guard import begin, start_label
from senseapp.app.common.tables import show_table
from senseapp.app.schedule.settings import choose_runtime
from senseapp.core.markdown import code, md
from senseapp.descriptions.runtimes import runtime_words
from senseapp.metrics import METRICS
from senseapp.prove.decision import Standing
from senseapp.records.candidate import Delivery
from senseapp.records.deployment import DeployKind, Deployment, DeploySettings
from senseapp.records.measurement import RunResult
from senseapp.records.promise import Promise, refusal, verdicts
from senseapp.server.delivery_tasks import MOST_CHANGED, DeliverTask
from senseapp.server.schedule_tasks import Verification
from senseapp.server.timing_tasks import Int8Trial
from senseapp.views.frames.files import border_share, deployment_frame, operators_frame, shown_metrics
from senseapp.views.words import format as fmt

_KINDS: dict[DeployKind, str] = {
    "quickest": "As quick as possible",
    "mixed": "Int8 within a time",
    "int8": "All int8",
    "float": "Float",
}
_KIND_HELP = md(
    "**Int8** computes with whole numbers of 8 bits: a quarter of the size, and on most processors quicker. A few "
    "layers may bear it badly; they are found by measurement and stay in **float**: as few as a limit on changed "
    "answers takes (**as quick as possible**), or as many as a limit on the time allows. "
    "What the schedule zeroes or removes is gone from each of these files."
)
_MOST_IMAGES = 64  # of one timed call: a larger batch takes long, and says nothing of the time of one image


def deploy_block(proof: Verification, result: RunResult) -> None:
    """Show the files made from the weights of ``proof``, how far they are, or the button that makes them."""
    run_id = proof.run_id
    with st.container(gap="small"):
        st.markdown(md("## The file that runs"))
        allowed = choose_tolerance(run_id, result.judged_by, key=f"schedule.tolerated.{run_id}")
        promise = choose_promise(run_id, result.judged_by, allowed, key=f"schedule.promised.{run_id}")
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
            delivery = backend.service().work.outcome(task)
            if delivery is not None:
                _files(run_id, delivery, promise, asked_of(backend.service().run(run_id), result.judged_by))
            elif not has_enough_images(backend.service().work.candidates(run_id), promise):
                return
            elif label := start_label(task, "Make the file and measure it", "this file", cancel="schedule.deploy_stop"):
                runtime = runtime_words(task.settings.runtime)
                if task.settings.kind != "float":
                    _time_int8(run_id, task.settings)
                st.markdown(
                    md(
                        "The proven weights become one {} file, which {} runs{}. It runs here beside the original: "
                        "what it answers, how long it takes, how large it is. If the proven weights lose more than is "
                        "tolerated, adapted ones are tried too.",
                        runtime.file_title,
                        runtime.label,
                        f" {runtime.runs_on}" if runtime.runs_on else "",
                    )
                )
                if st.button(label, key=f"schedule.deploy.{run_id}", icon=":material/rocket_launch:"):
                    begin(task)


def _time_int8(run_id: str, settings: DeploySettings) -> None:
    """Show what a first file in int8 takes beside float on this machine, or the button that times it."""
    task = Int8Trial(run_id=run_id, threads=settings.threads, batch=settings.batch, runtime=settings.runtime)
    found = backend.service().work.outcome(task)
    if found is not None:
        show_int8_timing(found)
    elif (label := start_label(task, "Does int8 pay here?", "this answer", cancel="schedule.int8_stop")) and st.button(
        label, key=f"schedule.int8.{run_id}", icon=":material/speed:", type="tertiary"
    ):
        begin(task)


def _choose(run_id: str, allowed: float) -> DeploySettings:
    runtime = choose_runtime(run_id)
    chosen: DeployKind = "float"
    if runtime_words(runtime).has_int8:
        chosen = st.segmented_control(
            "How it computes",
            list(_KINDS),
            required=True,
            format_func=_KINDS.__getitem__,
            **bound(run_id, "form", one_of(_KINDS), "quickest", key=f"schedule.deploy_kind.{run_id}"),
            help=_KIND_HELP,
        )
    usual = DeploySettings()
    with st.popover("How it is timed", icon=":material/timer:", type="tertiary"):
        cores = os.cpu_count() or 1
        threads = st.number_input(
            "Threads", 1, cores, **bound(run_id, "threads", whole(1, cores), 1, key=f"schedule.deploy_threads.{run_id}")
        )
        batch = st.number_input(
            "Images in one call",
            1,
            _MOST_IMAGES,
            **bound(run_id, "batch", whole(1, _MOST_IMAGES), 1, key=f"schedule.deploy_batch.{run_id}"),
        )
        most = st.number_input(
            "Longest time, as a multiple of all-int8's",
            1.0,
            10.0,
            step=0.1,
            format="%.1f",
            disabled=chosen != "mixed",
            **bound(run_id, "most_time", number(1, 10), usual.most_time, key=f"schedule.deploy_time.{run_id}"),
            help="How much slower layers in float may make the file.",
        )
    return DeploySettings(
        kind=chosen,
        most_changed=min(allowed, MOST_CHANGED) if chosen == "quickest" else usual.most_changed,
        most_time=most if chosen == "mixed" else usual.most_time,
        threads=threads,
        batch=batch,
        runtime=runtime,
    )


_AGAINST: dict[Standing, str] = {
    "dominated": "Another file of this run is clearly better, and no worse in size, time or loss.",
    "no gain": "It is not clearly smaller or faster than the original here: keep the original.",
    "loses too much": "It loses more than is tolerated.",
}
"""What speaks against taking a file."""


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
        against = refused or _AGAINST.get(answer.standings[each.file], "")
        st.markdown(md("**{}**: {}", each.made_of, each.headline))
        if each.bound_text:
            st.caption(md(":material/verified: {}", each.bound_text))
        if against:
            st.warning(against, icon=":material/warning:")
        if each in good:
            file_button(run_id, each, primary=not against, key=f"schedule.deployed_file.{place}")
        if each.deployment is None:
            continue
        if len(each.deployment.figures) > 2:
            with st.expander(
                md("Beside all of it in int8 and {}", each.deployment.own_title), icon=":material/table_rows:"
            ):
                _measured(each.deployment, f"{run_id}.{place}")
        else:
            _notes(each.deployment.notes)
    _notes(delivery.notes)
    if good:
        other_files(run_id, good, next((each for each in running if each in good), good[0]))


def _measured(record: Deployment, run_id: str) -> None:
    does, *against = record.findings
    if against:
        st.warning(md("\n\n").join(record.findings), icon=":material/warning:")
    else:
        st.success(does, icon=":material/check_circle:")
    rows = deployment_frame(record)
    show_table(
        rows, _columns(record), alt_text="; ".join(rows.agg(", ".join, axis=1)), key=f"schedule.deployed.{run_id}"
    )
    settings = record.settings
    st.caption(
        md(
            "**Measured** in {} on {}, with 95 % intervals. Times are of {} a call on {} of this machine "
            "({}), all files in turns; on another processor they differ.",
            record.runtime.label,
            fmt.plural(record.images, "image"),
            fmt.plural(settings.batch, "image"),
            fmt.plural(settings.threads, "thread"),
            record.machine,
        )
    )
    if record.in_float:
        layers = fmt.plural(len(record.in_float), "part")
        st.markdown(
            md(
                "**In float, where int8 was measured to do harm** ({}): {}",
                layers,
                md(", ").join(map(code, record.in_float)),
            )
        )
    _where_time_went(record, run_id)
    _notes(record.notes)


def _where_time_went(record: Deployment, run_id: str) -> None:
    """Show the time of each kind of operator of the file and of the original, if the runtime reports it."""
    rows, converts = operators_frame(record), border_share(record)
    if converts is None:
        return
    st.markdown(
        md(
            "**Where the time goes**: {:.0f} % of the file's operators' time converts between float and int8.",
            100 * converts,
        )
    )
    show_table(
        rows,
        {
            "operator": st.column_config.TextColumn("Operator", pinned=True),
            "border": st.column_config.TextColumn("Converts"),
            "float_ms": st.column_config.NumberColumn("Original, ms", format="%.3f"),
            "file_ms": st.column_config.NumberColumn("File, ms", format="%.3f"),
            "float_calls": st.column_config.NumberColumn("Original, calls"),
            "file_calls": st.column_config.NumberColumn("File, calls"),
        },
        alt_text="; ".join(f"{row.operator}: {row.float_ms:.3f} to {row.file_ms:.3f} ms" for row in rows.itertuples()),
        key=f"schedule.operators.{run_id}",
    )


def _notes(notes: Sequence[str]) -> None:
    for note in notes:
        st.caption(md(":material/info: {}", note))


def _columns(record: Deployment) -> dict[str, Any]:
    columns: dict[str, Any] = {"file": st.column_config.TextColumn("File", pinned=True, width=140)}
    for name in shown_metrics(record):
        metric = METRICS[name]
        head = f"{metric.label} ({metric.value_unit})" if metric.value_unit else metric.label
        columns[name] = st.column_config.TextColumn(head, help=metric.help, width=150)
    return columns | {
        "time": st.column_config.TextColumn("ms a call", help="Median, with its 95 % interval.", width=150),
        "share": st.column_config.TextColumn(
            "% of the time", help="Of the original's: median of the ratios, call by call.", width=100
        ),
        "size": st.column_config.TextColumn("Size", help="On disk.", width=70),
    }
