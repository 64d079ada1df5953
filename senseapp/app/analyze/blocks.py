"""The blocks of the Analyze page, which fold to one line, and their settings in its address.

The address holds goal, target and each field of a RunSpec that does not follow from the goal, by its path. An uploaded
file is named by its folder, which cannot be guessed, and is looked up among the uploads of the visitor.
"""

import json
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import this_visit, write_address
from senseapp.app.common.expert import expert
from senseapp.app.common.state import filled, restart_with, session
from senseapp.app.common.uploads import adopt_upload
from senseapp.core.codec import decode, encode
from senseapp.core.errors import NotFound, SenseError, check_choice
from senseapp.core.markdown import md
from senseapp.core.texts import distinct
from senseapp.records.goal import GOALS, usual_run
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import DataSpec, Goal, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.inputs import DETECTION_DEMO, PHOTOGRAPHS_DEMO
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import compression_text, images_title

T = TypeVar("T", bound=Hashable)


def choose_one(
    label: str, options: Mapping[T, str], held: object, *, key: str, help_text: str, width: int | None = None
) -> T:
    """Show ``options`` (value to its text), prefilled with ``held``; a value that is not offered becomes the first."""
    values, texts = list(options), distinct(options)
    chosen = st.selectbox(
        label,
        values,
        format_func=lambda value: texts.get(value, str(value)),  # a value kept for the session may be gone
        help=help_text,
        **filled(key, next((value for value in values if value == held), values[0])),
        width=width or "stretch",
    )
    return chosen if chosen in options else values[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Settings of a demo, its name on buttons, its network in a few words and in a line, and an icon."""

    spec: RunSpec
    title: str
    network: str
    line: str
    icon: str = ""


DEMOS = {
    demo.spec.model.title: demo
    for demo in (
        Demo(
            spec=usual_run(),
            title="Handwritten digits",
            network="a small network",
            line="A small network that reads handwritten digits. It ships with senseapp; nothing to download.",
        ),
        Demo(
            spec=PHOTOGRAPHS_DEMO,
            title="Photographs",
            network="EfficientNet-Lite0",
            line="EfficientNet-Lite0, a network for phones, with its ImageNet weights. Nothing to download.",
            icon=":material/photo_library:",
        ),
        Demo(
            spec=DETECTION_DEMO,
            title="Detector",
            network="a small detector",
            line="A small network that finds coloured rectangles on photographs. It ships with senseapp.",
            icon=":material/select_all:",
        ),
    )
}
"""The demos by the title of their model, the one that is filled in first."""


class Block:
    """A block of the page: a line with its title and what is filled in, and below it, unless folded, the fields.

    Folded fields stay on the page, hidden by ``assets/style.css``: they hold what is filled in.
    """

    def __init__(self, title: str, name: str = "") -> None:
        self._title, self._name = title, name or title.lower()
        with st.container(border=True, gap=None):
            self._head = st.container(
                horizontal=True, wrap=False, horizontal_alignment="distribute", vertical_alignment="center"
            )
            state = "open" if title in session().unfolded else "folded"
            self.fields = st.container(key=f"block_{title.lower()}_{state}")

    def summarise(self, line: str) -> None:
        """Show ``line``, the settings of the block; an empty one keeps the block open, as something is missing."""
        unfolded = session().unfolded
        is_open = self._title in unfolded
        if not (line or is_open):
            unfolded.add(self._title)
            st.rerun()
        with self._head:
            st.markdown(md("**{}**", self._title) + (f" · {line}" if line else ""))
            if line:
                # Two buttons, each of which sets a state: a click on what was drawn before the block opened by itself
                # must not fold it.
                st.button(
                    f"{'Fold' if is_open else 'Change'} {self._name}",
                    key=f"block.{self._title.lower()}.{'fold' if is_open else 'open'}",
                    type="tertiary",
                    icon=":material/unfold_less:" if is_open else ":material/unfold_more:",
                    on_click=unfolded.discard if is_open else unfolded.add,
                    args=(self._title,),
                )


def model_line(model: ModelSpec | None, profile: ModelProfile | None) -> str:
    """Return the settings of the model block in one line; empty without a model."""
    if model is None:
        return ""
    demo = DEMOS.get(model.title)
    name = model.checkpoint.rsplit("/", 1)[-1] or (f"Demo: {demo.network}" if demo else model.title)
    if profile is None:
        return name
    parameters = f"{fmt.count(profile.num_params)} parameters, " * expert()
    return f"{name}, {parameters}{fmt.plural(len(profile.layers), 'layer')}"


def images_line(images: DataSpec | None, samples: int | None, available: int | None) -> str:
    """Return the settings of the images block in one line, with their number if known; empty without images."""
    if images is None:
        return ""
    count = f", {samples:,}" if samples and available else ""  # more may be asked for than there are
    if available and images.kind != "random":
        count += f"{' of' if samples else ','} {fmt.plural(available, 'image')}"
    return images_title(images) + count


def compression_line(sensitivity: SensitivitySpec | None) -> str:
    """Return the settings of the compression block in one line; empty without a compression."""
    if sensitivity is None:
        return ""
    about = sensitivity.compression.description
    everyday = f"{about.line}: {about.scale.texts(sensitivity.levels)}"
    text = compression_text(sensitivity, terms=True) if expert() else everyday
    return text + (", quick estimate only" if sensitivity.mode == "quick" else "")


SCOPE = "analyze"
_PARTS = ("model.", "data.", "sensitivity.", "goal", "target")
_FILES = ("model.checkpoint", "data.path")
_UPLOAD = "upload:"
_LONGEST = 6000  # characters: proxies usually take request lines of 8 KB, of which the rest of the address is a part


def follow_address() -> None:
    """Start from the settings in the address, if the page was just opened or gone back to; call it before the page."""
    visit = this_visit()
    if session().analyze_visit == visit.number:
        return
    session().analyze_visit = visit.number
    linked = {name: text for name, text in st.query_params.items() if name.startswith(_PARTS)}
    if linked == session().addressed.get(SCOPE, {}) or not (linked or visit.went_back):
        return  # a link without settings leaves those of this session as they are
    session().addressed[SCOPE] = linked
    try:
        restart_with(_spec(linked))
    except SenseError:
        st.toast("The address asks for settings that are not offered here; the usual ones are shown.")
        restart_with(usual_run())


def keep_address(spec: RunSpec) -> None:
    """Put the settings that the page shows into its address; call it once they are complete."""
    usual = replace(usual_run(spec.goal, spec.model.task), goal=RunSpec().goal)
    texts = dict(_texts(encode(spec)["data"], encode(usual)["data"]))
    if sum(map(len, texts.values())) > _LONGEST:
        texts.pop("data.class_map", None)  # is proposed anew
    before = session().addressed.get(SCOPE, {})
    if texts != before:
        write_address(SCOPE, {name: texts.get(name, "") for name in before | texts})


def _texts(data: Mapping[str, Any], usual: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in data.items():
        place = f"{path}{name}"
        if isinstance(value, dict) and isinstance(usual.get(name), dict) and not path:
            yield from _texts(value, usual[name], f"{place}.")
        elif value != usual.get(name):
            if place in _FILES and (upload := backend.service().inputs.upload_name(value)):
                value = _UPLOAD + upload
            yield place, value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _spec(texts: Mapping[str, str]) -> RunSpec:
    """Return the settings in the address; raises SenseError if they are none."""
    goal = texts.get("goal", RunSpec().goal)
    check_choice("The goal must be", goal, GOALS)
    asked = encode(usual_run(cast(Goal, goal), texts.get("model.task", "")))
    for place, text in texts.items():
        part, _, name = place.partition(".")
        if not name:
            asked["data"][part] = text
            continue
        value: Any = text
        if not isinstance(asked["data"].get(part, {}).get(name), str):
            with suppress(ValueError, RecursionError):  # a text where a field may be one, such as the metric
                value = json.loads(text)
        if place in _FILES and text.startswith(_UPLOAD):  # another one is in a folder of the server, which is checked
            try:
                value = str(adopt_upload(text.removeprefix(_UPLOAD)))
            except NotFound as error:  # the text is no path, so that the page asks for the file
                st.toast(str(error))
        asked["data"][part][name] = value
    return decode(asked, RunSpec)
