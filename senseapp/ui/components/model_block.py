"""Block 1 of the Analyze page: which network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from senseapp.models.catalogue import CatalogueEntry, search
from senseapp.spec import ModelSpec
from senseapp.ui import format as fmt
from senseapp.ui.components.notices import complain
from senseapp.ui.uploads import upload_field

__all__ = ["choose_model"]

_SHOWN = 6
_MOST_FOUND = 200
_CHECKPOINT_TYPES = ["safetensors", "pth", "pt", "bin", "tar", "ckpt"]


def choose_model(draft: ModelSpec) -> ModelSpec | None:
    """Show the model picker, prefilled with ``draft``; None while nothing valid is chosen."""
    labels = [source.label for source in _SOURCES]
    chosen = st.segmented_control(
        "Where it comes from",
        labels,
        default=labels[_source_of(draft)],
        required=True,
        key="analyze.model.source",
        help="The demo is a small network that reads handwritten digits. The library holds the networks of timm and "
        "torchvision. Your own checkpoint is a file of weights.",
        persist_state="session",
    )
    source = next((source for source in _SOURCES if source.label == chosen), _SOURCES[0])
    return source.choose(draft)


def _source_of(draft: ModelSpec) -> int:
    if draft.checkpoint:
        return 2
    return 0 if draft.library == "demo" else 1


def _demo(draft: ModelSpec) -> ModelSpec:
    st.caption("A small residual network that reads handwritten digits. It ships with senseapp; nothing to download.")
    return ModelSpec()


def _library(draft: ModelSpec) -> ModelSpec | None:
    entry = _search(default=draft.name, key="library", required=True)
    if entry is None:
        return None
    pretrained = False
    if entry.pretrained:
        pretrained = st.toggle(
            "Use the published weights",
            value=True,
            key="analyze.model.pretrained",
            help="Downloaded once by the library, then kept. Without them the weights are random: layer costs are "
            "right, sensitivities mean little.",
            persist_state="session",
        )
    return ModelSpec(library=entry.library, name=entry.name, pretrained=pretrained)


def _search(*, default: str, key: str, required: bool) -> CatalogueEntry | None:
    text = st.text_input(
        "Search" if required else "Architecture (leave empty to recognise it from the file)",
        value=default,
        placeholder="resnet18, vit tiny, mobilenet …",
        type="search",
        key=f"analyze.model.{key}.search",
        help="A part of a name, or several: resnet, vit tiny. Both libraries are searched.",
        persist_state="session",
    )
    if not text:
        if required:
            st.caption("Type a part of a name, for example resnet18.")
        return None
    found = search(text, limit=_MOST_FOUND)
    if not found:
        complain(
            f"No network of timm or torchvision is called {text!r}. Try a shorter part of the name, such as resnet."
        )
        return None
    return _choose_entry(found, key)


def _choose_entry(found: list[CatalogueEntry], key: str) -> CatalogueEntry | None:
    shown = found[:_SHOWN]
    title = st.radio(
        f"Found {fmt.plural(len(found), 'network')}" + (" or more" if len(found) == _MOST_FOUND else ""),
        [entry.title for entry in shown],
        captions=[_entry_line(entry) for entry in shown],
        key=f"analyze.model.{key}.entry",
        help="Parameters, multiply-accumulates for one image, input size, and whether trained weights are published.",
    )
    if len(found) > _SHOWN:
        st.caption(f"The first {_SHOWN} are shown; type more of the name to see others.")
    return next((entry for entry in shown if entry.title == title), shown[0])


def _entry_line(entry: CatalogueEntry) -> str:
    return " · ".join(
        (
            fmt.count(entry.num_params, unit="parameters"),
            fmt.macs(entry.macs) if entry.macs is not None else "MACs unknown",
            f"{fmt.shape(entry.input_shape)} input",
            "weights available" if entry.pretrained else "no published weights",
        )
    )


def _checkpoint(draft: ModelSpec) -> ModelSpec | None:
    path = upload_field(
        "Checkpoint",
        purpose="checkpoint",
        types=_CHECKPOINT_TYPES,
        help_text="A state dict as .safetensors or as a PyTorch file. Files are read without running any code in them.",
    )
    if path is None:
        return None
    entry = _search(default=draft.name, key="checkpoint", required=False)
    classes = st.number_input(
        "Classes",
        min_value=1,
        value=None,
        placeholder="read from the file",
        key="analyze.model.classes",
        help="Width of the output. Leave empty to read it from the file.",
        persist_state="session",
        width=220,
    )
    library, name = (entry.library, entry.name) if entry else ("auto", "")
    return ModelSpec(library=library, name=name, checkpoint=str(path), num_classes=classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    label: str
    choose: Callable[[ModelSpec], ModelSpec | None]


_SOURCES = (
    _Source(label="Demo", choose=_demo),
    _Source(label="Library", choose=_library),
    _Source(label="Upload a checkpoint", choose=_checkpoint),
)
