"""Logging in and out, and what somebody may see who has only been given a link."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.backend import Visitor, login_providers, visitor
from senseapp.app.common.notices import COME_BACK, REMEMBER_PLACE, complain, run_script
from senseapp.app.common.state import RUN_PARAMETER
from senseapp.app.common.system import system_panel
from senseapp.app.logins import logouts
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md

_OPEN_BY_LINK = ("results", "schedule", "present")


def admit(page: str) -> None:
    """Let the visitor see the page at this path; else show the login, or what is wrong with the server, and stop.

    Somebody who is not known is let in as far as the link to a shared run goes that they have.
    """
    came = visitor()
    try:
        problems = backend.service().disk_problems()
    except SenseError as error:  # the home cannot be used: nothing but the System page would work either
        st.title("senseapp cannot work here", anchor=False)
        if page == "system":
            system_panel()
        else:
            complain(str(error))
        st.stop()
    if came.is_known:
        _account(came)
        for problem in problems if page != "system" else ():
            complain(problem)
    elif page not in _OPEN_BY_LINK or not _has_link():
        _login_page()
        st.stop()


def _has_link() -> bool:
    try:
        return backend.service().run(st.query_params.get(RUN_PARAMETER, "")).read_only
    except SenseError:
        return False


def _login_page() -> None:
    run_script(REMEMBER_PLACE)
    with st.container(horizontal_alignment="center"), st.container(width=520, border=True):
        st.title("Log in", anchor=False)
        st.markdown("Runs and uploads on this server belong to whoever made them. Log in to see yours.")
        for provider in login_providers() or [""]:
            label = f"Log in with {provider.capitalize()}" if provider else "Log in"
            if st.button(label, type="primary", icon=":material/login:", key=f"login.{provider}", width="stretch"):
                st.login(provider or None)
        if st.user.get("is_logged_in"):
            complain(
                "Your login does not say who you are: it lacks an issuer or a subject. Ask whoever runs this server."
            )


def _account(known: Visitor) -> None:
    if not known.name:
        return
    run_script(COME_BACK)  # the login leads to the first page, wherever somebody came from
    with st.sidebar:
        st.caption(md(":material/person: {}", known.name))
        if st.button("Log out", key="account.logout", type="tertiary", icon=":material/logout:"):
            logouts().end(st.context.cookies)
            st.logout()
