"""The settings of the Analyze page in its address: each field of a RunSpec that is not as usual, by its path.

An uploaded file is named by its folder, which cannot be guessed, and is looked up among the uploads of the visitor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import this_visit, write_address
from senseapp.app.common.state import restart_with, session
from senseapp.app.common.uploads import adopt_upload
from senseapp.core.codec import decode, encode
from senseapp.core.errors import SenseError
from senseapp.records.spec import RunSpec

SCOPE = "analyze"
_PARTS = ("model.", "data.", "sensitivity.", "goal")
_FILES = ("model.checkpoint", "data.path")
_UPLOAD = "upload:"
_LONGEST = 6000


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
        restart_with(RunSpec())


def keep_address(spec: RunSpec) -> None:
    """Put the settings that the page shows into its address; call it once they are complete."""
    texts = dict(_texts(encode(spec)["data"], encode(RunSpec())["data"]))
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
    """Return the settings in the address.

    Raises:
        SenseError: they are no such settings, or a file is not there, or not this visitor's.
    """
    asked = encode(RunSpec())
    for place, text in texts.items():
        part, _, name = place.partition(".")
        if not name:
            asked["data"][part] = text
            continue
        usual = asked["data"].get(part, {}).get(name)
        asked["data"][part][name] = _file(text) if place in _FILES else text if isinstance(usual, str) else _value(text)
    return decode(asked, RunSpec)


def _file(text: str) -> str:
    if not text.startswith(_UPLOAD):
        return text  # of a folder of the server, which every use checks
    return str(adopt_upload(text.removeprefix(_UPLOAD)))


def _value(text: str) -> Any:
    """Return a number, list or switch; a text where a field may be one, such as the metric, as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
