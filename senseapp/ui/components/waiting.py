"""A line that stands where something is being found out, and brings the page up to date once it is."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from senseapp.errors import SenseError

_POLL_SECONDS = 0.7


def wait_for(answer: Callable[[], object | None], sentence: str | Callable[[], str]) -> None:
    """Show ``sentence`` until ``answer`` returns something or raises, then run the page again.

    A sentence that changes is given as a function.
    """
    st.fragment(_wait, run_every=_POLL_SECONDS)(answer, sentence)


def _wait(answer: Callable[[], object | None], sentence: str | Callable[[], str]) -> None:
    st.caption(f":material/hourglass_empty: {sentence if isinstance(sentence, str) else sentence()}")
    try:
        ready = answer() is not None
    except SenseError:
        ready = True
    if ready:
        st.rerun()
