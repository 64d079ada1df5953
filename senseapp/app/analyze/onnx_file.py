"""Uploaded ONNX files: what is in one, the output and the image size to measure with, and what was changed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import streamlit as st

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.common import backend
from senseapp.app.common.expert import notes_shown
from senseapp.app.common.notices import answer_or_wait, show_notes
from senseapp.app.common.state import kept
from senseapp.app.common.uploads import LooseFiles, refuse_upload, upload_field
from senseapp.core.errors import InvalidCheckpoint, UnsupportedModel
from senseapp.core.markdown import Markdown, code, md
from senseapp.core.texts import first_names
from senseapp.records.inputs import OTHER_SIZES, USUAL_SIZES, OnnxReport, OutputFacts
from senseapp.records.spec import ModelSpec
from senseapp.tasks import task_named
from senseapp.views.words import format as fmt

TASK_KEY = "analyze.model.task"
_TYPES = ["onnx", "zip", "data", "onnx_data", "weight", "bin", "pt2", "pt", "pth"]
"""The last three are refused with the lines that export them."""
_WITH_WEIGHTS = LooseFiles(
    suffixes=frozenset({".onnx", ".data", ".onnx_data", ".weight", ".bin"}),
    most=300,
    words="one .onnx file and the files with its weights",
    main=(".onnx",),
)


def choose_onnx(draft: ModelSpec, choose_task: Callable[[], str]) -> ModelSpec | None:
    """Show the uploader, then the contents of the file and the choices; None until the network can be measured."""
    path = upload_field(
        "Model file (.onnx): a network with its weights, as most programs write it",
        purpose="onnx",
        types=_TYPES,
        help_text="One file with the network and its weights. Where the weights are in a file beside it "
        "(model.onnx.data), choose both together, or a zip of both. They are read as data: no code in them is run.",
        loose=_WITH_WEIGHTS,
    )
    if path is None:
        return None
    fill_in_task(path, TASK_KEY)
    file = ModelSpec(library="onnx", checkpoint=str(path), task=choose_task())
    usual = _report(file, path)
    if usual is not None and (usual.unread or usual.barrier):
        if _leaves_to_the_runtime(usual, draft, path):
            file = replace(file, in_runtime=True)
            usual = _report(file, path)
        elif usual.unread:
            return None
    if usual is None:
        return None
    guess_task(path, usual, TASK_KEY)
    model = replace(file, outputs=_choose_outputs(usual, draft, path))
    if usual.is_size_free:
        side = usual.image_size[0]
        sides = sorted({*USUAL_SIZES, *OTHER_SIZES, side, draft.img_size or side})
        options = {each: f"{each} × {each} pixels" for each in sides}
        if task_named(file.task).prepared_by_answers:
            options = {0: f"By the images, else {options[side]}", **options}
        size = choose_one(
            "Image size",
            options,
            draft.img_size or (0 if 0 in options else side),
            key=f"analyze.model.size.{path.parent.name}",
            help_text="The file takes images of any size. Choose the one that the network was trained for.",
            width=280,
        )
        model = replace(model, img_size=size or None)
    is_usual = model.outputs in ((), usual.outputs) and (
        model.img_size is None or usual.image_size == (model.img_size, model.img_size)
    )
    report = usual if is_usual else _report(model, path, keep=True)
    if report is None:
        return None
    st.markdown(_found(report))
    if report.problem:
        show_notes(notes_shown(report.notes))  # else they are on the card of the model
        st.warning(report.problem, icon=":material/help:")
        return None
    return model


def fill_in_task(path: Path, key: str) -> None:
    """Fill in the task of an uploaded file that :func:`guess_task` found, once; to be called before its widget."""
    guessed = f"{key}.guessed.{path.parent.name}"
    if held := st.session_state.get(guessed):
        st.session_state[guessed] = ()  # from then on the choice is the person's
        st.session_state[key] = held[0]


def guess_task(path: Path, report: OnnxReport, key: str) -> None:
    """Draw the page again with a task that the outputs of a file fit, where the preset one does not."""
    if st.session_state.setdefault(f"{key}.guessed.{path.parent.name}", report.fitting_tasks):
        st.rerun()


def _leaves_to_the_runtime(report: OnnxReport, draft: ModelSpec, path: Path) -> bool:
    """Offer to measure a file of which only onnxruntime computes some nodes; False until that is wanted."""
    wanted = st.toggle(
        "Let onnxruntime compute what is not read",
        value=draft.in_runtime,
        **kept(f"analyze.model.runtime.{path.parent.name}"),
        help=md(
            "{}: layers before and behind are measured exactly for sparsity and quantization. There are no quick "
            "estimates, and no channels are removed.",
            report.barrier or first_names(report.in_runtime, 5),  # nodes
        ),
    )
    if report.unread and not wanted:
        st.warning(report.unread, icon=":material/help:")
    return wanted


def _report(model: ModelSpec, path: Path, *, keep: bool = False) -> OnnxReport | None:
    """Return what is in a file, or None while it is read; a file that cannot be read is removed, unless ``keep``."""

    def examine() -> OnnxReport | None:
        try:
            return backend.ask(("onnx", model), lambda owned: owned.inputs.examine_onnx(model))
        except (InvalidCheckpoint, UnsupportedModel) as error:
            if keep:
                raise
            refuse_upload("onnx", str(error))

    return answer_or_wait(
        examine,
        "Reading the file and comparing its answers with those of what was read.",
        question=("onnx", model),
        key=f"analyze.onnx.again.{path.parent.name}",
    )


def _choose_outputs(report: OnnxReport, draft: ModelSpec, path: Path) -> tuple[str, ...]:
    """Offer the outputs of a file that has several values to measure; those that fit the task first."""
    if len(report.candidates) < 2:
        return ()
    facts = {each.name: each for each in report.candidates}
    options = {report.outputs: _option(report.outputs, facts)}
    for names in (draft.outputs, *((name,) for name in facts)):
        if names and set(names) <= facts.keys():
            options.setdefault(names, _option(names, facts))
    return choose_one(
        "Output to measure",
        options,
        draft.outputs,
        key=f"analyze.model.outputs.{path.parent.name}",
        help_text="Layers are judged by what changes in it. The output that fits the task comes first. Probabilities "
        "are measured before their softmax, and boxes before they are selected.",
    )


def _option(names: tuple[str, ...], facts: dict[str, OutputFacts]) -> str:
    if len(names) > 1:
        return f"{first_names(names)}, together"
    each = facts[names[0]]
    origin = {"logits": f" · before the {each.operator} “{each.of}”", "cut": " · before the selection"}
    return f"{each.name} · {fmt.shape(each.shape)}{origin.get(each.kind, '')}"


def _found(report: OnnxReport) -> Markdown:
    """Return the input and the outputs of a file."""
    facts = {each.name: each for each in report.candidates}
    outputs = [code(name) + md(" {}", fmt.shape(facts[name].shape)) for name in report.outputs]
    is_free = report.batch is None and 0 in report.free_axes
    batch = "any number of images" if is_free else f"{fmt.plural(report.input_shape[0], 'image')} at a time"
    sizes = ["any" if axis and axis in report.free_axes else size for axis, size in enumerate(report.input_shape)]
    parts = [
        md("input ") + code(report.input_name) + md(" {}, {}", fmt.shape(sizes), batch),
        md("output ") + md(" and ").join(outputs),
    ]
    return md("Read from the file: ") + md(" · ").join(parts)
