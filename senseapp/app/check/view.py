"""A started check: its progress, then the verdict, all figures and the reports to download."""

from __future__ import annotations

from functools import partial

import streamlit as st

from senseapp.app.check.form import PARAMETER
from senseapp.app.common import backend
from senseapp.app.common.backend import seconds_to_next_look
from senseapp.app.common.download import offer_file
from senseapp.app.common.expert import reading_shown
from senseapp.app.common.notices import complain, errors_here, progress_bar, show_notes
from senseapp.app.common.tables import changed_answers, figures_row, text_table
from senseapp.core.markdown import md
from senseapp.records.check import CheckReport
from senseapp.server.checks import CheckRecord
from senseapp.views.words import format as fmt
from senseapp.views.words.check import (
    CHANGE_COLUMNS,
    OPERATOR_COLUMNS,
    TENSOR_COLUMNS,
    all_notes,
    bound_text,
    change_rows,
    conditions,
    divergence_sentence,
    junit_xml,
    markdown_summary,
    milliseconds,
    operator_rows,
    tensor_rows,
    verdict,
)


def shown_check(check_id: str) -> None:
    """Show the check with this id, or the error."""
    with errors_here():
        record = backend.service().checks.record(check_id)
        st.markdown(md("## {}", record.title))
        if record.report is not None:
            _report(record.report)
        elif record.error:
            complain(record.error)
        else:
            st.fragment(_progress, run_every=seconds_to_next_look())(record)
    if st.button("Check other files", key="check.another", icon=":material/add:"):
        st.query_params.pop(PARAMETER, None)
        st.rerun()


def _progress(record: CheckRecord) -> None:
    checks = backend.service().checks
    snapshot = checks.progress(record.check_id)
    if snapshot is None:
        complain("This check is not at work any more, and left no report. Check the files again.")
        return
    if snapshot.state.finished:
        st.rerun()
    progress_bar(snapshot)
    st.button(
        "Cancel", key="check.cancel", icon=":material/stop_circle:", on_click=checks.cancel, args=(record.check_id,)
    )


def _report(report: CheckReport) -> None:
    """Show a report: the verdict with its reasons, figures of both files, answers, and the rest folded."""
    show = {"Holds": st.success, "Fails": st.error}.get(verdict(report), st.warning)
    show(md("**{}**", report.headline))
    for title, mark, reason in conditions(report):
        if reason not in report.headline:
            st.markdown(md("**{}: {}.** {}", title, mark, reason))
    for finding in report.findings:
        st.markdown(md(":material/lightbulb: {}", finding))
    _downloads(report)
    figures_row(_figures(report), key="check_figures")
    if report.answers is not None:
        st.markdown(md("### Answers that differ"))
        changed_answers(report.answers, key="check")
    with st.expander("Details: every measure, and where the files part inside"):
        _details(report)


def _figures(report: CheckReport) -> dict[str, str]:
    sizes = (fmt.bytes_size(each.file_bytes) for each in (report.reference, report.candidate))
    return {
        "Size": " → ".join(sizes),
        **({"Time": report.time_ratio.times_text} if report.time_ratio is not None else {}),
        **({"A call": milliseconds(report.candidate.seconds)} if report.candidate.seconds is not None else {}),
        "Images": f"{report.images} {'with' if report.labelled else 'without'} labels",
    }


def _details(report: CheckReport) -> None:
    if report.bound is not None:
        st.markdown(md("Largest loss to expect: {}.", bound_text(report.bound)))
        text_table(CHANGE_COLUMNS, change_rows(report), alt_text="Every metric of both files", key="check.metrics")
    if report.divergence is not None:
        st.markdown(md("{}", divergence_sentence(report.divergence)))
        rows, alt_text = tensor_rows(report.divergence.tensors), "How far tensors of both files differ"
        text_table(TENSOR_COLUMNS, rows, alt_text=alt_text, key="check.tensors")
    if report.operators:
        alt_text = "What operators of each kind take in both files"
        text_table(OPERATOR_COLUMNS, operator_rows(report.operators), alt_text=alt_text, key="check.operators")
    for title, side in (("Original", report.reference), ("Compressed file", report.candidate)):
        parts = [side.kind, *(part for part in (side.takes, side.returns) if part)]
        st.caption(md("{}: {}, {}", title, side.name, ", ".join(parts)))
    for sentence in reading_shown(report.reading.sentences) if report.reading is not None else ():
        st.caption(sentence)
    show_notes(all_notes(report))


def _downloads(report: CheckReport) -> None:
    """Offer the page, the JUnit file and the summary, each made when it is fetched."""
    stem = fmt.file_stem(f"check {report.candidate.name}")
    with st.container(horizontal=True):
        offer_file("Page (HTML)", partial(_page, report), f"{stem}.html", key="check.get.html")
        offer_file("For merge requests (Markdown)", partial(markdown_summary, report), f"{stem}.md", key="check.get.md")
        offer_file("For build servers (JUnit)", partial(junit_xml, report), f"{stem}.xml", key="check.get.xml")


def _page(report: CheckReport) -> str:
    from senseapp.views.report.check import build_check_page  # loads what reports are made with

    return build_check_page(report)
