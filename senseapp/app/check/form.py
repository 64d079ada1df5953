"""What is checked: original, compressed file, images and limits, and the button that starts it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import streamlit as st

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.analyze.checkpoint import choose_architecture
from senseapp.app.analyze.images import choose_images
from senseapp.app.analyze.model import choose_task, with_task
from senseapp.app.analyze.understood import UNDERSTOOD, as_told, preparation_fields, understand
from senseapp.app.common import backend
from senseapp.app.common.notices import errors_here, wait_for
from senseapp.app.common.state import kept, session
from senseapp.app.common.uploads import refuse_upload, upload_field
from senseapp.core.errors import InvalidCheckpoint, SenseError
from senseapp.core.markdown import md
from senseapp.records.candidate import Candidate
from senseapp.records.check import CheckSpec
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.access import UploadPurpose
from senseapp.tasks import CLASSIFICATION, Task, task_named

PARAMETER = "check"
"""Names the check that is shown in the address."""
_TASK_KEY = "check.task"
_TYPES = ["onnx", "safetensors", "pth", "pt", "bin", "ckpt", "tar"]
_UPLOAD, _RUN = "Upload a file", "From a run"


def check_form() -> None:
    """Show the fields of a check, and start it when the button is pressed."""
    session().complaint, session().told = "", ()
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown(md("## Original"))
        reference = _side("reference")
    with right:
        st.markdown(md("## Compressed file"))
        candidate = _side("candidate")
    st.markdown(md("## Images"))
    st.caption("Both files answer the same images. Take others than those that the compressed file was made with.")
    reference, images = _images(reference)
    st.markdown(md("## Limits"))
    task = task_named(reference.task if reference is not None else CLASSIFICATION.name)
    max_drop, max_time = _limits(task)
    spec = None
    if reference is not None and candidate is not None and images is not None:
        spec = CheckSpec(reference=reference, candidate=candidate, data=images, max_drop=max_drop, max_time=max_time)
    pressed = st.button(
        "Check",
        type="primary",
        icon=":material/fact_check:",
        key="check.start",
        disabled=spec is None,
        help=None if spec else session().complaint or "Choose both files and images.",
    )
    if pressed and spec is not None:
        _start(spec)


def _start(spec: CheckSpec) -> None:
    with errors_here():
        st.query_params[PARAMETER] = backend.service().checks.start(spec)
        st.rerun()


def _side(purpose: UploadPurpose) -> ModelSpec | None:
    """Show where one of both files comes from; None until it is there."""
    chosen = st.segmented_control(
        "Where it comes from",
        (_UPLOAD, _RUN),
        default=_UPLOAD,
        required=True,
        **kept(f"check.{purpose}.source"),
        label_visibility="collapsed",
    )
    if chosen == _RUN:
        return _of_run(purpose)
    path = upload_field(
        "A network in one file (ONNX), or its trained weights",
        purpose=purpose,
        types=_TYPES,
        help_text="An ONNX file that any program wrote, quantized or not, is run as it is. Of a checkpoint the "
        "architecture is recognised; a compressed one belongs to that of the original.",
    )
    if path is None:
        return None
    if purpose == "candidate":  # its task and its architecture are those of the reference
        return _as_model(path, task=CLASSIFICATION.name)
    if not _is_onnx(path):
        draft = _as_model(path, task=CLASSIFICATION.name)
        checkpoint = choose_architecture(path, draft, purpose=purpose)
        return None if checkpoint is None else with_task(checkpoint, draft.task, key=_TASK_KEY)
    reference = _as_model(path, task=choose_task(CLASSIFICATION.name, key=_TASK_KEY))
    try:
        if backend.card_of(reference) is None:
            wait_for(lambda: backend.card_of(reference), "Reading the original.")
    except InvalidCheckpoint as error:
        refuse_upload(purpose, str(error))
    except SenseError:  # onnxruntime may run it all the same: said below the images
        pass
    return reference


def _as_model(path: Path, *, task: str) -> ModelSpec:
    return ModelSpec(library="onnx" if _is_onnx(path) else "auto", checkpoint=str(path), task=task)


def _is_onnx(path: Path) -> bool:
    return path.suffix.lower() == ".onnx"


def _of_run(purpose: UploadPurpose) -> ModelSpec | None:
    """Offer finished runs: their uncompressed network as reference, their files as candidates."""
    finished = (record for record in backend.service().runs() if record.state is RunState.DONE)
    runs = {record.run_id: record for record in finished if record.spec.model.is_runnable}
    if not runs:
        st.caption("There is no finished run with a network yet.")
        return None
    run_id = st.selectbox(
        "Run",
        list(runs),
        format_func=lambda each: runs[each].title,
        key=f"check.{purpose}.run",
        help="The original is the uncompressed network of a run; the compressed file is one of its files.",
    )
    if purpose == "reference":
        return runs[run_id].spec.model
    return _file_of(runs[run_id])


def _file_of(record: RunRecord) -> ModelSpec | None:
    work = backend.service().work
    found: dict[str, tuple[Candidate, Path]] = {}
    for each in work.candidates(record.run_id):
        with suppress(SenseError):  # only its figures are on this server
            if each.form != "small":
                found[each.file] = each, work.candidate_file(record.run_id, each)
    if not found:
        st.caption("This run has no file yet. Make one on its Results page, or upload one.")
        return None
    names = {file: f"{each.title}: {each.headline}" for file, (each, _) in found.items()}
    model = record.spec.model
    candidate, path = found[choose_one("File", names, "", key="check.candidate.file", help_text="Of this run.")]
    if candidate.runs:
        return _as_model(path, task=model.task)
    return ModelSpec(library=model.library, name=model.name, checkpoint=str(path), task=model.task)


def _images(reference: ModelSpec | None) -> tuple[ModelSpec | None, DataSpec | None]:
    """Show the image picker and how the reference reads them; return what is compared."""
    draft = session().draft.data
    error = None
    if reference is not None:
        try:
            backend.card_of(reference)
        except SenseError as found:
            error = found
    _, images = choose_images(draft, reference if error is None else None)
    if images is not None and reference is not None and error is not None:
        return reference, _unseen(reference, images, error)
    st.markdown(md("## {}", UNDERSTOOD))
    seen = understand(reference, images, task_key=_TASK_KEY, button="Check")
    return seen.model, seen.images


def _unseen(reference: ModelSpec, images: DataSpec, error: SenseError) -> DataSpec:
    """Say why nothing is shown of the images, and let a person say how they are prepared; return them as told."""
    st.caption(f"Not shown as the original gets them: {error}")
    if not (images.path or images.name):
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
        "confidence on new images.",
    )
    time = right.number_input(
        "Largest time (times the original)",
        min_value=0.01,
        value=None,
        step=0.1,
        placeholder="no limit",
        **kept("check.time"),
        help="Median of calls in turns, on one thread of this machine.",
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
