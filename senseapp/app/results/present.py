"""A finished run for a room: five screens of large type, the answer first, turned by keyboard or clicker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.account import link_of, qr_code, works_elsewhere
from senseapp.app.common.address import bound, named
from senseapp.app.common.run_guard import run_line
from senseapp.app.common.state import go_to
from senseapp.app.common.tables import changed_pictures
from senseapp.app.results.layers import bars_figure
from senseapp.app.results.recommendation import (
    candidates_figure,
    recommendation_answer,
    recommendation_figure,
    recommended_changes,
)
from senseapp.app.results.view import RunView, usual_view
from senseapp.core.markdown import md
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import RunResult
from senseapp.records.recommendation import Recommendation
from senseapp.server.leaderboard import headline
from senseapp.views.frames.levels import marked
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import provenance_line

# pixels: larger than on other pages, as a projected page is seen from far away
_CODE_WIDTH, _PICTURE_WIDTH = 260, 190
_MOST_ROWS = 14  # of bars with names that are read from the last row
_TO_COME = "Results finds the smallest good model by itself, or offers to; once it has, {what} stands here."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slide:
    record: RunRecord
    result: RunResult
    found: Recommendation | None


def present(record: RunRecord, result: RunResult) -> None:
    """Show the screen that the address names, and the buttons that turn to the next and the one before."""
    run_id = record.run_id
    key = f"present.screen.{run_id}"
    bound(run_id, "screen", named({str(place + 1): place for place in range(len(_SCREENS))}), 0, key=key)
    place = st.session_state[key]
    with st.container(key="present", gap="small"):
        _SCREENS[place](_Slide(record=record, result=result, found=backend.recommendation_of(run_id)))
    with st.bottom.container(horizontal=True, horizontal_alignment="center", vertical_alignment="center"):
        for label, icon, step, shortcut in _KEYS:
            st.button(
                label if len(label) > 1 else "",
                icon=f":material/{icon}:",
                key=f"present.{(label or shortcut).lower()}",
                on_click=_turn,
                args=(key, step),
                disabled=not 0 <= place + step < len(_SCREENS),
                shortcut=shortcut,
                type="secondary" if len(label) > 1 else "tertiary",
                help=None if len(label) > 1 else f"The same by {shortcut}, which clickers send.",
            )
        st.caption(md("{} of {}", place + 1, len(_SCREENS)), width="content")
        if st.button("Leave", icon=":material/close:", key="present.leave", shortcut="Esc", type="tertiary"):
            go_to("pages/results.py", run_id)


_KEYS = (
    ("Back", "arrow_back", -1, "Left"),
    ("", "keyboard_arrow_up", -1, "PageUp"),
    ("", "keyboard_arrow_down", 1, "PageDown"),
    ("", "space_bar", 1, "Space"),
    ("Next", "arrow_forward", 1, "Right"),
)
"""Buttons that turn the screens: a button has one key, and clickers send others than keyboards."""


def _turn(key: str, step: int) -> None:
    st.session_state[key] = min(max(st.session_state.get(key, 0) + step, 0), len(_SCREENS) - 1)


def _answer(shown: _Slide) -> None:
    st.title(shown.record.title, anchor=False)
    candidates = backend.service().work.candidates(shown.record.run_id)
    if shown.found is None and not candidates:
        st.markdown(md("## {}", shown.record.headline or headline(shown.result)))
        st.markdown(_TO_COME.format(what="the file to take"))
        return
    recommendation_answer(shown.record, candidates, shown.found)
    if candidates:
        candidates_figure(shown.record, candidates, shown.result, large=True)


def _bars(shown: _Slide) -> None:
    view = usual_view(shown.record.run_id, shown.result)
    if view is None:
        st.title("No layer has a value", anchor=False)
        return
    st.title(_on_layers(view), anchor=False)
    bars_figure(view, marked(view.ranked).head(_MOST_ROWS), key=f"present.bars.{view.run_id}", picks=False, large=True)


def _on_layers(view: RunView) -> str:
    """Return how many layers lose more than is tolerable at the level shown."""
    known = view.rows["drop"].dropna()
    fragile = int((known > view.metric.factor * view.metric.notable).sum())
    total = fmt.plural(len(known), view.target_noun)
    if not fragile:
        return f"None of {total} loses more than is tolerable at {view.level_text}"
    return f"{fragile} of {total} {'loses' if fragile == 1 else 'lose'} more than is tolerable at {view.level_text}"


def _range(shown: _Slide) -> None:
    st.title("How much can be removed?", anchor=False)
    if shown.found is None:
        st.markdown(_TO_COME.format(what="the range"))
        return
    recommendation_figure(shown.record.run_id, shown.found, shown.result, large=True)


def _pictures(shown: _Slide) -> None:
    changed = recommended_changes(shown.record.run_id)
    st.title(changed.sentence if changed else "What does it answer differently?", anchor=False)
    if changed is None:
        st.markdown(_TO_COME.format(what="what the compressed model answers differently"))
        return
    st.markdown(md("## Pictures that the proven schedule answers differently"))
    changed_pictures(changed, key=f"present.{shown.record.run_id}", width=_PICTURE_WIDTH)


def _how_it_is_known(shown: _Slide) -> None:
    profile = shown.result.profile
    st.title("How this is known", anchor=False)
    text, code = st.columns([3, 1], gap="large")
    with code.container(key="present_code"):
        _code(shown.record)
    text.markdown(
        f"Each of {fmt.plural(len(profile.layers), 'layer')} was compressed alone, and the loss measured on "
        f"{fmt.plural(shown.result.num_samples, 'image')}. Every file was then made and measured whole."
    )
    text.markdown(md("**{}**", shown.record.headline or headline(shown.result)))
    text.caption(md("{}  \n{}", run_line(shown.record), provenance_line(shown.result)))


def _code(record: RunRecord) -> None:
    """Show the QR code of the run's link, and who can open it."""
    link = link_of(record)
    if not link:
        return
    st.image(qr_code(link), width=_CODE_WIDTH, caption=link)
    if not works_elsewhere(link):
        st.caption(
            "This link works on this computer only: open senseapp by the name of the computer for one that all "
            "in the room can follow."
        )
    elif backend.visitor().name and not (record.shared or record.read_only):
        st.caption("Only you can open this link. Share the run on Runs for one that everybody can follow.")


_SCREENS: tuple[Callable[[_Slide], None], ...] = (_answer, _bars, _range, _pictures, _how_it_is_known)
