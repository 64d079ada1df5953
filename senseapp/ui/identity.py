"""Who the visitor is: the one local person of a server without login, or whoever Streamlit's login says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st

from senseapp.service import LOCAL_OWNER

_NOBODY = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """One person.

    Attributes:
        owner: what their runs and uploads belong to; empty for somebody who has not logged in, who owns nothing.
        name: what they are called; empty on a server without login.
    """

    owner: str
    name: str = ""

    @property
    def is_known(self) -> bool:
        """Whether they may start runs and keep them."""
        return bool(self.owner)


def login_is_configured() -> bool:
    """Return whether this server asks people who they are: ``[auth]`` in Streamlit's secrets."""
    return "is_logged_in" in st.user


def visitor() -> Visitor:
    """Return who looks at the page.

    The owner is the issuer and the subject of the login: the only pair of claims that a provider promises never to
    give to somebody else. A mail address can change hands.
    """
    if not login_is_configured():
        return Visitor(owner=LOCAL_OWNER)
    if not st.user.is_logged_in:
        return Visitor(owner=_NOBODY)
    issuer, subject = (str(st.user.get(claim) or "") for claim in ("iss", "sub"))
    if not issuer or not subject:
        return Visitor(owner=_NOBODY)
    return Visitor(owner=f"{issuer}|{subject}", name=_name_of(subject))


def login_providers() -> list[str]:
    """Return the names of the configured login providers; empty if there is one without a name."""
    configured = st.secrets.get("auth", {})
    if "client_id" in configured:
        return []
    return [name for name, value in configured.items() if isinstance(value, Mapping) and "client_id" in value]


def _name_of(subject: str) -> str:
    known = (st.user.get(claim) for claim in ("name", "preferred_username", "email"))
    return next((str(name) for name in known if name), subject)[:80]
