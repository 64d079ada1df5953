"""Twelve pictures as the network sees them, and what the uncompressed model makes of them."""

from __future__ import annotations

import streamlit as st

from senseapp.errors import SenseError
from senseapp.service import PreviewReport, SeenPicture
from senseapp.spec import DataSpec, ModelSpec, RunSpec
from senseapp.tasks import task_named
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.components.notices import complain
from senseapp.ui.components.preprocessing_choice import choose_preprocessing
from senseapp.ui.components.waiting import wait_for

_LONGEST_NAME = 16
_THUMBNAIL_PIXELS = 96
_ROW_PIXELS = 656  # six of them; three on a phone


def image_preview(model: ModelSpec, images: DataSpec) -> tuple[ModelSpec, DataSpec]:
    """Show some of the images with label and prediction, and the baseline; a sentence if they cannot be used.

    Returns:
        What to measure: where the preprocessing is chosen by the images, with what was chosen.
    """
    if not _is_known(model):
        return model, images
    spec = RunSpec(model=model, data=images)
    report = _report(spec)
    if report is not None and report.choice is not None:
        spec = choose_preprocessing(report.choice)
        if spec != report.choice.spec:
            report = _report(spec)
    if report is not None:
        _show(report, spec.model)
    return spec.model, spec.data


def _report(spec: RunSpec) -> PreviewReport | None:
    """Return what is known of the images, or None with a word on why it is not there yet."""
    try:
        report = backend.preview_of(spec)
    except SenseError as error:
        complain(str(error))
        st.button("Try again", key="analyze.preview.again", on_click=backend.forget, args=("preview", spec))
        return None
    if report is None:
        doing = "Preparing a preview"
        if spec.data.preparation == "auto":
            doing = "Trying on some of the images which preprocessing suits the model"
        wait_for(lambda: backend.preview_of(spec), f"{doing}. You can already press Run.")
    return report


def _is_known(model: ModelSpec) -> bool:
    """Return whether the model's card is there; what keeps it from coming is said where the model is chosen."""
    try:
        return backend.card_of(model) is not None
    except SenseError:
        return False


def _show(report: PreviewReport, model: ModelSpec) -> None:
    st.markdown(_baseline(report, model))
    if report.warning:
        st.warning(report.warning, icon=":material/warning:")
    row = st.container(horizontal=True, gap="small", width=_ROW_PIXELS, key="preview_pictures")
    for picture in report.pictures:
        frame = row.container(width=_THUMBNAIL_PIXELS)
        frame.image(picture.png, caption=_caption(picture), width="stretch", alt=_description(picture))
    for note in report.notes:
        st.caption(f":material/info: {note}")


def _baseline(report: PreviewReport, model: ModelSpec) -> str:
    if report.score is None:
        return "As the network sees them, with its prediction. There are no labels to compare with."
    line = task_named(model.task).preview_line(report.score, fmt.plural(report.num_scored, "image"))
    return f"As the network sees them. {line}"


def _caption(picture: SeenPicture) -> str:
    prediction = fmt.cut_middle(picture.prediction, _LONGEST_NAME)
    if not picture.label:
        return f"seen as {prediction}"
    label = fmt.cut_middle(picture.label, _LONGEST_NAME)
    return label if picture.label == picture.prediction else f"{label}, seen as {prediction}"


def _description(picture: SeenPicture) -> str:
    label = f"label {picture.label}, " if picture.label else ""
    return f"{picture.name}: {label}predicted {picture.prediction}"
