"""The card *What we understood*: how images, outputs and labels are read, on pictures, and what a person changes."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.app.analyze.blocks import choose_one
from senseapp.app.analyze.images import is_at_hand
from senseapp.app.common import backend
from senseapp.app.common.expert import expert, reading_shown
from senseapp.app.common.notices import answer_or_wait, is_refused, show_notes
from senseapp.app.common.state import kept, session
from senseapp.core.markdown import md
from senseapp.descriptions import SOURCES
from senseapp.records.inputs import PreparationChoice, PreviewReport, SeenPicture
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.tasks import TASKS, task_named
from senseapp.tasks.reading import EVIDENCE_WORDS, PART_TITLES, class_map_words
from senseapp.views.words import format as fmt

UNDERSTOOD = "What we understood"
_PICTURE, _PAIR, _SMALL, _ASKED = 206, 148, 136, 236  # pixels; a picture alone, with its label, beside a reading
_FIELDS = {
    "layout": ("Layout of the outputs", "What the numbers in the outputs mean."),
    "values": ("Values of the pixels", "What the network was trained with. With others a good network looks bad."),
    "channel_order": ("Order of the channels", "Mostly red, green, blue; after training with OpenCV often reverse."),
    "fit": ("Pictures are brought to size by", "Detectors take mostly whole pictures, classifiers a crop."),
    "class_map": ("Labels → classes of the model", "Which output each label means."),
}
"""Label and help of each field of the card."""
_FITS = {
    "crop": "Crop: the middle of the picture",
    "letterbox": "Letterbox: the whole picture with borders",
    "corner": "Corner: the whole picture at the upper left",
    "stretch": "Stretch: the whole picture, proportions change",
}
_PART_OF = {"layout": "layout", "class_map": "classes", "upright": ""}
"""The part of the reading that a field belongs to, where that is not the preparation."""
_ORDERS = {"rgb": "RGB", "bgr": "BGR, as OpenCV reads pictures"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """What is to be measured, as it is read.

    Attributes:
        images: None where they cannot be used, or a person has to choose first.
        line: the reading in one line; empty while it is not known.
        question: what has to be decided; empty for nothing.
        is_settled: whether model, size of the input and images are known, so that a time can be predicted.
    """

    model: ModelSpec | None
    images: DataSpec | None
    line: str = ""
    question: str = ""
    is_settled: bool = True


def understand(model: ModelSpec | None, images: DataSpec | None, *, task_key: str, button: str = "Run") -> Understood:
    """Show how ``images`` and outputs of ``model`` are read, with what a person can change; return what to measure.

    Args:
        model: that sees them.
        images: shown in part.
        task_key: key of the field for the task, where there is one.
        button: label of the one that can be pressed meanwhile.
    """
    # what keeps the model's card from coming is said where the model is chosen
    has_card = model is not None and not is_refused(lambda: backend.card_of(model)) and backend.card_of(model)
    if model is None or images is None or not has_card or not is_at_hand(images):
        st.caption("Once model and images are here, this shows how they are read.")
        return Understood(model=model, images=images, line="once model and images are here", is_settled=False)
    if images.kind == "random":
        st.caption("Random inputs are no pictures, so there is nothing to see.")
        return Understood(model=model, images=images, line="random inputs, nothing to see")
    first = as_told(RunSpec(model=model, data=images))
    report = found = _report(first, button)
    spec: RunSpec | None = first
    if found is not None and found.choice is not None:
        spec = _picked(found.choice, first)
        if spec is None:
            _ask(found, first, task_key)
            return Understood(model=model, images=None, question=found.choice.question)
        report = found if spec == found.choice.spec else _report(spec, button)
    assert spec is not None
    if report is None or found is None:
        failed = is_refused(lambda: backend.preview_of(spec))
        if failed and first != RunSpec(model=model, data=images):
            st.button(
                "Read it anew, without what was said here",
                key="reading.forget",
                on_click=st.session_state.update,
                args=({_key(name, _files(first)): nothing for name, nothing in _held(RunSpec()).items()},),
            )
        line = "" if failed or _is_own(first) else "looking at the images"
        is_settled = failed or not _is_own(first)
        return Understood(model=spec.model, images=None if failed else spec.data, line=line, is_settled=is_settled)
    _show(report, found, first, task_key)
    words = dict(report.reading.words)
    line = f"{words['task']} · {words['preparation']}" if expert() else words["task"]
    return Understood(model=spec.model, images=spec.data, line=line)


def _is_own(spec: RunSpec) -> bool:
    """Return whether model or images are somebody's own, so that something may be read wrongly."""
    return bool(spec.model.checkpoint or spec.data.path or spec.data.name)


def _report(spec: RunSpec, button: str) -> PreviewReport | None:
    """Return the report on the images; None while it is computed, with a line that says so."""
    return answer_or_wait(
        lambda: backend.preview_of(spec),
        f"Trying on some of the images how they and the outputs are read. You can already press {button}.",
        question=("preview", spec),
        key="analyze.preview.again",
    )


# ---- what a person says


def _key(what: str, *of: object) -> str:
    """Return the key of a field; it is seen in the browser, and where files lie is not to be."""
    return f"analyze.reading.{what}.{zlib.crc32(repr(of).encode()):x}"


def _files(spec: RunSpec) -> tuple[object, ...]:
    """Return what the fields are about; what was said of other outputs or images need not fit these."""
    model, data = spec.model, spec.data
    return model.title, model.img_size, model.task, model.checkpoint, model.outputs, data.path, data.name


def _held(spec: RunSpec) -> dict[str, Any]:
    """Return what the fields of the card hold for settings: those of the images, the values of pixels, the layout."""
    data = {name: getattr(spec.data, name) for name in ("channel_order", "fit", "class_map", "upright")}
    return {**data, "values": (spec.data.mean, spec.data.std), "layout": spec.model.layout}


def _told(spec: RunSpec) -> dict[str, Any]:
    """Return what the fields hold, at first what a person said in the settings that the page starts from."""
    draft = session().draft
    is_same = _files(draft)[2:] == _files(spec)[2:] and draft.data.preparation == "given"
    usual, known = _held(RunSpec()), dict(draft.data.evidence)
    for name, value in _held(draft).items() if is_same else ():
        if known.get(_PART_OF.get(name, "preparation"), "person") == "person":  # else images chose it, and choose again
            usual[name] = value
    return {name: st.session_state.get(_key(name, _files(spec)), value) for name, value in usual.items()}


def as_told(spec: RunSpec) -> RunSpec:
    """Return ``spec`` with what a person says about the reading; what is said of it elsewhere is kept."""
    if not _is_own(spec):
        return spec
    told = _told(spec)
    (mean, std), layout = told.pop("values"), told.pop("layout")
    told["class_map"] = spec.data.class_map or told["class_map"]
    return RunSpec(model=replace(spec.model, layout=layout), data=replace(spec.data, mean=mean, std=std, **told))


def _picked(choice: PreparationChoice, spec: RunSpec) -> RunSpec | None:
    """Return the settings that a person picked among those tried, else the chosen ones; None where one has to pick."""
    title = st.session_state.get(_key("tried", spec))
    picked = next((trial for trial in choice.trials if trial.title == title), None)
    if picked is None or (picked == choice.chosen and not choice.question):
        return None if choice.question else choice.spec
    return choice.picked(picked)


# ---- what is shown


def _show(report: PreviewReport, found: PreviewReport, spec: RunSpec, task_key: str) -> None:
    """Show pictures and reading of ``report``; ``found`` is of ``spec``, before somebody picked among its trials."""
    scored, choice = fmt.plural(report.num_scored, "image"), report.choice
    line = task_named(spec.model.task).preview_line(report.score, scored) if report.score is not None else ""
    st.markdown(f"As the network sees them. {line}")
    if report.warning:
        st.warning(report.warning, icon=":material/warning:")
    drawings = list(map(_drawings, report.pictures))  # labels that can be drawn stand below, in a row of their own
    has_labels = any(len(each) > 1 for each in drawings)
    for number, title in enumerate(("Prediction", "As labelled") if has_labels else ("",)):
        if title:
            st.caption(title)
        row = st.container(horizontal=True, gap="small", key=f"preview_pictures_{number}")
        shown = [drawing for each in drawings for drawing in each[number : number + 1]]
        _fill(row, shown, _PAIR if has_labels else _PICTURE)
    known = dict(report.reading.evidence)
    with st.container(gap="xsmall", key="reading"):
        for part, said in report.reading.words:
            mark = md(":material/help: ") if known[part] == "assumed" else ""
            (words,) = reading_shown([said])
            st.markdown(md("**{}** · {} · {}*{}*", PART_TITLES[part], words, mark, EVIDENCE_WORDS[known[part]]))
        _change(found, spec, task_key, "Change how it is read")
    if choice is not None and choice.chosen is not None:
        is_open = choice.guess or known["preparation"] == "assumed"
        st.caption(md(":material/help: {}" if is_open else ":material/check_circle: {}", choice.verdict))
    notes = (*(choice.caveats if choice is not None else ()), *report.notes)
    show_notes(note for note in notes if note not in session().told)


def _fill(row: DeltaGenerator, pictures: Sequence[tuple[bytes, str, str]], width: int) -> None:
    for png, text, words in pictures:
        row.image(png, caption=fmt.cut_middle(text, 40) or None, width=width, alt=words)


def _drawings(picture: SeenPicture) -> list[tuple[bytes, str, str]]:
    """Return a picture with its prediction and, where there is one to draw, its label: PNG, caption and description."""
    if not picture.drawn:
        label = f"label {picture.label}, " if picture.label else ""
        wrong = "" if picture.label == picture.prediction else f"seen as {picture.prediction}"
        words = f"{picture.name}: {label}predicted {picture.prediction}"
        return [(picture.png, ", ".join(filter(None, (picture.label, wrong))), words)]
    said = [("prediction", picture.prediction or "nothing"), ("label", picture.label or "nothing")]
    return [
        (png, text, f"{picture.name}, {what} drawn: {text}")
        for png, (what, text) in zip(picture.drawn, said, strict=False)
    ]


def _change(found: PreviewReport, spec: RunSpec, task_key: str, label: str) -> None:
    """Show what a person can change, folded; all of it is taken together."""
    has_task = SOURCES[spec.model.library].chooses_outputs and task_key in st.session_state
    if not (has_task or _is_own(spec)):
        return

    def take_task() -> None:
        if has_task:
            st.session_state[task_key] = st.session_state[_key("task")]

    with st.popover(label, type="tertiary", icon=":material/edit:"), st.form("reading.form", border=False):
        if has_task:
            st.session_state[_key("task")] = spec.model.task
            st.selectbox("What it does", list(TASKS), format_func=lambda name: TASKS[name].label, key=_key("task"))
        if _is_own(spec):
            _change_reading(found, spec)
        st.form_submit_button("Apply", key="reading.apply", on_click=take_task)


def _change_reading(found: PreviewReport, spec: RunSpec) -> None:
    choice, key = found.choice, _key("tried", spec)
    if len(found.layouts) > 1 or spec.model.layout:
        _field(spec, "layout", dict(found.layouts))
    if choice is not None and len(choice.trials) > 1 and (not choice.question or key in st.session_state):
        trials = sorted(choice.trials, key=lambda trial: trial != choice.chosen)
        tried = {each.title: f"{each.title} · {each.result}" for each in trials}
        about = "What was tried on some of the images, the chosen one first, the others by how well the model does."
        choose_one(choice.subject, tried, "", key=key, help_text=about)
    preparation_fields(spec, {(mean, std): words for words, mean, std in found.ranges})
    if found.num_marked:
        st.toggle(
            f"Turn pictures upright ({fmt.plural(found.num_marked, 'picture')} with a rotation mark)",
            value=spec.data.upright,
            **kept(_key("upright", _files(spec))),
            help="Cameras store a mark (EXIF orientation) in place of turning a picture. Most networks are trained on "
            "pictures as they are stored; turn them where yours was trained on upright ones.",
        )
    read = (each.spec.data.class_map for each in (choice.trials if choice is not None else ()))
    maps = {pairs: class_map_words(pairs) for pairs in read if pairs}
    if len(maps) > 1:
        _field(spec, "class_map", maps)


def preparation_fields(spec: RunSpec, ranges: Mapping[tuple[tuple[float, ...], tuple[float, ...]], str]) -> None:
    """Show the fields for the values of the pixels, the order of the channels and how pictures are brought to size."""
    _field(spec, "values", {values: words[:1].upper() + words[1:] for values, words in ranges.items()})
    _field(spec, "channel_order", _ORDERS)
    _field(spec, "fit", _FITS)


def _field(spec: RunSpec, name: str, options: Mapping[Any, str]) -> None:
    held, (label, about) = _told(spec)[name], _FIELDS[name]
    offered = {_held(RunSpec())[name]: "As understood", **options}
    choose_one(label, {held: "As it was given"} | offered, held, key=_key(name, _files(spec)), help_text=about)


# ---- what is asked


def _ask(found: PreviewReport, spec: RunSpec, task_key: str) -> None:
    """Show the readings to choose from, each on the same pictures, with a button that takes it."""
    choice = found.choice
    assert choice is not None
    st.warning(choice.question, icon=":material/help:")
    for number, (trial, pictures) in enumerate(found.asked):
        row = st.container(border=True, horizontal=True, gap="small", key=f"reading_asked_{number}")
        with row.container(width=_ASKED, gap="xsmall"):
            st.markdown(md("**{}**", trial.title))
            st.caption(trial.result)
            st.button(
                "Measure it like this all the same" if (trial == choice.chosen and not choice.guess) else "Use this",
                key=f"reading.use.{number}",
                icon=":material/check:",
                help=f"Reads the images and the outputs this way: {trial.title}.",
                on_click=st.session_state.update,
                args=({_key("tried", spec): trial.title},),
            )
        for picture in pictures:
            png, text, words = _drawings(picture)[0]
            _fill(row, [(png, "" if picture.drawn else text, words)], _SMALL)
    labels = [label for _, pictures in found.asked[:1] for picture in pictures for label in _drawings(picture)[1:]]
    if labels:
        row = st.container(border=True, horizontal=True, gap="small", key="reading_labels")
        row.container(width=_ASKED).markdown(md("**As labelled**"))
        _fill(row, [(png, "", words) for png, _, words in labels], _SMALL)
    _change(found, spec, task_key, "None of these: say how it is read")
