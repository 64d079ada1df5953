"""Block 2 of the Analyze page: which images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import streamlit as st

from senseapp.service import sample_zip
from senseapp.spec import DataSpec, ModelSpec
from senseapp.ui import backend
from senseapp.ui.components.class_mapping import confirm_classes
from senseapp.ui.components.image_preview import image_preview
from senseapp.ui.components.image_set_choice import choose_image_set, is_wanted
from senseapp.ui.components.notices import complain
from senseapp.ui.uploads import upload_field

_Chosen: TypeAlias = tuple[ModelSpec | None, DataSpec | None]


def choose_images(draft: DataSpec, model: ModelSpec | None) -> _Chosen:
    """Show the image picker, prefilled with ``draft``; return the model and the images to measure it on.

    The model is ``model`` itself, or what the images say about its architecture and its image size. The images are
    None while nothing valid is chosen.
    """
    sources = [source for source in _SOURCES if source.kind != "folder" or backend.data_roots()]
    labels = [source.label for source in sources]
    chosen = st.segmented_control(
        "Where they come from",
        labels,
        default=next((source.label for source in sources if source.kind == draft.kind), labels[0]),
        required=True,
        key="analyze.data.source",
        help="Images like those the model will see. In class folders they also give accuracy; without labels the "
        "output is compared with the original model's.",
        persist_state="session",
    )
    source = next((source for source in sources if source.label == chosen), sources[0])
    images = source.choose(draft)
    if images is None or model is None:
        if images is not None:
            st.caption("Choose a model above to see how it sees the images.")
        return model, images
    if model.checkpoint and (images.path or images.name):  # it does not say how its pictures were prepared
        images = replace(images, preparation="auto")
    if images.name and not is_wanted(images.name):
        return model, images
    if images.path or images.name:
        images = confirm_classes(images, model, draft)
    if images is not None and images.kind == "demo" and model.library != "demo":
        st.warning(
            "The demo images are handwritten digits. For another model bring images of your own, or choose None.",
            icon=":material/warning:",
        )
    elif images is not None and images.kind != "random":
        return image_preview(model, images)
    return model, images


def _demo(draft: DataSpec) -> DataSpec:
    st.caption("Handwritten digits that the demo model was not trained on (UCI, licence CC BY 4.0), with labels.")
    return DataSpec()


def _archive(draft: DataSpec) -> DataSpec | None:
    path = upload_field(
        "Images",
        purpose="images",
        types=["zip", "tar", "tgz", "tar.gz"],
        help_text="A zip or tar of images, best in one folder per class. A few hundred images are usually enough.",
    )
    if path is None:
        st.download_button(
            "Download a sample zip",
            sample_zip,
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
    roots = backend.data_roots()
    text = st.text_input(
        "Folder on the server",
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
    st.caption("Random inputs, **indicative only**: they show which layers move the output, not which cost accuracy.")
    return DataSpec(kind="random")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    kind: str
    label: str
    choose: Callable[[DataSpec], DataSpec | None]


_SOURCES = (
    _Source(kind="demo", label="Demo", choose=_demo),
    _Source(kind="archive", label="Upload images", choose=_archive),
    _Source(kind="folder", label="Server folder", choose=_folder),
    _Source(kind="torchvision", label="Public set", choose=choose_image_set),
    _Source(kind="random", label="None", choose=_random),
)
