"""A finished run for a room: five screens of large type, turned by the arrow keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import bound, named
from senseapp.app.common.run_guard import run_line
from senseapp.app.frames.levels import marked
from senseapp.app.results.layers import bars_figure
from senseapp.app.results.recommendation import recommendation_answer, recommendation_figure, recommended_answers
from senseapp.app.results.view import usual_view
from senseapp.app.words import format as fmt
from senseapp.app.words.wording import provenance_line
from senseapp.core.markdown import md
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import SensitivityResult
from senseapp.records.recommendation import Recommendation
from senseapp.runs.leaderboard import headline

_TO_COME = "Results finds by itself how much can be saved, or offers to; once it has, {what} stands here."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    record: RunRecord
    result: SensitivityResult
    found: Recommendation | None


def present(record: RunRecord, result: SensitivityResult) -> None:
    """Show the screen that the address names, and the buttons that turn to the next and the one before."""
    run_id = record.run_id
    key = f"present.screen.{run_id}"
    bound(run_id, "screen", named({str(place + 1): place for place in range(len(_SCREENS))}), 0, key=key)
    place = st.session_state[key]
    with st.container(key="present", gap="medium"):
        _SCREENS[place](_Shown(record=record, result=result, found=backend.recommendation_of(run_id)))
    with st.bottom.container(horizontal=True, horizontal_alignment="center", vertical_alignment="center"):
        for label, icon, step, shortcut in (("Back", "arrow_back", -1, "Left"), ("Next", "arrow_forward", 1, "Right")):
            st.button(
                label,
                icon=f":material/{icon}:",
                key=f"present.{label.lower()}",
                on_click=_turn,
                args=(key, step),
                disabled=not 0 <= place + step < len(_SCREENS),
                shortcut=shortcut,
            )
        st.caption(f"{place + 1} of {len(_SCREENS)}", width="content")


def _turn(key: str, step: int) -> None:
    st.session_state[key] = min(max(st.session_state.get(key, 0) + step, 0), len(_SCREENS) - 1)


def _what_it_is(shown: _Shown) -> None:
    profile = shown.result.profile
    st.title(shown.record.title, anchor=False)
    st.markdown(
        f"Which of its {fmt.plural(len(profile.layers), 'layer')} can be made smaller, and which must be left alone? "
        f"Each was compressed alone, and the loss measured on {fmt.plural(shown.result.num_samples, 'image')}."
    )
    st.markdown(md("**{}**", shown.record.headline or headline(shown.result)))
    st.caption(md("{}  \n{}", run_line(shown.record), provenance_line(shown.result)))


def _bars(shown: _Shown) -> None:
    st.title("Some layers are fragile, most are not", anchor=False)
    view = usual_view(shown.record.run_id, shown.result)
    if view is None:
        st.markdown("No layer has a value.")
        return
    bars_figure(view, marked(view.ranked), key=f"present.bars.{view.run_id}", picks=False)


def _trade_off(shown: _Shown) -> None:
    st.title("How much can be saved?", anchor=False)
    if shown.found is None:
        st.markdown(_TO_COME.format(what="the trade-off"))
        return
    st.markdown(md("**{}**", shown.found.headline))
    recommendation_figure(shown.record.run_id, shown.found, shown.result, large=True)


def _pictures(shown: _Shown) -> None:
    st.title("What does it answer differently?", anchor=False)
    if not recommended_answers(shown.record.run_id):
        st.markdown(_TO_COME.format(what="what the compressed model answers differently"))


def _file(shown: _Shown) -> None:
    st.title("The file to take away", anchor=False)
    if shown.found is None:
        st.markdown(_TO_COME.format(what="the file"))
        return
    recommendation_answer(shown.record.run_id, shown.found, shown.result.spec.goal)


_SCREENS: tuple[Callable[[_Shown], None], ...] = (_what_it_is, _bars, _trade_off, _pictures, _file)
