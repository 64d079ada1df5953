"""The link of a run: how one is made, what it lets others see, and how it is taken back."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.backend import visitor
from senseapp.app.common.link import link_of
from senseapp.app.common.notices import errors_here
from senseapp.app.common.state import session
from senseapp.core.markdown import md
from senseapp.records.jobs import RunRecord


def share_run(record: RunRecord) -> None:
    """Show the link of a shared run and how to take it back, or how to make one."""
    if not record.shared:
        st.markdown(f"{_LOOKS} {_who_sees()}")
        if st.button("Make a link", key=f"runs.share.{record.run_id}", icon=":material/link:"):
            _share(record, shared=True)
        return
    st.markdown(f"{_LOOKS} It opens the views as you see them now:")
    st.code(link_of(record, session().addressed.get(record.run_id, {}), base="/"), language=None, wrap_lines=True)
    if st.button("Take the link back", key=f"runs.unshare.{record.run_id}", icon=":material/link_off:"):
        _share(record, shared=False)


_LOOKS = (
    "Whoever has the link can look at this run and change nothing: its results, its schedules, the pictures that it "
    "shows, and the compressed files, which can be downloaded. Files that you uploaded are not among them."
)
_NO_LOGIN = "There is no login here: everybody who opens this server sees all runs, and can change and delete them."


def no_login_line() -> None:
    """Say who sees the runs, where there is no login and others may open this server."""
    if not visitor().name:
        st.caption(md(":material/group: {}", _NO_LOGIN))


def _who_sees() -> str:
    return "Nobody finds it otherwise." if visitor().name else _NO_LOGIN


def _share(record: RunRecord, *, shared: bool) -> None:
    with errors_here():
        came = visitor()
        if came.name:
            backend.service().introduce(came.name)
        backend.service().share(record.run_id, shared=shared)
        st.rerun()
