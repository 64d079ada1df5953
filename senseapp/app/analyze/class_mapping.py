"""What images hold: where labels come from and which class each name means, to confirm or change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.common import backend
from senseapp.app.common.notices import answer_or_wait, complain, show_notes, wait_for
from senseapp.app.common.state import session
from senseapp.app.common.uploads import refuse_upload
from senseapp.core.errors import InvalidDataset, NoPictures, ReadingStopped, SenseError
from senseapp.core.markdown import md
from senseapp.core.texts import first_names, plural
from senseapp.data.contents import UNLABELLED
from senseapp.data.downloads import download_progress, is_downloaded
from senseapp.records.spec import WITHOUT_LABELS, DataSpec, ModelSpec
from senseapp.tasks import Task, task_named
from senseapp.tasks.labels import LabelMapProposal
from senseapp.views.words import format as fmt

if TYPE_CHECKING:
    from senseapp.records.inputs import ImageSurvey

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
            lambda: "Looking at the images." if here else f"{download_progress(data.name)}. You can already press Run.",
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
    _show_contents(survey, task_named(model.task))
    if survey.proposal is None and (survey.label_counts or survey.layout == "annotations"):  # they are what they say
        return model, data
    is_heap = survey.layout == "class folders" and len(survey.label_counts) == 1  # one folder, which the engine
    if survey.proposal is None or (is_heap and survey.proposal.unmatched):  # takes as unlabelled if it means no class
        if not survey.tables:
            choice.empty()
        session().told = (*survey.notes, UNLABELLED)
        show_notes(session().told)
        return model, data
    known = dict(draft.class_map) if _is_of(draft, data) else {}
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
    with st.expander(_mapping_title(survey, proposal), expanded=bool(proposal.unmatched)):
        chosen = _edit(survey, {**proposed, **known}, key=key)
    if not chosen:
        complain(
            "No name means a class of this model. Choose a class beside each name above, or measure without labels."
        )
        return None
    left_out = [name for name, count in survey.label_counts if count and name not in chosen]
    if left_out:
        st.warning(f"Left out, as no class is given for them: {first_names(left_out)}.", icon=":material/warning:")
    return data if chosen == proposed and not left_out else replace(data, class_map=tuple(chosen.items()))


def _mapping_title(survey: ImageSurvey, proposal: LabelMapProposal) -> str:
    matched, total = len(proposal.pairs), len(survey.label_counts)
    how = f", {proposal.words}" if proposal.words else ""
    orders = f"; the images choose between this and {plural(proposal.num_orders - 1, 'other order')}"
    return f"Labels → classes: {matched:,} of {total:,} matched{how}{orders if proposal.num_orders > 1 else ''}"


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
