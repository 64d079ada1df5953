"""Trials of files: what the original and the chosen one answer to a picture, and times from a report of a device."""

from collections.abc import Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.typing import UploadedFile

from senseapp.app.common import backend
from senseapp.app.common.notices import answer_or_wait, complain, errors_here, show_notes
from senseapp.app.common.state import session
from senseapp.app.common.tables import figures_row, text_table
from senseapp.app.common.uploads import expect_files, read_upload, store_upload, taking
from senseapp.core.markdown import md
from senseapp.data.contents import PICTURE_SUFFIXES
from senseapp.records.answers import MOST_PICTURE_MEGABYTES, PictureAnswer, PictureAnswers
from senseapp.records.candidate import Candidate, file_name
from senseapp.records.jobs import RunRecord
from senseapp.store.device_times.base import ReportSummary
from senseapp.views.words import format as fmt

_PICTURE_WIDTH = 160  # pixels: several files' answers stand beside each other
_ROUND = "picture"


def try_picture(run_id: str, chosen: Candidate) -> None:
    """Show the button to a dialog in which one picture is answered; nothing where ``chosen`` is no file that runs."""
    if not (chosen.runs and chosen.runtime.is_installed and backend.visitor().is_known):
        return
    if st.button("Try it with your picture", key=f"try.open.{run_id}", icon=":material/add_photo_alternate:"):
        session().trying = run_id
    if session().trying == run_id:
        _dialog(run_id, chosen)


def _close() -> None:
    session().trying = ""


@st.dialog("Try it with your picture", width="large", on_dismiss=_close)
def _dialog(run_id: str, chosen: Candidate) -> None:
    with errors_here():
        expect_files()
        uploaded = st.file_uploader(
            "A picture",
            type=[suffix.removeprefix(".") for suffix in sorted(PICTURE_SUFFIXES)],
            key=f"try.picture.{run_id}.{session().upload_round[_ROUND]}",
            max_upload_size=MOST_PICTURE_MEGABYTES,
            label_visibility="collapsed",
        )
        if uploaded is not None:
            _take(run_id, uploaded)
        if refused := session().refused.get(_ROUND):
            complain(refused)
        st.caption(
            "Your picture is prepared like the images of this run, answered by the original network and by the very "
            "file that is downloaded, and then removed from this server."
        )
        path = session().tried.get(run_id)
        if path is None:
            return
        found = answer_or_wait(
            lambda: backend.ask(("picture", run_id, path), lambda owned: owned.work.try_picture(run_id, path)),
            "The original and the file look at your picture",
        )
        if found is not None:
            _show(found, chosen)


def _take(run_id: str, uploaded: UploadedFile) -> None:
    """Keep the picture for the question, or why it was refused, and empty the uploader."""
    session().tried.pop(run_id, None)
    with taking(_ROUND):
        session().tried[run_id] = store_upload(uploaded)
    st.rerun()


def _show(found: PictureAnswers, chosen: Candidate) -> None:
    answer = found.files.get(chosen.file)
    if answer is None:
        st.caption("This file is younger than the answers below: choose the picture once more to ask it.")
        return
    original, finding = found.original, f"Both answer {answer.text}."
    if original.text != answer.text:
        finding = f"The answers differ: {original.text} before, {answer.text} after."
    elif original.shares:
        before, after = (fmt.percent(each.shares[0][1], digits=1) for each in (original, answer))
        finding = f"Both answer {answer.text}: {before} before, {after} after."
    st.markdown(md("## {}", finding))
    picture, left, right = st.columns([2, 3, 3], gap="medium")
    width, height = found.input_size
    picture.image(found.png, caption=f"As the network sees it, {width} × {height}", width=_PICTURE_WIDTH)
    _shares(left, "The original, in PyTorch", original)
    _shares(right, f"{chosen.made_of}, in {chosen.runtime.label}", answer)
    for note in found.notes:
        st.caption(note)


def _shares(column: DeltaGenerator, title: str, answer: PictureAnswer) -> None:
    with column.container(gap="xsmall"):
        st.markdown(md("**{}**", title))
        if answer.drawn:
            st.image(answer.drawn, width=_PICTURE_WIDTH, alt=f"{title}: {answer.text}")
        if not answer.shares:
            st.markdown(md("{}", answer.text))
        for name, share in answer.shares:
            st.progress(min(1.0, share), text=md("{} · {}", name, fmt.percent(share, digits=1)))


_MOST_MEGABYTES = 50  # of a profile, which may list every operator of many runs


def device_report(record: RunRecord, candidates: Sequence[Candidate]) -> None:
    """Say how files are timed on their device, and show the report of one; nothing where none is for a device."""
    made = [each for each in candidates if each.runs and each.runtime.on_device]
    if not made or not backend.visitor().is_known:
        return
    with st.popover("Time on a device", icon=":material/smartphone:"), errors_here():
        machine = made[0].deployment.machine if made[0].deployment is not None else "this computer"
        st.caption(md("Times above are of {}. Measure it there, and choose the report.", machine))
        name = file_name(record.spec.model, made[0])
        st.code(made[0].runtime.on_device.format(name=name), language=None, wrap_lines=True)
        expect_files()
        file = st.file_uploader(
            "Report of the device",
            type=["txt", "log", "csv", "json"],
            key=f"results.device_report.{record.run_id}",
            max_upload_size=_MOST_MEGABYTES,
            help="What the tool printed, or its CSV. It is shown here and not kept.",
        )
        if file is not None:
            content = read_upload(file, most_megabytes=_MOST_MEGABYTES)
            _show_report(backend.service().inputs.summarise_report(content, name=file.name))


def _show_report(found: ReportSummary) -> None:
    call = f"{fmt.short(1000 * found.seconds)} ms"
    figures = {"A call, estimated" if found.is_estimate else "A call": call, "Tool": found.tool}
    if found.processors:
        figures["Operators"] = ", ".join(f"{count:,} on {name}" for name, count in found.processors)
    figures_row(figures, key="results_device_report")
    if found.kinds:
        text_table(
            ("Operator", "Number", "Time"),
            [(kind, str(count), f"{fmt.short(1000 * spent)} ms") for kind, count, spent in found.kinds],
            alt_text="What operators of each kind take on the device",
            key="results.device_report.kinds",
        )
    show_notes(found.notes)
