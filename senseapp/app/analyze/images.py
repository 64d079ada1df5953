"""Block 2 of the Analyze page: the choice of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import streamlit as st

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.analyze.class_mapping import confirm_classes
from senseapp.app.common.download import offer_file
from senseapp.app.common.notices import complain
from senseapp.app.common.state import filled, kept, session
from senseapp.app.common.uploads import LooseFiles, forget_refusal, upload_field
from senseapp.core.markdown import md
from senseapp.data.contents import PICTURE_SUFFIXES, UNLABELLED
from senseapp.data.downloads import is_downloaded
from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.server.inputs import DETECTION_DEMO
from senseapp.server.run_requests import sample_zip
from senseapp.server.settings import configured_data_roots


def choose_image_set(draft: DataSpec) -> DataSpec:
    """Show the image sets, prefilled with ``draft``."""
    name = choose_one(
        "Image set",
        {
            name: f"{facts.title} · {facts.line} · {facts.num_classes} classes · {facts.num_images:,} images"
            for name, facts in IMAGE_SETS.items()
        },
        draft.name,
        key="analyze.data.set",
        help_text="Published sets of labelled images. torchvision downloads one once; then it is kept for everybody on "
        "this machine. Where there is a part for testing, that part is measured on.",
    )
    return DataSpec(kind="torchvision", name=name)


def is_at_hand(images: DataSpec) -> bool:
    """Return whether the images may be looked at now: those of a set once it is here, or was asked for."""
    return not images.name or is_downloaded(images.name) or bool(st.session_state.get(_wanted_key(images.name)))


def _wanted_key(name: str) -> str:
    return f"analyze.data.set.wanted.{name}"


def _offer_download(name: str) -> None:
    row = st.container(horizontal=True, vertical_alignment="center")
    row.caption(
        md(
            ":material/cloud_download: Not on this machine yet: {} MB. Run downloads it first, or download it now to "
            "see the images.",
            IMAGE_SETS[name].megabytes,
        )
    )
    wanted = {_wanted_key(name): True}
    row.button("Download now", key="analyze.data.set.download", on_click=st.session_state.update, args=(wanted,))


def choose_images(draft: DataSpec, model: ModelSpec | None) -> tuple[ModelSpec | None, DataSpec | None]:
    """Show the image picker, prefilled with ``draft``; return the model and the images to measure it on.

    The model is ``model`` itself, or of the task that the labels call for. The images are None while nothing valid is
    chosen.
    """
    kinds = {label: kind for label, (kind, _) in _SOURCES.items() if kind != "folder" or configured_data_roots()}
    labels = list(kinds)
    chosen = st.segmented_control(
        "Where they come from",
        labels,
        required=True,
        help="Images like those the model will see. In class folders they also give accuracy; without labels the "
        "output is compared with the original model's.",
        **filled(
            "analyze.data.source",
            next((label for label, kind in kinds.items() if kind == draft.kind), labels[0]),  # the demo's are first
        ),
    )
    kind, choose = _SOURCES[chosen if chosen in kinds else labels[0]]
    if kind != "archive":
        forget_refusal("images")
    images = choose(draft) if choose else _demo(draft, model)
    if images is None or model is None:
        return model, images
    if model.checkpoint and images.kind != "random":  # it does not say how its pictures were prepared
        images = replace(images, preparation="auto")
    if not is_at_hand(images):
        _offer_download(images.name)
    elif images.path or images.name:
        return confirm_classes(images, model, draft)
    return model, images


_PHOTOGRAPHS_KEY = "analyze.data.photographs"


def _demo(draft: DataSpec, model: ModelSpec | None) -> DataSpec | None:
    """Return the images that ship for this model: digits, shapes, else photographs; for an uploaded one on request."""
    if model is None or model == ModelSpec():
        st.caption("Handwritten digits that the demo model was not trained on (UCI, licence CC BY 4.0), with labels.")
        return DataSpec()
    if model == DETECTION_DEMO.model:
        st.caption("Coloured rectangles on crops of freely licensed photographs, made by code, with their boxes.")
        return DETECTION_DEMO.data
    if model.checkpoint and draft.kind != "photographs" and not st.session_state.get(_PHOTOGRAPHS_KEY):
        st.info("Bring images like those that the network is made for, or take the photographs of the demo.")
        st.button(
            "Take photographs",
            key="analyze.data.take",
            on_click=st.session_state.update,
            args=({_PHOTOGRAPHS_KEY: True},),
        )
        return None
    session().told = (UNLABELLED,)
    st.caption(f"Crops of freely licensed photographs. {UNLABELLED}")
    return DataSpec(kind="photographs")


_ANNOTATIONS = frozenset({".csv", ".tsv", ".txt", ".json", ".jsonl", ".xml", ".yaml", ".yml"})
_FILES = LooseFiles(
    suffixes=PICTURE_SUFFIXES | _ANNOTATIONS | {".zip"},
    most=300,
    words="pictures, zips of them, and tables, annotations or masks",
    archive="pictures.zip",
    main=(".zip",),
    grows=True,
)


def _archive(draft: DataSpec) -> DataSpec | None:
    path = upload_field(
        "Images",
        purpose="images",
        types=["tar", "tgz", "tar.gz", *(suffix.removeprefix(".") for suffix in sorted(_FILES.suffixes))],
        help_text="Pictures, zips of them (best in one folder per class), tables of labels, annotations and masks: "
        "together or one after the other. A few hundred pictures are usually enough.",
        loose=_FILES,
    )
    if path is None:
        offer_file(
            "Download a sample zip",
            sample_zip,
            "senseapp-sample.zip",
            key="analyze.data.sample",
            type="tertiary",
            help="Handwritten digits in class folders: what an archive of images looks like.",
        )
    return DataSpec(kind="archive", path=str(path)) if path else None


def _folder(draft: DataSpec) -> DataSpec | None:
    roots = configured_data_roots()
    text = st.text_input(
        "Folder on the server",
        max_chars=4_096,
        value=draft.path or str(roots[0]),
        **kept("analyze.data.folder"),
        help="Folders that this server lets you read: " + ", ".join(str(root) for root in roots),
    )
    folder = Path(text or "").expanduser()
    if not folder.is_dir() or not any(folder.resolve().is_relative_to(root) for root in roots):
        offered = ", ".join(str(root) for root in roots)
        complain(f"Images are read from a folder in {offered}; {text!r} is not one. Check the path.")
        return None
    return DataSpec(kind="folder", path=str(folder))


def _random(draft: DataSpec) -> DataSpec:
    st.caption("Random inputs, indicative only: they show which layers move the output, not which cost accuracy.")
    return DataSpec(kind="random")


_SOURCES: dict[str, tuple[str, Callable[[DataSpec], DataSpec | None] | None]] = {
    "Demo": ("demo", None),  # which images these are, the model says
    "Upload images": ("archive", _archive),
    "Server folder": ("folder", _folder),
    "Public set": ("torchvision", choose_image_set),
    "None": ("random", _random),
}
