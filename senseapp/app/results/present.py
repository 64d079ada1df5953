"""A finished run for a room: screens of large type, the answer first, turned by keyboard or clicker."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.account import link_of, qr_code, works_elsewhere
from senseapp.app.common.address import bound, named
from senseapp.app.common.run_guard import decided, require_result, run_line
from senseapp.app.common.state import go_to
from senseapp.app.common.tables import changed_pictures
from senseapp.app.results import recommendation
from senseapp.app.results.layers import bars_figure
from senseapp.app.results.view import RunView, usual_view
from senseapp.core.markdown import md
from senseapp.records.answers import ChangedAnswers
from senseapp.records.headline import headline
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import RunResult
from senseapp.records.recommendation import Recommendation
from senseapp.views.charts.layers import marked
from senseapp.views.frames.files import range_question
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import provenance_line

# pixels: larger than on other pages, as a projected page is seen from far away
_CODE_WIDTH, _PICTURE_WIDTH = 260, 190
_MOST_ROWS = 14  # of bars with names that are read from the last row


def present(record: RunRecord) -> None:
    """Show the screen that the address names, and the buttons that turn to the next and the one before."""
    run_id = record.run_id
    with st.container(key="present", gap="small"):  # first, as it hides the sidebar of the page before
        screens = _screens(record, require_result(record))
        key, last = f"screen.{run_id}", len(screens) - 1
        bound(run_id, "screen", named({str(place + 1): place for place in range(last + 1)}), 0)
        place = st.session_state[key]
        screens[place]()
    with st.bottom.container(horizontal=True, horizontal_alignment="center", vertical_alignment="center"):
        for label, icon, step, shortcut in _KEYS:
            st.button(
                label or shortcut,
                icon=f":material/{icon}:" if icon else None,
                key=f"present.{label.lower()}" if label else f"present_key.{shortcut.lower()}",
                on_click=_turn,
                args=(key, step, last),
                disabled=not 0 <= place + step <= last,
                shortcut=shortcut,
            )
        st.caption(md("{} of {}", place + 1, last + 1), width="content")
        if st.button("Leave", icon=":material/close:", key="present.leave", shortcut="Esc", type="tertiary"):
            go_to(run_id)


def _screens(record: RunRecord, result: RunResult) -> list[Callable[[], None]]:
    """Return what draws each screen, in their order; what is not known has none."""
    run_id = record.run_id
    screens = [partial(_answer, record, result)]
    if (view := usual_view(run_id, result)) is not None:
        screens.append(partial(_bars, view))
    if (found := backend.recommendation_of(run_id)) is not None and found.tried:
        screens.append(partial(_range, run_id, found, result))
    if (changed := _changes_of_the_answer(record, found)) is not None:
        screens.append(partial(_pictures, run_id, changed))
    return [*screens, partial(_how_it_is_known, record, result)]


def _changes_of_the_answer(record: RunRecord, found: Recommendation | None) -> ChangedAnswers | None:
    """Return the answers that the file of the first screen changes, if its schedule was tested as the file is."""
    choice = decided(record, backend.service().work.candidates(record.run_id)).choice
    if choice is None or choice.schedule is None:
        return None
    if found is not None and found.validation is not None and found.validation.also_rounded:
        return None
    return recommendation.changes_of(record.run_id, choice.schedule)


_KEYS = (
    ("Back", "arrow_back", -1, "Left"),
    ("Next", "arrow_forward", 1, "Right"),
    ("", "", -1, "PageUp"),
    ("", "", 1, "PageDown"),
    ("", "", 1, "Space"),
)
"""Buttons that turn the screens: a button has one key, and clickers send others; those are out of sight."""


def _turn(key: str, step: int, last: int) -> None:
    st.session_state[key] = min(max(st.session_state.get(key, 0) + step, 0), last)


def _answer(record: RunRecord, result: RunResult) -> None:
    st.title(record.title, anchor=False)
    candidates = backend.service().work.candidates(record.run_id)
    if recommendation.show_answer(record, candidates, result).goal != "look" and candidates:
        recommendation.candidates_figure(record, candidates, result, large=True)


def _bars(view: RunView) -> None:
    """Draw the most fragile layers, under how many lose more than people mind at the level shown."""
    known, metric = view.rows["drop"].dropna(), view.metric
    fragile = int((known > metric.shown(metric.notable)).sum())
    total, least = fmt.plural(len(known), view.target_noun), metric.limit_text(metric.notable)
    more = f"change more than {least}" if metric.as_answers else f"with {metric.change_inside} above {least}"
    st.title(f"{fragile or 'None'} of {total} {more} at {view.level_text}", anchor=False)
    rows = marked(view.ranked).head(_MOST_ROWS)
    if len(rows) < len(view.ranked):
        st.caption(f"The {len(rows)} most fragile of {fmt.plural(len(view.ranked), view.target_noun)}.")
    bars_figure(view, rows, key=f"present.bars.{view.run_id}", picks=False, large=True)


def _range(run_id: str, found: Recommendation, result: RunResult) -> None:
    st.title(range_question(found.kind), anchor=False)
    recommendation.recommendation_figure(run_id, found, result, large=True)


def _pictures(run_id: str, changed: ChangedAnswers) -> None:
    st.title(changed.sentence, anchor=False)
    changed_pictures(changed, key=f"present.{run_id}", width=_PICTURE_WIDTH)


def _how_it_is_known(record: RunRecord, result: RunResult) -> None:
    st.title("How this is known", anchor=False)
    text, code = st.columns([3, 1], gap="large")
    link = link_of(record)
    with code.container(key="present_code"):
        if link:
            st.image(qr_code(link), width=_CODE_WIDTH, caption=link)
        if link and not works_elsewhere(link):
            st.caption(
                "This link works on this computer only: open senseapp by the name of the computer for one that all "
                "in the room can follow."
            )
        elif link and backend.visitor().name and not (record.shared or record.read_only):
            st.caption("Only you can open this link. Share the run on Runs for one that everybody can follow.")
    text.markdown(
        f"Each of {fmt.plural(len(result.profile.layers), 'layer')} was compressed alone, and the loss measured on "
        f"{fmt.plural(result.num_samples, 'image')}. Every file was made and measured whole."
    )
    text.markdown(md("**{}**", headline(result)))
    text.caption(md("{}  \n{}", run_line(record), provenance_line(result)))
