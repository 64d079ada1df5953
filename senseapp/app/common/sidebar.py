"""The sidebar: name and mark, and the pages in groups; links to a run's pages lead to the run looked at last."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from senseapp.app.common.address import address_of
from senseapp.app.common.state import RUN_PARAMETER, session

_OF_A_RUN = ("Results", "Schedule")
_OF_RUNS, _SETTINGS = "Compare", "Analyze"


def sidebar(groups: tuple[Mapping[str, st.Page], ...], *, mark: Path, small_mark: Path) -> None:
    """Show the ``groups`` of pages, by title, below the marks; the last group stands at the foot."""
    st.logo(mark, size="large", icon_image=small_mark)
    run_id = st.query_params.get(RUN_PARAMETER) or session().last_run
    with st.sidebar:
        for place, pages in enumerate(groups, start=1):
            with st.container(gap="xsmall", key="sidebar_foot" if place == len(groups) else f"sidebar_{place}"):
                for title, page in pages.items():
                    st.page_link(page, label=title, query_params=_query(title, run_id), width="stretch")


def _query(title: str, run_id: str) -> dict[str, str] | list[tuple[str, str]] | None:
    if title == _SETTINGS:
        return address_of("analyze") or None
    if title in _OF_A_RUN:
        return address_of(run_id) or None
    if title == _OF_RUNS:
        return [(RUN_PARAMETER, compared) for compared in session().compared] or None
    return None
