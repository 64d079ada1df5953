"""What a page shows of a run as part of its address, so that a link, a reload and the browser's back find it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import streamlit as st

from senseapp.app.common.state import RUN_PARAMETER, session

T = TypeVar("T")


class Addressed(Generic[T]):
    """One choice of a run's page: ``options`` by what stands for them in the address, the ``usual`` one by nothing.

    The address is written when the choice changes, and only then: each writing is a step of the browser's history, and
    one that repeats when somebody goes back would keep them where they are.
    """

    def __init__(self, run_id: str, name: str, options: Mapping[str, T], usual: T) -> None:
        self._name, self._options, self._usual = name, options, usual
        self._kept = session().addressed.setdefault(run_id, {})
        self._is_here = st.query_params.get(RUN_PARAMETER) == run_id

    def asked(self, *, anew: bool = False) -> tuple[T, ...]:
        """Return what the address asks for, if it is not what was written last: opened, reloaded, or gone back to.

        ``anew`` returns it where it asks for anything.
        """
        linked = st.query_params.get(self._name, "")
        if not self._is_here or (linked == self._kept.get(self._name, "") and not (anew and linked)):
            return ()
        self._kept[self._name] = linked
        return (self._options.get(linked, self._usual),)

    def fill(self, key: str) -> bool:
        """Put what the address asks for into the widget of this ``key``, which is drawn next; tell whether it did."""
        for asked in self.asked(anew=key not in st.session_state):
            st.session_state[key] = asked
            return True
        return False

    def keep(self, chosen: T) -> None:
        """Put what is ``chosen`` now into the address."""
        texts = (text for text, option in self._options.items() if option == chosen)
        text = "" if chosen == self._usual else next(texts, "")
        if not self._is_here or text == st.query_params.get(self._name, ""):
            return
        self._kept[self._name] = text
        if text:
            st.query_params[self._name] = text
        else:
            del st.query_params[self._name]


def address_of(run_id: str) -> dict[str, str]:
    """Return the query of a link to the run as it was looked at last; empty without a run."""
    if not run_id:
        return {}
    return {RUN_PARAMETER: run_id} | {name: text for name, text in session().addressed.get(run_id, {}).items() if text}
