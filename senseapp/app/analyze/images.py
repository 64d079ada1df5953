"""Block 2 of the Analyze page: the choice of images, their preprocessing, and a preview with predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import streamlit as st

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.analyze.class_mapping import confirm_classes
from senseapp.app.common import backend
from senseapp.app.common.download import download
from senseapp.app.common.notices import answer_or_wait, complain
from senseapp.app.common.uploads import LooseFiles, forget_refusal, upload_field
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.data.contents import PICTURE_SUFFIXES
from senseapp.data.downloads import is_downloaded
from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.records.inputs import PreparationChoice, PreviewReport, SeenPicture
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.image_report import sample_zip
from senseapp.server.inputs import DETECTION_DEMO
from senseapp.server.settings import configured_data_roots
from senseapp.tasks import task_named
from senseapp.views.words import format as fmt

_LONGEST_NAME = 16  # characters in one line below a thumbnail
_THUMBNAIL_PIXELS = 96  # wide enough to recognise a picture by
_ROW_PIXELS = 656  # six of them; three on a phone


def image_preview(model: ModelSpec, images: DataSpec, *, button: str) -> tuple[ModelSpec, DataSpec | None]:
    """Show some of the images with label and prediction, and the baseline; a sentence if they cannot be used.

    Args:
        model: that sees them.
        images: shown in part.
        button: the label of the one that can be pressed meanwhile.

    Returns:
        What to measure: where the preprocessing is chosen by the images, with what was chosen. No images where they
        cannot be used.
    """
    if not _is_known(model):
        return model, images
    spec = RunSpec(model=model, data=images)
    report = _report(spec, button)
    if report is not None and report.choice is not None:
        spec = choose_preprocessing(report.choice)
        if spec != report.choice.spec:
            report = _report(spec, button)
    if report is not None:
        _show(report, spec.model)
        _offer_turning(report, images)
    elif _is_refused(spec):
        return spec.model, None
    return spec.model, spec.data


def _offer_turning(report: PreviewReport, images: DataSpec) -> None:
    """Show the switch beside the thumbnails where pictures have a rotation mark; it is read before the next preview."""
    if report.num_marked:
        st.toggle(
            f"Turn pictures upright ({fmt.plural(report.num_marked, 'picture')} with a rotation mark)",
            value=images.upright,
            key=_turning_key(images),
            help="Cameras store a mark (EXIF orientation) in place of turning a picture. Most networks are trained on "
            "pictures as they are stored; turn them where yours was trained on upright ones.",
            persist_state="session",
        )


def _turning_key(images: DataSpec) -> str:
    return f"analyze.data.upright.{_place(images.path)}"


def _is_refused(spec: RunSpec) -> bool:
    """Return whether the images cannot be used; the reason is shown here already."""
    try:
        backend.preview_of(spec)
    except SenseError:
        return True
    return False


def _report(spec: RunSpec, button: str) -> PreviewReport | None:
    """Return the report on the images; None while it is computed, with a line that says so."""
    doing = "Preparing a preview"
    if spec.data.preparation == "auto":
        doing = "Trying on some of the images which preprocessing suits the model"
    return answer_or_wait(
        lambda: backend.preview_of(spec),
        f"{doing}. You can already press {button}.",
        question=("preview", spec),
        key="analyze.preview.again",
    )


def choose_preprocessing(choice: PreparationChoice) -> RunSpec:
    """Show what was tried and how it did, the chosen one first; return the settings that are left or picked."""
    if choice.chosen is None:
        return choice.spec
    st.caption(md(":material/help: {}" if choice.guess else ":material/check_circle: {}", choice.verdict))
    for caveat in choice.caveats:
        st.caption(md(":material/info: {}", caveat))
    if len(choice.trials) < 2:
        return choice.spec
    trials = {trial.title: trial for trial in sorted(choice.trials, key=lambda trial: trial != choice.chosen)}
    picked = choose_one(
        choice.subject,
        {title: f"{title} · {trial.result}" for title, trial in trials.items()},
        choice.chosen.title,
        key=f"analyze.data.preprocessing.{_place(choice.spec.model.checkpoint)}.{_place(choice.spec.data.path)}",
        help_text="What was tried on some of the images. The chosen one comes first, the others by how well the model "
        "answers.",
    )
    return choice.spec if trials[picked] == choice.chosen else trials[picked].spec


def _place(path: str) -> str:
    """Return what tells uploads apart; a key is seen in the browser, and where files lie is not to be."""
    return Path(path).parent.name


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
        caption = None if picture.drawn else _caption(picture)
        frame.image(picture.png, caption=caption, width="stretch", alt=_description(picture))
        for png, what in zip(picture.drawn, ("Prediction", "As labelled"), strict=False):
            frame.image(png, caption=what, width="stretch", alt=f"{picture.name}: {what.lower()} drawn in it")
    for note in report.notes:
        st.caption(md(":material/info: {}", note))


def _baseline(report: PreviewReport, model: ModelSpec) -> str:
    if report.score is None:
        labelled = any(picture.label for picture in report.pictures)
        none = "" if labelled else " There are no labels to compare with."
        return f"As the network sees them, with its prediction.{none}"
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


def choose_image_set(draft: DataSpec) -> DataSpec:
    """Show the image sets, prefilled with ``draft``."""
    name = choose_one(
        "Image set",
        {name: _option(name) for name in IMAGE_SETS},
        draft.name,
        key="analyze.data.set",
        help_text="Published sets of labelled images. torchvision downloads one once; then it is kept for everybody on "
        "this machine. Where there is a part for testing, that part is measured on.",
    )
    return DataSpec(kind="torchvision", name=name)


def _option(name: str) -> str:
    facts = IMAGE_SETS[name]
    images = fmt.plural(facts.num_images, "image")
    return f"{facts.title} · {facts.line} · {facts.num_classes} classes · {images}"


def is_wanted(name: str) -> bool:
    """Return whether the images may be looked at now; else offer to download them."""
    if is_downloaded(name):
        return True
    key = f"analyze.data.set.wanted.{name}"
    if st.session_state.get(key):
        return True
    row = st.container(horizontal=True, vertical_alignment="center")
    row.caption(
        md(
            ":material/cloud_download: Not on this machine yet: {} MB. Run downloads it first, or download it now to "
            "see the images.",
            IMAGE_SETS[name].megabytes,
        )
    )
    row.button("Download now", key="analyze.data.set.download", on_click=_want, args=(key,), width="content")
    return False


def _want(key: str) -> None:
    st.session_state[key] = True


_Chosen: TypeAlias = tuple[ModelSpec | None, DataSpec | None]


def choose_images(
    draft: DataSpec,
    model: ModelSpec | None,
    *,
    button: str = "Run",
    unseen: str = "Once the model above is known, this shows how it sees the images.",
) -> _Chosen:
    """Show the image picker, prefilled with ``draft``; return the model and the images to measure it on.

    ``button`` is the label of the one that starts the measurement, ``unseen`` what is said without a model.

    The model is ``model`` itself, or what the images say about its architecture and its image size. The images are
    None while nothing valid is chosen.
    """
    kinds = {label: kind for label, (kind, _) in _SOURCES.items() if kind != "folder" or configured_data_roots()}
    labels = list(kinds)
    chosen = st.segmented_control(
        "Where they come from",
        labels,
        default=next((label for label, kind in kinds.items() if kind == draft.kind), labels[0]),  # the demo's are first
        required=True,
        key="analyze.data.source",
        help="Images like those the model will see. In class folders they also give accuracy; without labels the "
        "output is compared with the original model's.",
        persist_state="session",
    )
    kind, choose = _SOURCES[chosen if chosen in kinds else labels[0]]
    if kind != "archive":
        forget_refusal("images")
    images = choose(draft) if choose else _demo(model)
    if images is None or model is None:
        if images is not None:
            st.caption(unseen)
        return model, images
    if model.checkpoint and (images.path or images.name):  # it does not say how its pictures were prepared
        images = replace(images, preparation="auto")
    if images.name and not is_wanted(images.name):
        return model, images
    if images.path or images.name:
        model, images = confirm_classes(images, model, draft)
    if images is not None and images.kind != "random":
        if images.path:
            before = draft.upright if draft.path == images.path else False
            images = replace(images, upright=bool(st.session_state.get(_turning_key(images), before)))
        return image_preview(model, images, button=button)
    return model, images


def _demo(model: ModelSpec | None) -> DataSpec:
    """Return the images that ship for this model: digits, shapes, else photographs."""
    if model is None or model == ModelSpec():
        st.caption("Handwritten digits that the demo model was not trained on (UCI, licence CC BY 4.0), with labels.")
        return DataSpec()
    if model == DETECTION_DEMO.model:
        st.caption("Coloured rectangles on crops of freely licensed photographs, made by code, with their boxes.")
        return DETECTION_DEMO.data
    st.caption(
        "Crops of freely licensed photographs, without labels: outputs are compared with the original model's. For a "
        "network that is made for other things than photographs, bring images of your own."
    )
    return DataSpec(kind="photographs")


_PICTURES = LooseFiles(suffixes=PICTURE_SUFFIXES, most=300, words="pictures", archive="pictures.zip", alone=True)


def _archive(draft: DataSpec) -> DataSpec | None:
    path = upload_field(
        "Images",
        purpose="images",
        types=["zip", "tar", "tgz", "tar.gz", *(suffix.removeprefix(".") for suffix in sorted(PICTURE_SUFFIXES))],
        help_text="A zip or tar of images, best in one folder per class, or the pictures themselves, several at once. "
        "A few hundred images are usually enough.",
        loose=_PICTURES,
    )
    if path is None:
        st.download_button(
            "Download a sample zip",
            download(sample_zip),
            file_name="senseapp-sample.zip",
            mime="application/zip",
            key="analyze.data.sample",
            icon=":material/download:",
            type="tertiary",
            on_click="ignore",
            help="Handwritten digits in class folders: what an archive of images looks like.",
        )
    return DataSpec(kind="archive", path=str(path)) if path else None


def _folder(draft: DataSpec) -> DataSpec | None:
    roots = configured_data_roots()
    text = st.text_input(
        "Folder on the server",
        max_chars=4_096,
        value=draft.path or str(roots[0]),
        key="analyze.data.folder",
        help="Folders that this server lets you read: " + ", ".join(str(root) for root in roots),
        persist_state="session",
    )
    folder = Path(text or "").expanduser()
    if not folder.is_dir() or not any(folder.resolve().is_relative_to(root) for root in roots):
        offered = ", ".join(str(root) for root in roots)
        complain(f"Images are read from a folder in {offered}; {text!r} is not one. Check the path.")
        return None
    return DataSpec(kind="folder", path=str(folder))


def _random(draft: DataSpec) -> DataSpec:
    st.caption(
        md("Random inputs, **indicative only**: they show which layers move the output, not which cost accuracy.")
    )
    return DataSpec(kind="random")


_SOURCES: dict[str, tuple[str, Callable[[DataSpec], DataSpec | None] | None]] = {
    "Demo": ("demo", None),  # which images these are, the model says
    "Upload images": ("archive", _archive),
    "Server folder": ("folder", _folder),
    "Public set": ("torchvision", choose_image_set),
    "None": ("random", _random),
}
