"""What one browser session remembers, as one typed object under one key; widget keys are ``"page.action"``."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, get_args

import streamlit as st

from senseapp.records.goal import usual_run
from senseapp.records.spec import RunSpec
from senseapp.server.access import UploadPurpose, upload_of

RUN_PARAMETER = "run"
_KEY = "senseapp.session"


@dataclass(slots=True)
class LayerEdits:
    """Settings of single layers of a schedule, in engine units: level locked at, and least and greatest level."""

    fixed: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)


@dataclass(slots=True)
class OpenBlocks:
    """Open blocks of a run's module tree (None before it was drawn), and the picked layer they were opened for."""

    names: frozenset[str] | None = None
    shown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The time for which one page is shown for one run, up to the next step of the browser's back or forward.

    Attributes:
        number: counts the visits of a session.
        page, scope: id of the page, and the run that it is about.
        went_back: whether the browser's back or forward led here, to the address with this ``query``.
    """

    number: int = 0
    page: str = ""
    scope: str = ""
    went_back: bool = False
    query: str = ""


@dataclass(slots=True)
class VisitorState:
    """One visitor's session.

    Attributes:
        draft: the settings that the Analyze page starts from.
        shown: those that it showed last; None while they are not complete.
        unfolded: titles of the blocks of the Analyze page whose fields are shown.
        last_run: id of the run looked at last, which links in the sidebar lead to.
        visit: of the page that is shown.
        addressed: texts of settings in the address, by run id (or page) and name; see ``address.py``.
        bound: the settings as they were drawn last, by run id (or page) and name: number of the visit, and text.
        pick_round: counts picks given up; part of the charts' keys, so that the same bar can be clicked again.
        edit_round: counts edits taken back; part of the table's key, so that it forgets what was typed.
        blocks: what is open in the module tree, by run id.
        more_runs: how often more of the list of runs was asked for.
        compared: ids of the runs compared last, which the link in the sidebar leads to.
        deleted: runs that were deleted a moment ago, and until when (monotonic seconds) that can be undone.
        watched: runs whose progress this session has shown.
        analyze_visit: number of the visit for which the Analyze page has followed its address.
        uploads: files this session has uploaded, by purpose (``checkpoint``, ``onnx``, ``images``).
        upload_round: counts uploads by purpose; part of the uploader's key, so that it empties itself.
        recent: files of this session that gave way to others, by purpose, the newest first.
        refused: why the last file was not taken, by purpose.
        complaint: what the page found wrong, if anything.
        told: notes on images that were said where these are chosen.
        trying: id of the run whose dialog to try a picture is open.
        tried: the picture that was tried last, by run id; its file is gone once it is answered.
        expert: the switch *Expert*; None before it was read from the store.
    """

    draft: RunSpec = field(default_factory=usual_run)
    shown: RunSpec | None = None
    unfolded: set[str] = field(default_factory=set)
    last_run: str = ""
    visit: Visit = field(default_factory=Visit)
    addressed: dict[str, dict[str, str]] = field(default_factory=dict)
    bound: dict[str, dict[str, tuple[int, str]]] = field(default_factory=dict)
    pick_round: int = 0
    edit_round: int = 0
    blocks: dict[str, OpenBlocks] = field(default_factory=dict)
    more_runs: int = 0
    compared: tuple[str, ...] = ()
    deleted: dict[str, float] = field(default_factory=dict)
    watched: set[str] = field(default_factory=set)
    analyze_visit: int = -1
    uploads: dict[str, Path] = field(default_factory=dict)
    upload_round: Counter[str] = field(default_factory=Counter)
    recent: dict[str, list[Path]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    complaint: str = ""
    told: tuple[str, ...] = ()
    trying: str = ""
    tried: dict[str, Path] = field(default_factory=dict)
    expert: bool | None = None


def session() -> VisitorState:
    """Return this visitor's session, made on first use."""
    found = st.session_state.get(_KEY)
    if found is None:
        found = st.session_state[_KEY] = VisitorState()
    return found


def go_to(run_id: str) -> NoReturn:
    """Open the results of this run, which the pages then show also after a click in the sidebar."""
    session().last_run = run_id
    st.switch_page("pages/results.py", query_params={RUN_PARAMETER: run_id, **session().addressed.get(run_id, {})})


def restart_with(spec: RunSpec) -> None:
    """Restart the Analyze page from ``spec``, without the values of its widgets."""
    session().draft, session().shown = spec, None
    files = {purpose: upload_of(spec, purpose) for purpose in get_args(UploadPurpose)}
    session().uploads.update({purpose: Path(path) for purpose, path in files.items() if path})
    for key in [key for key in st.session_state if str(key).startswith("analyze.")]:
        del st.session_state[key]


def pick_key(run_id: str) -> str:
    """Return the key of the layer that every view of the run shows."""
    return f"layer.{run_id}"


def pick(run_id: str, layer: str) -> None:
    """Make ``layer`` the one that every view of the run shows; empty picks none."""
    st.session_state[pick_key(run_id)] = layer


def picked_layer(run_id: str) -> str:
    """Return the layer picked in the views of the run, or ``""``."""
    return str(st.session_state.get(pick_key(run_id), ""))


def layer_edits(run_id: str) -> LayerEdits:
    """Return the edits of single layers of the run's schedule: the session's own object, which callers may change."""
    found: LayerEdits = st.session_state.setdefault(edits_key(run_id), LayerEdits())
    return found


def edits_key(run_id: str) -> str:
    """Return the key of what was set for single layers of the run's schedule."""
    return f"schedule.edits.{run_id}"


def drop_pick(run_id: str) -> None:
    """Pick no layer, and let the charts forget their clicks."""
    pick(run_id, "")
    session().pick_round += 1


def filled(key: str, value: Any) -> dict[str, Any]:
    """Return the arguments of a widget that shows ``value`` at first, and anew once its key has been removed.

    A browser keeps what a widget shows if only its default changes.
    """
    if key not in st.session_state:
        st.session_state[key] = value
    return kept(key)


def kept(key: str) -> dict[str, Any]:
    """Return the arguments of a widget of this ``key`` whose value lasts for the session."""
    return {"key": key, "persist_state": "session"}
