"""Files of a schedule: the one that a runtime runs, made of proven weights, and target files for other tools."""

import os

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import SWITCH, bound, choose, number, whole
from senseapp.app.common.download import file_button, offer_file, other_files
from senseapp.app.common.expert import expert, notes_shown
from senseapp.app.common.notices import answer_or_wait, errors_here, show_notes
from senseapp.app.common.run_guard import (
    Asked,
    asked_of,
    choose_promise,
    choose_tolerance,
    has_enough_images,
    outcome_or_offer,
)
from senseapp.app.common.tables import text_table
from senseapp.app.schedule.settings import choose_runtime
from senseapp.core.markdown import code, md
from senseapp.descriptions import Effect
from senseapp.descriptions.runtimes import runtime_words
from senseapp.descriptions.targets import target_of_file
from senseapp.formats.base import ExportFormat, levels_by_layer
from senseapp.formats.registry import FORMATS
from senseapp.records.candidate import Delivery
from senseapp.records.deployment import INT8_BITS, DeployKind, Deployment, DeploySettings
from senseapp.records.executed import LEAST_WORDS, IntegerShare
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.promise import Promise, refusal, verdicts
from senseapp.records.schedule import Schedule
from senseapp.server.delivery_tasks import MOST_CHANGED, DeliverTask
from senseapp.server.run_tasks import Int8Trial, Verification
from senseapp.views.frames.files import DEPLOYED_COLUMNS, INTEGER_COLUMNS, STANDINGS, deployed_rows, integer_rows
from senseapp.views.words import format as fmt
from senseapp.views.words.check import OPERATOR_COLUMNS, operator_rows
from senseapp.views.words.wording import download_stem, int8_machine_text, int8_text

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
        allowed = choose_tolerance(run_id, result.judged_by)
        promise = choose_promise(run_id, result.judged_by, allowed)
        task = DeliverTask(
            run_id=run_id,
            schedule=proof.schedule,
            repair=proof.repair,
            adapting=proof.adapting,
            allowed_drop=allowed,
            promise=promise,
            settings=_choose(proof, result, allowed),
            other=proof.other,
        )
        with errors_here():
            work = backend.service().work
            known, asked = work.candidates(run_id), asked_of(backend.service().run(run_id), result.judged_by)
            made = tuple(each for each in known if each.schedule == proof.schedule)
            suffice, has_file = has_enough_images(known, promise), any(each.runs for each in made)
            if work.outcome(task) is None:
                if has_file:  # by the run itself, or with other settings
                    _files(run_id, Delivery(candidates=made), promise, asked, says_why=suffice)
                if not suffice:
                    return
            runtime = runtime_words(task.settings.runtime)
            runs = f"which {runtime.label} runs {runtime.runs_on}".rstrip()
            delivery = outcome_or_offer(
                task,
                "Make another with these settings" if has_file else "Make the file and measure it",
                "this file",
                key="schedule.deploy",
                icon="rocket_launch",
                text=""
                if made
                else f"The tested weights become one {runtime.file_words}, {runs}. It runs here "
                "beside the original: what it answers, how long it takes, how large it is. If the tested weights lose "
                "more than is tolerated, adapted ones are tried too.",
            )
            if delivery is not None:
                _files(run_id, delivery, promise, asked, says_why=suffice)
            elif task.settings.kind != "float" and not backend.service().run(run_id).read_only:
                _time_int8(run_id, task.settings)


def _time_int8(run_id: str, settings: DeploySettings) -> None:
    """Show what a first file in int8 takes beside float on this machine, or the button that times it."""
    if settings.activation_bits != INT8_BITS:  # such files are for other processors
        return
    task = Int8Trial(run_id=run_id, threads=settings.threads, batch=settings.batch, runtime=settings.runtime)
    found = outcome_or_offer(
        task, "Do 8-bit numbers pay here?", "this answer", key="schedule.int8", icon="speed", kind="tertiary"
    )
    if found is None:
        return
    if found.pays:
        st.caption(md(":material/speed: {}", int8_text(found)))
    else:
        st.warning(int8_text(found), icon=":material/speed:")
    st.caption(int8_machine_text(found))


def _choose(proof: Verification, result: RunResult, allowed: float) -> DeploySettings:
    run_id = proof.run_id
    runtime, goal = choose_runtime(run_id), asked_of(backend.service().run(run_id), result.judged_by).goal
    chosen: DeployKind = "float"
    if runtime_words(runtime).has_int8:
        # A schedule of bits gives the smallest file as it is: in 8 bits, weights of fewer would take more bytes. Others
        # are smallest in 8 bits, with the parts in float that the tolerated loss takes.
        is_small = goal == "smaller" and levels_by_layer(proof.schedule, Effect.BITS)
        usual_kind: DeployKind = "float" if is_small else "quickest"
        chosen = choose("How it computes", _KINDS, usual_kind, run_id, "form", help=_KIND_HELP)
    int8_ends = wide = False
    if runtime_words(runtime).has_int8_ends and chosen != "float":
        int8_ends = st.checkbox(
            "8-bit inputs and outputs",
            **bound(run_id, "int8_ends", SWITCH, False, key=f"schedule.deploy_ends.{run_id}"),
            help="As microcontrollers and some NPUs want them. Otherwise they are 32-bit numbers.",
        )
        if chosen == "int8" and not int8_ends:
            wide = st.checkbox(
                "16-bit activations",
                **bound(run_id, "wide", SWITCH, False, key=f"schedule.deploy_wide.{run_id}"),
                help="For NPUs. Slower than full precision on this computer; the time on an NPU is not measured.",
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
        int8_ends=int8_ends,
        activation_bits=16 if wide else INT8_BITS,
        runtime=runtime,
    )


def _files(run_id: str, delivery: Delivery, promise: Promise | None, asked: Asked, *, says_why: bool) -> None:
    """Show each file with its own figures and its button, the best of those that run first.

    Files that do not keep a promise have no button; ``says_why``: but what it takes to keep it.
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
        refused = refusal(tests[each.file], promise) if promise is not None and says_why else ""
        said = STANDINGS[answer.standings[each.file]]
        against = refused or ("" if answer.offers(each) else f"{said[0].upper()}{said[1:]}.")
        st.markdown(md("**{}**: {}", each.made_of, answer.line(each)))
        if measured := target_of_file(each.runtime.name, asked.target).measured:
            st.caption(md(":material/devices: {}", measured))
        if against:
            st.warning(against, icon=":material/warning:")
        if each in good:
            file_button(run_id, each, primary=not against, key=f"schedule.deployed_file.{place}")
        if each.deployment is None:
            continue
        if each.deployment.integers is not None:
            _integers(each.deployment.integers, f"{run_id}.{place}")
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


def _integers(found: IntegerShare, key: str) -> None:
    """Show, folded, what a file computes in integers, and which products in float."""
    with st.expander("What is computed in integers?", icon=":material/memory:"):
        st.markdown(md("{}", found.sentence))
        st.caption(
            f"Of all nodes that run, {found.integer_nodes} of {found.nodes} compute in integers, without conversions. "
            f"{LEAST_WORDS}"
        )
        if rows := integer_rows(found):
            text_table(INTEGER_COLUMNS, rows, alt_text="Products in float", key=f"schedule.integers.{key}")


def _measured(record: Deployment, run_id: str) -> None:
    show = st.warning if len(record.findings) > 1 else st.success
    show(md("\n\n").join(record.findings), icon=":material/speed:")
    rows = deployed_rows(record)
    alt_text = "; ".join(map(", ".join, rows))
    text_table(DEPLOYED_COLUMNS, rows, alt_text=alt_text, key=f"schedule.deployed.{run_id}")
    settings = record.settings
    st.caption(
        f"Measured in {record.runtime.label} on {fmt.plural(record.images, 'image')}, with 95 % intervals. Times are "
        f"of {fmt.plural(settings.batch, 'image')} a call on {fmt.plural(settings.threads, 'core')} of this machine "
        f"({record.machine}), all files in turns; on another processor they differ."
    )
    if record.in_float:
        st.markdown(
            md(
                "**In float, where int8 was measured to do harm** ({}): {}",
                fmt.plural(len(record.in_float), "part"),
                md(", ").join(map(code, record.in_float)),
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


_PREVIEW_LINES = 30  # about a screen of the file


def downloads(schedule: Schedule, profile: ModelProfile, run_id: str, *, partner_id: str = "") -> None:
    """Show the format picker, the format's reader, its first lines, its limitations, and how to apply it.

    ``partner_id`` is the second run, where the schedule was made from two.
    """
    record = backend.service().run(run_id)
    command = "RUN" if record.read_only else run_id  # a link opens no folder
    command += f" --run {partner_id}" if partner_id else ""
    stem = f"{download_stem(record.spec)}-schedule"
    left, right = st.columns([3, 5], gap="large")
    with left:
        chosen = _choose_format(schedule, run_id)
        st.caption(chosen.reader)
        text = _text(chosen, schedule, profile, run_id, stem)
        name, key = stem + chosen.suffix, f"schedule.download.{run_id}"
        offer_file(f"Download {chosen.title}", lambda: text, name, key=key, type="primary", disabled=not text)
        service = backend.service()  # whose it is can be asked here, and not in the thread that makes the zip
        offer_file(
            "Download every format (zip)",
            lambda: service.work.target_zip(run_id, schedule, run=command),
            f"{stem}s.zip",
            key=f"schedule.zip.{run_id}",
            icon=":material/folder_zip:",
            help="One file for each format that can hold this schedule, and a manifest with their checksums; not the "
            "large graph of Model Explorer, which comes with that format. The first time this takes a few seconds.",
        )
        show_notes(chosen.notes(schedule, profile) if text else ())
    if not text:
        return
    lines = text.splitlines()
    more = "\n…" if len(lines) > _PREVIEW_LINES else ""
    right.markdown(md("**To apply it**"))
    right.code(chosen.lines(schedule, name, run=command).rstrip(), language=None, wrap_lines=True)
    with right.expander("First lines of the file", icon=":material/description:"):
        st.code("\n".join(lines[:_PREVIEW_LINES]) + more, language=None, wrap_lines=True)


def _choose_format(schedule: Schedule, run_id: str) -> ExportFormat:
    """Offer the formats that have words for what ``schedule`` compresses."""
    known = {name: form for name, form in FORMATS.items() if expert() or not form.is_retired}
    names = [name for name, form in known.items() if not form.mismatch(schedule)]
    name = choose(
        "Format",
        {name: FORMATS[name].title for name in names},
        names[0],
        run_id,
        "format",
        is_list=True,
        help="The same schedule in the words of the tool that will read it.",
    )
    if others := [form.title for name, form in known.items() if name not in names]:
        kinds = " and ".join(sorted({entry.compression for entry in schedule.entries} - {"none"}))
        st.caption(f"Not offered, as they have no words for {kinds} of each layer: {', '.join(others)}.")
    return FORMATS[name]


def _text(chosen: ExportFormat, schedule: Schedule, profile: ModelProfile, run_id: str, stem: str) -> str:
    """Return the file's text; empty where it cannot be written, or not yet, which is said."""
    service, text = backend.service(), ""
    with errors_here():
        if chosen.render is not None:
            text = chosen.write(schedule, profile)
        elif graph := answer_or_wait(
            lambda: backend.ask(("graph", run_id), lambda owned: owned.work.graph(run_id)),
            "Exporting the network as a graph",
        ):
            text = graph.overlay(schedule)
            offer_file(  # the overlay is of no use without it
                "Download the graph (.pt2)",
                lambda: service.work.graph(run_id).path,  # asks anew whether this visitor may read the run
                f"{stem}.model-explorer.pt2",
                key=f"schedule.graph.{run_id}",
                icon=":material/account_tree:",
            )
    return text
