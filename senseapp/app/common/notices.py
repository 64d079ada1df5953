"""Notices on pages: errors at their field, empty states, waiting lines, job progress, and the scripts pages may run."""

import html
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.expert import expert
from senseapp.app.common.state import session
from senseapp.core.errors import SenseError
from senseapp.core.files import SITE
from senseapp.core.markdown import md
from senseapp.records.jobs import JobSnapshot, RunState
from senseapp.views.words import format as fmt


def complain(message: str) -> None:
    """Show what is wrong with the field above; a button that cannot be pressed tells it too."""
    session().complaint = message
    st.error(message, icon=":material/error:")


@contextmanager
def errors_here() -> Iterator[None]:
    """Show a SenseError raised in the body at this place of the page and go on; anything else passes through."""
    try:
        yield
    except SenseError as error:
        complain(str(error))


def show_notes(notes: Iterable[object]) -> None:
    """Show each of the ``notes`` in small print."""
    for note in notes:
        st.caption(md(":material/info: {}", note))


def empty_state(text: str, *, level: Literal[1, 2] = 2) -> None:
    """Show that there is no run yet, with a link to Analyze; ``level`` is that of the heading."""
    with st.container(border=True, horizontal_alignment="center", gap="small"):
        st.space("small")
        st.markdown(md("# No run yet" if level == 1 else "## No run yet"), text_alignment="center")
        st.markdown(f"{text} Start one: the demo is filled in and takes less than a minute.", text_alignment="center")
        if st.button("Go to Analyze", type="primary"):
            st.switch_page("pages/analyze.py")
        st.space("small")


INLINE_SCRIPTS = {file.stem: file.read_text("utf-8") for file in sorted((SITE / "assets" / "scripts").glob("*.js"))}
"""The scripts that pages may run, by the names of their files; the security policy blocks any other."""


def run_script(name: str, beside: str = "") -> None:
    """Run one of :data:`INLINE_SCRIPTS`, with the HTML ``beside`` it."""
    st.html(f"{beside}<script>{INLINE_SCRIPTS[name]}</script>", unsafe_allow_javascript=True)


def notify(title: str, text: str, tag: str) -> None:
    """Show a browser notification with a ``title`` and a ``text``; it replaces one of the same ``tag``."""
    data = (f'data-{name}="{html.escape(value)}"' for name, value in {"title": title, "text": text, "tag": tag}.items())
    run_script("notify", beside=f'<div class="news" {" ".join(data)}></div>')


def reveal(frame: str, place: float) -> None:
    """Scroll the container of key ``frame`` (letters, digits, ``_``, ``-``) to ``place``: 0 its top, 1 its bottom."""
    run_script("reveal", beside=f'<div class="reveal" data-frame="{frame}" data-place="{place:.4f}"></div>')


POLL_SECONDS = 0.7
"""Between looks of a page that waits for an answer: one that is there is shown within a second."""
T = TypeVar("T")


def answer_or_wait(
    find: Callable[[], T | None],
    sentence: str | Callable[[], str],
    *,
    question: tuple[Hashable, ...] = (),
    key: str = "",
) -> T | None:
    """Return what ``find`` returns; None with a line that waits for it, or with its error.

    With the ``question`` that :func:`backend.forget` takes, the error comes with a button of this ``key`` to try again.
    """
    try:
        found = find()
    except SenseError as error:
        complain(str(error))
        if question:
            st.button("Try again", key=key, on_click=backend.forget, args=question)
        return None
    if found is None:
        wait_for(find, sentence)
    return found


def is_refused(find: Callable[[], object]) -> bool:
    """Return whether ``find`` fails, which is said elsewhere."""
    try:
        find()
    except SenseError:
        return True
    return False


def wait_for(answer: Callable[[], object | None], sentence: str | Callable[[], str]) -> None:
    """Show ``sentence`` (or what it returns) until ``answer`` returns something or raises, then rerun the page."""
    is_drawn = False

    def wait() -> None:
        nonlocal is_drawn
        st.caption(md(":material/hourglass_empty: {}", sentence if isinstance(sentence, str) else sentence()))
        # to rerun while the page is drawn would drop a click on a button below
        if is_drawn and (is_refused(answer) or answer() is not None):
            st.rerun()
        is_drawn = True

    st.fragment(wait, run_every=POLL_SECONDS)()


def progress_bar(snapshot: JobSnapshot) -> None:
    """Show the bar of a job: its place and what is before it, or what happens now, the time so far and that left."""
    if snapshot.state is RunState.QUEUED:
        place = f"{fmt.ordinal(snapshot.queue_place)} in the queue" if snapshot.queue_place else "In the queue"
        if snapshot.behind:
            blocking, seconds = backend.service().blocking_run(snapshot), snapshot.behind_seconds
            what = f"work on {blocking.spec.model.title}" if blocking is not None else "the work of somebody else"
            left = "" if seconds is None else f", which ends within {fmt.about(60 * math.ceil(seconds / 60))}"
            place += f", behind {what}{left or ', whose time is not known yet'}"
        st.progress(snapshot.fraction, text=f"{place}. It starts by itself; you can leave this page.")
        return
    st.progress(snapshot.fraction, text=md("**{}** · {}", percent_done(snapshot), snapshot.phase))
    remaining = snapshot.remaining_seconds
    parts = [f"{fmt.clock(snapshot.elapsed_seconds)} so far"]
    parts += [] if remaining is None else [f"{fmt.about(remaining)} left"]
    parts += [snapshot.detail] if snapshot.detail and expert() else []
    st.caption(md("{}", " · ".join(parts)))


def percent_done(snapshot: JobSnapshot) -> str:
    """Return how much of a job is done, never rounded up; with a decimal, as a percent may take seconds."""
    return fmt.percent(math.floor(1000 * snapshot.fraction) / 1000, digits=1)
