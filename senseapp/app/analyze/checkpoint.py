"""Architectures: a search over timm and torchvision, and what an uploaded checkpoint is recognised as."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.common import backend
from senseapp.app.common.notices import answer_or_wait, complain, show_notes
from senseapp.app.common.state import kept, session
from senseapp.app.common.uploads import LooseFiles, refuse_upload, upload_field
from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.markdown import Markdown, code, md
from senseapp.core.texts import plural
from senseapp.data.downloads import weights_here
from senseapp.networks.sources.catalogue import IMAGENET_CLASSES, CatalogueEntry, family_refusal, find_entry, suggest
from senseapp.records.spec import ModelSpec
from senseapp.server.access import UploadPurpose
from senseapp.server.model_cards import CheckpointReport
from senseapp.views.words import format as fmt

if TYPE_CHECKING:
    from senseapp.networks.checkpoints.recognise import ArchitectureMatch

_SHOWN = 6  # networks with three lines each, which fit on the page above the next block
_MOST_FOUND = 200  # networks that are ranked; beyond it the count says "or more"


def search_architecture(*, default: str, key: str) -> CatalogueEntry | None:
    """Show a search over both libraries; None until one architecture is picked.

    Typing only changes the list: what was picked stays until another is, so that no network is read on the way.
    ``default`` is the title picked at first (``timm/resnet18``) or empty; widget keys begin with ``key``.
    """
    chosen_key = f"{key}.chosen"
    if chosen_key not in st.session_state:
        st.session_state[chosen_key] = default if _entry(default) else ""
    _pick(default.partition("/")[2], key, chosen_key)
    return _entry(st.session_state[chosen_key])


def _entry(title: str) -> CatalogueEntry | None:
    library, _, name = title.partition("/")
    return find_entry(library, name)


@st.fragment
def _pick(default: str, key: str, chosen_key: str) -> None:
    text = st.text_input(
        "Search",
        value=default,
        placeholder="resnet18, vit tiny, mobilenet …",
        type="search",
        # Where the browser draws slower than this, two commits overlap and letters are lost: at four times this
        # machine's time in half of the words with 20 ms, in none with 100 ms, even at ten times.
        live="100ms",
        **kept(f"{key}.search"),
        help="A part of a name, or several: resnet, vit tiny. Both libraries are searched.",
    )
    here = _weights_here()
    is_offline = st.toggle(
        "Works offline",
        **kept(f"{key}.offline"),
        help="Only networks whose published weights are on this machine already.",
    )
    picked = _list(text or "", here, st.session_state[chosen_key], key, is_offline=is_offline)
    if picked and picked != st.session_state[chosen_key]:
        st.session_state[chosen_key] = picked
        st.rerun()
    if st.session_state[chosen_key]:
        st.caption(md(":material/check_circle: Chosen: **{}**", st.session_state[chosen_key]))


_weights_here = st.cache_data(show_spinner=False, ttl=30.0, max_entries=1)(weights_here)


def _list(text: str, here: frozenset[str], chosen: str, key: str, *, is_offline: bool) -> str | None:
    """Show what is found, and return the title that was picked in this list; None for none."""
    found = suggest(text, lambda entry: not is_offline or entry.weights in here, limit=_MOST_FOUND)
    if not found:
        offline = "No such network has its weights on this machine. Try another name, or turn Works offline off."
        unknown = (
            f"No network of timm or torchvision is called {text!r}. Try a shorter part of the name, such as resnet."
        )
        complain(family_refusal(text) or (offline if is_offline else unknown))
        return None
    shown = found[:_SHOWN]
    titles = [entry.title for entry in shown]
    count = f"Found {fmt.plural(len(found), 'network')}" + (" or more" if len(found) == _MOST_FOUND else "")
    picked: str | None = st.radio(
        count if text else "Popular networks first",
        titles,
        index=titles.index(chosen) if chosen in titles else None,
        captions=[_entry_line(entry, here) for entry in shown],
        key=f"{key}.entry",
        help="Pick one. Below each name: parameters, multiply-accumulates for one image, input size, layers that can "
        "be compressed, and whether trained weights are published, or on this machine already.",
    )
    if len(found) > _SHOWN:
        st.caption(f"The first {_SHOWN} are shown; type more of the name to see others.")
    return picked


def _entry_line(entry: CatalogueEntry, here: frozenset[str]) -> str:
    weights = "works offline" if entry.weights in here else "weights to download"
    return " · ".join(
        (
            fmt.count(entry.num_params, unit="parameters"),
            fmt.count(entry.macs, unit="multiplications") if entry.macs is not None else "Multiplications unknown",
            f"{fmt.shape(entry.input_shape)} input",
            fmt.plural(entry.num_layers, "layer"),
            weights if entry.pretrained else "no published weights",
        )
    )


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
        "Model file (.pt, .safetensors): the trained weights of a network of the library",
        purpose="checkpoint",
        types=_TYPES,
        help_text="A state dict as .safetensors or as a PyTorch file; or a model folder of timm or the Hugging Face "
        "hub, as a zip or as config.json and model.safetensors, chosen together. Files are read without running any "
        "code in them.",
        loose=_FOLDER,
    )
    if path is not None and path.suffix.lower() == ".onnx":  # go on where networks in ONNX files are read
        session().uploads["onnx"] = session().uploads.pop("checkpoint")
        model = ModelSpec(library="onnx", checkpoint=str(path), task=session().draft.model.task)
        session().draft = replace(session().draft, model=model)
        del st.session_state[SOURCE_KEY]
        st.rerun()
    return None if path is None else choose_architecture(path, draft, purpose="checkpoint")


def choose_architecture(path: Path, draft: ModelSpec, *, purpose: UploadPurpose) -> ModelSpec | None:
    """Show the architectures that an uploaded file may belong to; None until one that fits is chosen."""
    report = _report(path, "", purpose)
    if report is not None and len(report.networks) > 1:
        network = choose_one(
            "Network in the file",
            {title: title for title in report.networks},
            draft.network,
            key=f"analyze.model.network.{path.parent.name}",
            help_text="The file holds several networks, or several copies of one: a student and its teacher, or plain "
            "and averaged (EMA) weights. Averaged ones are usually those that are deployed.",
        )
        # the first by default, for which nothing needs to be kept
        report = _report(path, "" if network == report.networks[0] else network, purpose)
    if report is None:
        return None
    model = _chosen_among(report, path, draft, purpose)
    return None if model is None else _fitting(replace(model, network=report.spec.network), report)


def _report(path: Path, network: str, purpose: UploadPurpose) -> CheckpointReport | None:
    """Return what is in a file, or None while it is read."""
    question = "checkpoint", path, network

    def identify() -> CheckpointReport | None:
        try:
            return backend.ask(question, lambda owned: owned.inputs.identify_checkpoint(str(path), network=network))
        except InvalidCheckpoint as error:
            refuse_upload(purpose, str(error))

    return answer_or_wait(
        identify, "Reading the file and recognising its network.", question=question, key="analyze.checkpoint.again"
    )


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
        is_sure = not alike[0].by_order and chosen != _LOOK_ALIKE
        st.caption(md(":material/check_circle: {}" if is_sure else ":material/help: {}", report.verdict))
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
    return replace(model, num_classes=(entry.num_classes if entry else 0) or IMAGENET_CLASSES) if wanted else None


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
    question = "fit", model
    fit = answer_or_wait(
        lambda: backend.ask(question, lambda owned: owned.inputs.compare_checkpoint(model)),
        f"Comparing the file with {model.title}.",
        question=question,
        key="analyze.fit.again",
    )
    if fit is None or fit.fits:
        return model if fit is not None else None
    complain(f"{fmt.plural(len(fit.differences), 'weight')} do not fit {model.title}. {fit.cause}")
    rows = [
        {"Difference": item.kind, "Weight": item.name, "Network": _shape(item.expected), "File": _shape(item.found)}
        for item in fit.differences[:_DIFFERENCES_SHOWN]
    ]
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        height=min(38 + 35 * len(rows), 280),
        alt=f"Weights of the file that do not fit {model.title}",
    )
    show_notes(report.notes)
    return None


def _shape(sizes: tuple[int, ...] | None) -> str:
    return "" if sizes is None else " × ".join(map(str, sizes)) or "one number"
