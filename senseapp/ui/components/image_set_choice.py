"""The published image sets that torchvision downloads: which one, and whether it is here."""

from __future__ import annotations

import streamlit as st

from senseapp.downloads import is_downloaded
from senseapp.spec import IMAGE_SETS, DataSpec
from senseapp.ui import format as fmt


def choose_image_set(draft: DataSpec) -> DataSpec:
    """Show the image sets, prefilled with ``draft``."""
    names = list(IMAGE_SETS)
    name = st.selectbox(
        "Image set",
        names,
        index=names.index(draft.name) if draft.name in IMAGE_SETS else 0,
        format_func=_option,
        key="analyze.data.set",
        help="Published sets of labelled images. torchvision downloads one once; then it is kept for everybody on "
        "this machine. Where there is a part for testing, that part is measured on.",
        persist_state="session",
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
        f":material/cloud_download: Not on this machine yet: {IMAGE_SETS[name].megabytes} MB. Run downloads it first, "
        "or download it now to see the images."
    )
    row.button("Download now", key="analyze.data.set.download", on_click=_want, args=(key,), width="content")
    return False


def _want(key: str) -> None:
    st.session_state[key] = True
