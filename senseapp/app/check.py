"""The page that checks any file against a reference: what is checked, its progress, the verdict and its reports."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.analyze.checkpoint import choose_architecture
from senseapp.app.analyze.images import choose_images
from senseapp.app.analyze.model import choose_task, with_task
from senseapp.app.analyze.onnx_file import fill_in_task, guess_task
from senseapp.app.analyze.understood import UNDERSTOOD, as_told, preparation_fields, understand
from senseapp.app.common import backend
from senseapp.app.common.download import offer_file
from senseapp.app.common.expert import expert, metrics_offered, notes_shown, reading_shown
from senseapp.app.common.notices import complain, errors_here, progress_bar, show_notes, wait_for
from senseapp.app.common.run_guard import run_labels
from senseapp.app.common.state import kept, session
from senseapp.app.common.tables import changed_answers, figures_row, text_table
from senseapp.app.common.uploads import refuse_upload, upload_field
from senseapp.core.errors import InvalidCheckpoint, SenseError
from senseapp.core.markdown import md
from senseapp.data.contents import are_same_images
from senseapp.descriptions import SOURCES
from senseapp.descriptions.runtimes import installed_runtimes, runtime_of_file
from senseapp.records.candidate import Candidate
from senseapp.records.check import CheckReport, CheckSpec
from senseapp.records.inputs import OnnxReport
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.access import UploadPurpose
from senseapp.server.checks import CheckRecord
from senseapp.tasks import CLASSIFICATION, Task, task_named
from senseapp.views.words import check as words
from senseapp.views.words import format as fmt

PARAMETER = "check"
"""Names the check that is shown in the address."""
_TASK_KEY = "check.task"
_WEIGHTS = ["safetensors", "pth", "pt", "bin", "ckpt", "tar"]
_TYPES = ["onnx", *_WEIGHTS]
_UPLOAD, _RUN = "Upload a file", "From a run"
_WHOSE = (
    md("Both files answer the same images. Take others than those that the compressed file was made with."),
    md(":material/warning: **The images of the run**: answers on them look better than on new ones. Upload others."),
    md(":material/info: **The images of the run**: where it held enough of them out, these alone are taken."),
)
"""Said of images of others than the run of the file, of its own, and of those that it held out."""


class _File(NamedTuple):
    """A compressed file; of one of a run also what people call it, the run, and if others of its images are left."""

    model: ModelSpec
    title: str = ""
    run: RunRecord | None = None
    held_out: bool = False

    def own_images(self, images: DataSpec) -> int:
        """Return how many of the images its run used; 0 where the run had others, or is not known."""
        if self.run is None or not are_same_images(self.run.spec.data, images):
            return 0
        result = backend.result_of(self.run.run_id)
        return result.num_samples if result is not None else 0


def check_form() -> None:
    """Show the fields of a check, and start it when the button is pressed."""
    session().complaint, session().told = "", ()
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown(md("## Original"))
        reference = _reference()
    with right:
        st.markdown(md("## Compressed file"))
        candidate = _candidate()
    st.markdown(md("## Images"))
    whose = st.empty()
    reference, images = _images(reference)
    own = candidate.own_images(images) if candidate is not None and images is not None else 0
    whose.caption(_WHOSE[(1 + candidate.held_out) if candidate is not None and own else 0])
    st.markdown(md("## Limits"))
    max_drop, max_time = _limits(task_named(reference.task if reference is not None else CLASSIFICATION.name))
    spec = None
    if reference is not None and candidate is not None and images is not None:
        spec = CheckSpec(
            reference=reference,
            candidate=candidate.model,
            data=images,
            max_drop=max_drop,
            max_time=max_time,
            candidate_title=candidate.title,
            own_images=own,
            own_wanted=candidate.run.spec.sensitivity.num_samples if candidate.run is not None else None,
            own_seed=candidate.run.spec.sensitivity.seed if candidate.run is not None else 0,
        )
    reason = "" if spec else session().complaint or "Choose both files and images."
    pressed = st.button(
        "Check",
        type="primary",
        icon=":material/fact_check:",
        key="check.start",
        disabled=spec is None,
        help=reason or None,
    )
    if reason:
        st.caption(reason)
    if pressed and spec is not None:
        with errors_here():
            st.query_params[PARAMETER] = backend.service().checks.start(spec)
            st.rerun()


def _is_of_run(purpose: UploadPurpose) -> bool:
    """Show where one of both files comes from; return whether it is a run."""
    chosen = st.segmented_control(
        "Where it comes from",
        (_UPLOAD, _RUN),
        default=_UPLOAD,
        required=True,
        **kept(f"check.{purpose}.source"),
        label_visibility="collapsed",
    )
    return bool(chosen == _RUN)


def _upload(purpose: UploadPurpose, types: list[str]) -> Path | None:
    files = dict.fromkeys(f".{each}" for each in types if each not in _WEIGHTS)
    return upload_field(
        f"A network in one file ({', '.join(files)}), or its trained weights (.safetensors, .pth, .pt)",
        purpose=purpose,
        types=types,
        help_text="A file in .onnx that any program wrote, quantized or not, is run as it is. Of weights, the "
        "architecture is recognised; a compressed one belongs to that of the original.",
    )


def _candidate() -> _File | None:
    """Show the choice of the compressed file; None until it is there."""
    if _is_of_run("candidate"):
        record = _choose_run("candidate")
        return None if record is None else _file_of(record)
    suffixes = (each.suffix.removeprefix(".") for each in installed_runtimes())
    path = _upload("candidate", list(dict.fromkeys([*_TYPES, *suffixes])))
    if path is None:
        return None
    model = _as_model(path, task=CLASSIFICATION.name)  # its task and its architecture are those of the reference
    if path.suffix.lower() == ".onnx":
        _read("candidate", model)
    for record in backend.service().runs():
        if made := backend.service().work.made_as(record.run_id, path):
            return _File(model, f"{record.title}: {made.made_of}", record, made.held_out)
    return _File(model)


def _reference() -> ModelSpec | None:
    """Show the choice of the original; None until it is there."""
    if _is_of_run("reference"):
        record = _choose_run("reference")
        return None if record is None else record.spec.model
    path = _upload("reference", _TYPES)
    if path is None:
        return None
    if path.suffix.lower() != ".onnx":
        draft = _as_model(path, task=CLASSIFICATION.name)
        checkpoint = choose_architecture(path, draft, purpose="reference")
        return None if checkpoint is None else with_task(checkpoint, draft.task, key=_TASK_KEY)
    fill_in_task(path, _TASK_KEY)
    reference = _as_model(path, task=choose_task(CLASSIFICATION.name, key=_TASK_KEY))
    if (report := _read("reference", reference)) is not None:
        guess_task(path, report, _TASK_KEY)
    return reference


def _read(purpose: UploadPurpose, model: ModelSpec) -> OnnxReport | None:
    """Return what is in an upload, or remove a damaged one; None meanwhile, and where only onnxruntime may run it."""

    def read() -> OnnxReport | None:
        return backend.ask(("onnx", model), lambda own: own.inputs.examine_onnx(model))

    with suppress(SenseError):
        try:
            if (found := read()) is None:
                wait_for(read, "Reading the file.")
            return found
        except InvalidCheckpoint as error:
            refuse_upload(purpose, str(error))
    return None


def _as_model(path: Path, *, task: str) -> ModelSpec:
    is_file = runtime_of_file(path.name) is not None
    return ModelSpec(library="onnx" if is_file else "auto", checkpoint=str(path), task=task)


def _choose_run(purpose: UploadPurpose) -> RunRecord | None:
    """Offer finished runs: their uncompressed network as reference, their files as candidates."""
    finished = (record for record in backend.service().runs() if record.state is RunState.DONE)
    runs = {record.run_id: record for record in finished if record.spec.model.is_runnable}
    if not runs:
        st.caption("There is no finished run with a network yet.")
        return None
    run_id = st.selectbox(
        "Run",
        list(runs),
        format_func=run_labels(runs.values()).__getitem__,
        key=f"check.{purpose}.run",
        help="The original is the uncompressed network of a run; the compressed file is one of its files.",
    )
    return runs[run_id]


def _can_be_checked(candidate: Candidate, model: ModelSpec) -> bool:
    """Return whether a file can be opened here: weights only in the layers of a network that takes weights."""
    if candidate.form != "weights":
        return candidate.runs and runtime_of_file(candidate.file) is not None
    removes = candidate.schedule is not None and candidate.schedule.removes_channels
    return not removes and not SOURCES[model.library].chooses_outputs


def _file_of(record: RunRecord) -> _File | None:
    work = backend.service().work
    made = work.candidates(record.run_id)
    found: dict[str, tuple[Candidate, Path]] = {}
    for each in made:
        with suppress(SenseError):  # only its figures are on this server
            if _can_be_checked(each, record.spec.model):
                found[each.file] = each, work.candidate_file(record.run_id, each)
    if not found:
        said = "This run has no file that can be checked here." if made else "This run has no file yet."
        st.caption(f"{said} Make one on its Results page, or upload one.")
        return None
    names = {file: f"{each.made_of}, {fmt.bytes_size(each.figures.file_bytes)}" for file, (each, _) in found.items()}
    model = record.spec.model
    candidate, path = found[choose_one("File", names, "", key="check.candidate.file", help_text="Of this run.")]
    model = (
        _as_model(path, task=model.task)
        if candidate.runs
        else ModelSpec(library=model.library, name=model.name, checkpoint=str(path), task=model.task)
    )
    return _File(model, f"{record.title}: {candidate.made_of}", record, candidate.held_out)


def _images(reference: ModelSpec | None) -> tuple[ModelSpec | None, DataSpec | None]:
    """Show the image picker and how the reference reads them; return what is compared."""
    draft, error = (session().shown or session().draft).data, None
    if reference is not None:
        try:
            backend.card_of(reference)
        except SenseError as found:
            error = found
    _, images = choose_images(draft, reference if error is None else None, page="check")
    if reference is not None and error is not None:
        return reference, _unseen(reference, images, error)
    st.markdown(md("## {}", UNDERSTOOD))
    seen = understand(reference, images, task_key=_TASK_KEY, button="Check")
    return seen.model, seen.images


def _unseen(reference: ModelSpec, images: DataSpec | None, error: SenseError) -> DataSpec | None:
    """Say why nothing is shown of the images, and let a person say how they are prepared; return them as told."""
    st.caption(f"Not shown as the original gets them: {error}")
    if images is None or not (images.path or images.name):
        return images
    from senseapp.measure.preparation_candidates import usual_ranges  # torch loads here

    spec = RunSpec(model=reference, data=replace(images, preparation="auto"))
    with st.expander("How the original reads images"):
        preparation_fields(spec, usual_ranges(3))
    return as_told(spec).data


def _limits(task: Task) -> tuple[float | None, float | None]:
    """Show the largest loss, in the unit of the metric that the task is judged by, and the largest time."""
    metric = next((metric for metric in task.own_metrics if metric.primary), task.own_metrics[0])
    left, right = st.columns(2)
    drop = left.number_input(
        f"Largest loss ({metric.change_unit})" if metric.change_unit else "Largest loss",
        min_value=0.0,
        value=round(metric.factor * metric.tolerable, 6),
        step=0.5 if metric.is_share else 0.01,
        **kept(f"check.drop.{task.name}"),
        help=f"{metric.change_title}, or answers that change where images have no labels: at most this much, with 95 % "
        "confidence on new images, of this file alone: where a run tried several, its bounds are wider.",
    )
    time = right.number_input(
        "Largest time (times the original)",
        min_value=0.01,
        value=None,
        step=0.1,
        placeholder="no limit",
        **kept("check.time"),
        help="Median of calls in turns, on one core of this machine.",
    )
    return drop / metric.factor, time


def recent_checks(shown: str = "") -> None:
    """List the checks of this visitor that are kept, but the one that is ``shown``."""
    found = [each for each in backend.service().checks.recent() if each.check_id != shown]
    if not found:
        return
    st.markdown(md("## Earlier checks"))
    for each in found:
        row = st.container(horizontal=True, vertical_alignment="center")
        row.button(
            each.title,
            key=f"check.open.{each.check_id}",
            type="tertiary",
            on_click=st.query_params.update,
            args=({PARAMETER: each.check_id},),
        )
        row.caption(each.report.headline if each.report is not None else each.error or "running")


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
            st.fragment(_progress, run_every=backend.seconds_to_next_look())(record)
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
    {"Holds": st.success, "Fails": st.error}.get(report.verdict, st.warning)(md("**{}**", report.headline))
    for title, mark, reason in words.conditions(report):
        if reason not in report.headline:
            st.markdown(md("**{}: {}.** {}", title, mark, reason))
    for finding in report.findings:
        st.markdown(md(":material/lightbulb: {}", finding))
    stem = fmt.file_stem(f"check {report.candidate.name}")
    offer_file("Report (HTML)", partial(_page, report), f"{stem}.html", key="check.get.html")
    figures = {
        "Size": " → ".join(fmt.bytes_size(each.file_bytes) for each in (report.reference, report.candidate)),
        **({"Time": report.time_ratio.times_text} if report.time_ratio is not None else {}),
        **({"A call": words.milliseconds(report.candidate.seconds)} if report.candidate.seconds is not None else {}),
        **({"Images": f"{report.images} {'with' if report.labelled else 'without'} labels"} if report.images else {}),
    }
    figures_row(figures, key="check_figures")
    if report.answers is not None:
        st.markdown(md("### Answers that differ"))
        changed_answers(report.answers, key="check")
    with st.expander(f"Details: every measure{', and where the files part inside' * expert()}"):
        _details(report)


def _details(report: CheckReport) -> None:
    if report.bound is not None:
        st.markdown(md("Largest loss to expect: {}.", words.bound_text(report.bound)))
        shown = metrics_offered([each.metric for each in report.changes], report.metric)
        said = replace(report, changes=tuple(each for each in report.changes if each.metric in shown))
        text_table(words.CHANGE_COLUMNS, words.change_rows(said), alt_text="Metrics of both files", key="check.metrics")
    if report.divergence is not None and expert():
        st.markdown(md("{}", words.divergence_sentence(report.divergence)))
        rows, alt_text = words.tensor_rows(report.divergence.tensors), "How far tensors of both files differ"
        text_table(words.TENSOR_COLUMNS, rows, alt_text=alt_text, key="check.tensors")
    if report.operators and expert():
        rows, alt_text = words.operator_rows(report.operators), "What operators of each kind take in both files"
        text_table(words.OPERATOR_COLUMNS, rows, alt_text=alt_text, key="check.operators")
    for title, side in (("Original", report.reference), ("Compressed file", report.candidate)):
        parts = [side.kind, *(part for part in (side.takes, side.returns) if part and expert())]
        st.caption(md("{}: {}, {}", title, side.name, ", ".join(parts)))
    for sentence in reading_shown(report.reading.sentences) if report.reading is not None else ():
        st.caption(sentence)
    show_notes(notes_shown(words.all_notes(report)))


def _page(report: CheckReport) -> str:
    from senseapp.views.report.document import build_check_page  # loads what reports are made with

    return build_check_page(report)
