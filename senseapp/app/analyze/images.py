"""Block 2 of the Analyze page: the choice of images, what they hold, and which class each label means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.common import backend
from senseapp.app.common.download import offer_file
from senseapp.app.common.notices import answer_or_wait, complain, is_refused, show_notes, wait_for
from senseapp.app.common.state import filled, kept, session
from senseapp.app.common.uploads import LooseFiles, forget_refusal, refuse_upload, upload_field
from senseapp.core.errors import InvalidDataset, NoPictures, ReadingStopped, SenseError
from senseapp.core.markdown import md
from senseapp.core.texts import first_names, plural
from senseapp.data.contents import PICTURE_SUFFIXES, UNLABELLED
from senseapp.data.downloads import download_progress, is_downloaded
from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.records.spec import WITHOUT_LABELS, DataSpec, ModelSpec
from senseapp.server.inputs import DETECTION_DEMO
from senseapp.server.run_requests import sample_zip
from senseapp.server.settings import configured_data_roots
from senseapp.tasks import Task, task_named
from senseapp.tasks.labels import LabelMapProposal
from senseapp.views.words import format as fmt

if TYPE_CHECKING:
    from senseapp.records.inputs import ImageSurvey


_WANTED = "analyze.data.set.wanted."  # before the name of a set whose download was asked for


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
    return not images.name or is_downloaded(images.name) or bool(st.session_state.get(f"{_WANTED}{images.name}"))


def choose_images(
    draft: DataSpec, model: ModelSpec | None, *, page: str = "analyze"
) -> tuple[ModelSpec | None, DataSpec | None]:
    """Show the image picker, prefilled with ``draft``; return the model and the images to measure it on.

    Each ``page`` keeps its own answer to where the images come from; uploads are shared.
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
            f"{page}.data.source",
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
        row = st.container(horizontal=True, vertical_alignment="center")
        size = IMAGE_SETS[images.name].megabytes
        row.caption(md(":material/cloud_download: Not here yet: {} MB. Run downloads it first, or do so now.", size))
        wanted = {f"{_WANTED}{images.name}": True}
        row.button("Download now", key="analyze.data.set.download", on_click=st.session_state.update, args=(wanted,))
    elif images.path or images.name:
        return confirm_classes(images, model, draft)
    return model, images


_PHOTOGRAPHS_KEY = "analyze.data.photographs"


def _demo(draft: DataSpec, model: ModelSpec | None) -> DataSpec | None:
    """Return the images that ship for this model: digits, shapes, else photographs; on request for one they fit."""
    if model == ModelSpec():
        st.caption("Handwritten digits that the demo model was not trained on (UCI, licence CC BY 4.0), with labels.")
        return DataSpec()
    if model == DETECTION_DEMO.model:
        st.caption("Coloured rectangles on crops of freely licensed photographs, made by code, with their boxes.")
        return DETECTION_DEMO.data
    if model is None or model.checkpoint:
        card = model is not None and not is_refused(lambda: backend.card_of(model)) and backend.card_of(model)
        if card is None:  # and not refused, which is said beside the model
            wait_for(lambda: model and backend.card_of(model), "Reading which images it takes.")
        fits = bool(card and card.input_shape[0] == 3)
        if not fits or not (draft.kind == "photographs" or st.session_state.get(_PHOTOGRAPHS_KEY)):
            st.info(
                f"Bring images like those that the network is made for{', or take the photographs of the demo' * fits}."
            )
            if fits:
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
    counted=PICTURE_SUFFIXES,
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


_MOST_NAMED = 3000  # choices of a select box, each sent to the browser; more classes are chosen by number
_PLACES = {"class folders": "from class folders", "table": "from a table", "image set": "with the labels of the set"}


def confirm_classes(data: DataSpec, model: ModelSpec, draft: DataSpec) -> tuple[ModelSpec, DataSpec | None]:
    """Show what is in the images of ``data``; None until its labels are clear.

    The model is ``model``, of the task that the labels call for. An archive that cannot be used is removed from the
    server.
    """
    listing = replace(data, labels=WITHOUT_LABELS)  # what it holds, whatever its labels are
    try:
        contents = backend.survey_of(listing, model)
    except NoPictures as error:
        session().complaint = str(error)
        st.info(md("{}", error), icon=":material/add_photo_alternate:")
        return model, None
    except (InvalidDataset, ReadingStopped) as error:
        if data.kind == "archive" and isinstance(error, InvalidDataset):
            refuse_upload("images", str(error))
        complain(str(error))
        st.button("Try again", key="analyze.data.again", on_click=backend.forget, args=("survey", listing, model))
        return model, None
    except SenseError:  # the model cannot be loaded, which is said where it is chosen
        return model, None
    if contents is None:
        here = not data.name or is_downloaded(data.name)
        wait_for(
            lambda: backend.survey_of(listing, model),
            lambda: "Looking at the images." if here else f"{download_progress(data.name)}.",
        )
        return model, None
    task = task_named(model.task)
    place = st.empty()
    with place:
        labels = _choose_labels(contents, data, draft, task) if task.uses_labels else WITHOUT_LABELS
    if labels == WITHOUT_LABELS:
        _show_contents(contents, task)
        return model, listing
    return _with_labels(replace(data, labels=labels), model, draft, place)


def _choose_labels(contents: ImageSurvey, data: DataSpec, draft: DataSpec, task: Task) -> str:
    options = {"": "The image set" if data.name else task.label_places}
    kind = "table" if task.annotations is None else "file"
    options |= {table: f"The {kind} {table}" for table in contents.tables}
    options[WITHOUT_LABELS] = "Nowhere: measure without labels"
    return choose_one(
        "Labels come from",
        options,
        draft.labels if _is_of(draft, data) else "",
        key=f"analyze.data.labels.{data.path or data.name}",
        help_text=f"{task.label_help} Without labels the output is compared with the original model's.",
    )


def _is_of(draft: DataSpec, data: DataSpec) -> bool:
    return (draft.kind, draft.path, draft.name) == (data.kind, data.path, data.name)


def _with_labels(
    data: DataSpec, model: ModelSpec, draft: DataSpec, choice: DeltaGenerator
) -> tuple[ModelSpec, DataSpec | None]:
    """Show what the labels are; their ``choice`` goes where there is nothing to choose from."""
    survey = answer_or_wait(
        lambda: backend.survey_of(data, model),
        "Reading the labels.",
        question=("survey", data, model),
        key="analyze.labels.again",
    )
    if survey is None:
        return model, None
    if survey.task not in ("", model.task) and model.library != "demo":
        model = replace(model, task=survey.task)
        show_notes(survey.notes[-1:])
    task, names, proposal = task_named(model.task), [name for name, _ in survey.label_counts], survey.proposal
    if survey.layout == "class folders" and len(names) == 1 and proposal is not None and proposal.unmatched:
        # The engine takes one folder that means no class as unlabelled.
        notes = tuple(each for each in survey.notes if each not in task.label_notes(names))
        survey = replace(survey, proposal=None, label_counts=(), notes=notes)
    _show_contents(survey, task)
    if survey.proposal is None and (survey.label_counts or survey.layout == "annotations"):  # they are what they say
        return model, data
    if survey.proposal is None:
        if not survey.tables:
            choice.empty()
        session().told = (*survey.notes, UNLABELLED)
        show_notes(session().told)
        return model, data
    is_said = dict(draft.evidence).get("classes", "person") == "person"  # else images have chosen, and choose again
    known = dict(draft.class_map) if is_said and _is_of(draft, data) else {}
    return model, _confirmed(data, survey, survey.proposal, known, model)


def _show_contents(survey: ImageSurvey, task: Task) -> None:
    parts = [fmt.plural(survey.num_images, "image")]
    if survey.label_counts:
        parts.append(plural(len(survey.label_counts), *task.label_words))
        parts.append(_PLACES[survey.layout])
    if survey.layout == "annotations" and task.annotations is not None:
        parts.append(f"with {task.annotations.words[1]}")
    st.caption(md(":material/photo_library: {}", " · ".join(parts)))


def _confirmed(
    data: DataSpec, survey: ImageSurvey, proposal: LabelMapProposal, known: dict[str, int], model: ModelSpec
) -> DataSpec | None:
    proposed = dict(proposal.pairs)
    key = f"analyze.data.classes.{model.title}.{data.path or data.name}"
    is_open = proposal.num_orders > 1 or not (proposal.certain or proposal.unmatched)
    found = f"found in the model{', ' * bool(proposal.words)}"
    if proposal.words.startswith("in "):
        found = "at first " if is_open else "taken "
    title = f"{len(proposed):,} of {len(survey.label_counts):,} labels {found}{proposal.words}"
    title += "; What we understood says which classes the images show" * is_open
    with st.expander(title, expanded=bool(proposal.unmatched)):
        chosen = _edit(survey, {**proposed, **known}, key=key)
    if not chosen:
        complain("No name is a class of this model. Choose a class beside each name above, or measure without labels.")
        return None
    left_out = [name for name, count in survey.label_counts if count and name not in chosen]
    if left_out:
        st.warning(f"Left out, as no class is given for them: {first_names(left_out)}.", icon=":material/warning:")
    return data if chosen == proposed and not left_out else replace(data, class_map=tuple(chosen.items()))


def _class_column(class_names: tuple[str, ...]) -> Any:
    """Return a column of the model's outputs: chosen by name where the names are known, else written as numbers."""
    if not 0 < len(class_names) <= _MOST_NAMED:
        return st.column_config.NumberColumn(
            "Class number", min_value=0, step=1, help="Number of the model's output, from 0. Empty leaves it out."
        )
    return st.column_config.SelectboxColumn(
        "Class of the model",
        options=range(len(class_names)),
        format_func=lambda index: f"{index} · {class_names[int(index)]}",
        help="Double-click and type a part of the name or the number to choose another. Empty leaves it out.",
        width="large",
    )


def _edit(survey: ImageSurvey, classes: dict[str, int], *, key: str) -> dict[str, int]:
    """Show the mapping as a table to edit, and return the names that have a class."""
    rows = [{"Name": name, "Images": count, "Class": classes.get(name)} for name, count in survey.label_counts]
    edited = st.data_editor(
        pd.DataFrame(rows).astype({"Class": "Int64"}),
        hide_index=True,
        key=key,
        disabled=["Name", "Images"],
        height=min(38 + 35 * len(rows), 320),  # pixels: about eight rows
        column_config={"Class": _class_column(survey.class_names)},
        alt="Class of the model for each folder or label",
    )
    given = edited.dropna(subset=["Class"])
    return {str(name): int(index) for name, index in zip(given["Name"], given["Class"], strict=True)}
