"""Uploaded checkpoints: the proposed architecture to confirm, and what of the file does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pandas as pd
import streamlit as st

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.analyze.library import search_architecture
from senseapp.app.common import backend
from senseapp.app.common.notices import answer_or_wait, complain, show_notes
from senseapp.app.common.state import kept, session
from senseapp.app.common.uploads import LooseFiles, refuse_upload, upload_field
from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.markdown import Markdown, code, md
from senseapp.core.texts import plural
from senseapp.networks.sources.catalogue import IMAGENET_CLASSES, find_entry
from senseapp.records.spec import ModelSpec
from senseapp.server.access import UploadPurpose
from senseapp.server.model_cards import CheckpointReport
from senseapp.views.words import format as fmt

if TYPE_CHECKING:
    from senseapp.networks.checkpoints.recognise import ArchitectureMatch
    from senseapp.records.inputs import MatchReport


_TYPES = ["safetensors", "pth", "pt", "bin", "tar", "ckpt", "zip", "json", "pt2", "onnx"]
"""The last is a network of its own, which is read as such; the one before it is refused with a sentence."""
SOURCE_KEY = "analyze.model.source"
_FOLDER = LooseFiles(
    suffixes=frozenset({".json", ".safetensors", ".bin"}),
    most=8,
    words="files of one model folder",
    main=(".safetensors", ".bin"),
)
_LOOK_ALIKE = "look-alike"
_DIFFERENCES_SHOWN = 200  # rows of a table: enough for the layers of a large network, and quick to send


def choose_checkpoint(draft: ModelSpec) -> ModelSpec | None:
    """Show the uploader, then the architectures that the file may belong to; None until one that fits is chosen."""
    path = upload_field(
        "Checkpoint: the trained weights of a network of the library",
        purpose="checkpoint",
        types=_TYPES,
        help_text="A state dict as .safetensors or as a PyTorch file; or a model folder of timm or the Hugging Face "
        "hub, as a zip or as config.json and model.safetensors, chosen together. Files are read without running any "
        "code in them.",
        loose=_FOLDER,
    )
    if path is not None and path.suffix.lower() == ".onnx":
        _read_as_onnx(path)
    return None if path is None else choose_architecture(path, draft, purpose="checkpoint")


def _read_as_onnx(path: Path) -> NoReturn:
    """Go on where networks in ONNX files are read, with this file."""
    session().uploads["onnx"] = session().uploads.pop("checkpoint")
    model = ModelSpec(library="onnx", checkpoint=str(path), task=session().draft.model.task)
    session().draft = replace(session().draft, model=model)
    del st.session_state[SOURCE_KEY]
    st.rerun()


def choose_architecture(path: Path, draft: ModelSpec, *, purpose: UploadPurpose) -> ModelSpec | None:
    """Show the architectures that an uploaded file may belong to; None until one that fits is chosen."""
    report = _report(path, "", purpose)
    if report is not None and len(report.networks) > 1:
        report = _report(path, _choose_network(report.networks, draft, path), purpose)
    if report is None:
        return None
    model = _chosen_among(report, path, draft, purpose)
    return None if model is None else _fitting(replace(model, network=report.spec.network), report)


def _report(path: Path, network: str, purpose: UploadPurpose) -> CheckpointReport | None:
    """Return what is in a file, or None while it is read."""

    def identify() -> CheckpointReport | None:
        try:
            return backend.checkpoint_of(path, network=network)
        except InvalidCheckpoint as error:
            refuse_upload(purpose, str(error))

    return answer_or_wait(
        identify,
        "Reading the checkpoint and recognising its architecture.",
        question=("checkpoint", path, network),
        key="analyze.checkpoint.again",
    )


def _choose_network(networks: Sequence[str], draft: ModelSpec, path: Path) -> str:
    """Offer the networks of a file that holds several; the first by default, for which nothing needs to be kept."""
    chosen = choose_one(
        "Network in the file",
        {title: title for title in networks},
        draft.network,
        key=f"analyze.model.network.{path.parent.name}",
        help_text="The file holds several networks, or several copies of one: a student and its teacher, or plain and "
        "averaged (EMA) weights. Averaged ones are usually those that are deployed.",
    )
    return "" if chosen == networks[0] else chosen


def _chosen_among(report: CheckpointReport, path: Path, draft: ModelSpec, purpose: UploadPurpose) -> ModelSpec | None:
    by_title = {item.title: item for item in report.candidates}
    alike, options = report.look_alikes, {}
    if len(alike) > 1:
        others = "a look-alike" if len(alike) == 2 else f"one of {len(alike) - 1} look-alikes"
        options[_LOOK_ALIKE] = f"{alike[0].title} or {others} · the images decide"
    options |= {title: _option(item) for title, item in by_title.items()}
    options["another"] = "Another architecture …"
    chosen = choose_one(
        "Architecture",
        options,
        draft.title,
        key=f"analyze.model.architecture.{path.parent.name}",
        help_text="Recognised from the names and shapes of the weights alone. The likeliest comes first: confirm it, "
        "or choose another. Of several that look alike, the images choose the one with which the model answers best.",
    )
    item = by_title.get(chosen)
    if report.proposal is None:
        st.warning(report.verdict, icon=":material/help:")
    elif chosen == next(iter(options)):
        st.caption(md(":material/help: {}" if alike[0].by_order else ":material/check_circle: {}", report.verdict))
    elif item is not None and item.by_order:
        st.caption(
            md(
                ":material/help: Names are unknown; order and shapes fit {}. This is a guess: the accuracy of the "
                "uncompressed network on your images confirms or refutes it.",
                chosen,
            )
        )
    if chosen == _LOOK_ALIKE:
        st.markdown(_read_off(alike[0], report))
        return ModelSpec(library="auto", checkpoint=str(path))
    if item is not None:
        st.markdown(_read_off(item, report))
        return _with_random_head(item, report.model(item)) if item.without_head else report.model(item)
    entry = search_architecture(default=draft.title if draft.name else "", key=f"analyze.model.{purpose}")
    return ModelSpec(library=entry.library, name=entry.name, checkpoint=str(path)) if entry else None


def _with_random_head(item: ArchitectureMatch, model: ModelSpec) -> ModelSpec | None:
    """Offer to measure a checkpoint without classifier; None until that is wanted."""
    wanted = st.toggle(
        "Measure with a random classifier",
        **kept(f"analyze.model.head.{item.title}"),
        help="The file has all weights but those of the classifier. A random one in its place knows no classes, so "
        "labels are not used; harm shows how far the output moves when a layer is compressed.",
    )
    entry = find_entry(item.library, item.name)
    num_classes = (entry.num_classes if entry else 0) or IMAGENET_CLASSES
    return replace(model, num_classes=num_classes) if wanted else None


def _option(item: ArchitectureMatch) -> str:
    if item.exact:
        return f"{item.title} · every name and shape fits"
    if item.by_order:
        return f"{item.title} · order and shapes fit, under other names"
    if item.surplus and item.head is None:
        return f"{item.title} · all its weights are there, and others"
    if item.fits:
        return f"{item.title} · all fits but for the name of the classifier"
    if item.without_head:
        return f"{item.title} · all fits, the classifier is missing"
    return f"{item.title} · {item.score:.0%} alike"


def _read_off(item: ArchitectureMatch, report: CheckpointReport) -> Markdown:
    """Return the facts read from the file: tensors, classes, channels, image size, and the network's place in it."""
    parts = [fmt.plural(report.num_tensors, "tensor")]
    if item.num_classes is not None:
        entry = find_entry(item.library, item.name)
        others = f" (the head is built for them; {item.name} comes with {entry.num_classes:,})" if entry else ""
        is_usual = entry is None or entry.num_classes == item.num_classes
        parts.append(plural(item.num_classes, "class", "classes") + ("" if is_usual else others))
    if item.in_chans is not None:
        parts.append(fmt.plural(item.in_chans, "channel"))
    if item.img_size is not None:
        parts.append(f"{item.img_size} × {item.img_size} pixels")
    if report.network:
        parts.append(md("taken out of ") + code(report.network))
    return md("Read from the file: ") + md(" · ").join(parts)


def _fitting(model: ModelSpec, report: CheckpointReport) -> ModelSpec | None:
    """Return ``model`` if the checkpoint fits it; else show what differs."""
    asked = replace(model, network="", num_classes=None)
    if model.library == "auto" or any(
        (item.fits or item.without_head) and replace(report.model(item), network="") == asked
        for item in report.candidates
    ):
        return model
    fit = answer_or_wait(
        lambda: backend.fit_of(model),
        f"Comparing the file with {model.title}.",
        question=("fit", model),
        key="analyze.fit.again",
    )
    if fit is not None and fit.fits:
        return model
    if fit is not None:
        _show_differences(fit, model.title, report)
    return None


def _show_differences(fit: MatchReport, title: str, report: CheckpointReport) -> None:
    complain(f"{fmt.plural(len(fit.differences), 'weight')} do not fit {title}. {fit.cause}")
    rows = [
        {"Difference": item.kind, "Weight": item.name, "Network": _shape(item.expected), "File": _shape(item.found)}
        for item in fit.differences[:_DIFFERENCES_SHOWN]
    ]
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        height=min(38 + 35 * len(rows), 280),
        alt=f"Weights of the file that do not fit {title}",
    )
    show_notes(report.notes)


def _shape(sizes: tuple[int, ...] | None) -> str:
    return "" if sizes is None else " × ".join(map(str, sizes)) or "one number"
