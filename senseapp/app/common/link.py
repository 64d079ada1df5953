"""The link of a run as the browser sees this server, and its QR code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlencode, urljoin, urlsplit

import segno
import streamlit as st

from senseapp.app.common.state import RUN_PARAMETER
from senseapp.records.jobs import RunRecord

_QUIET = 4  # modules of white around the code, as ISO/IEC 18004 asks for
_AS_USUAL: Mapping[str, str] = MappingProxyType({})
_ONLY_HERE = ("localhost", "127.0.0.1", "::1")


def link_of(record: RunRecord, settings: Mapping[str, str] = _AS_USUAL, *, base: str = "") -> str:
    """Return the address of a run's results: its shared link where there is one.

    ``settings`` of its views, by their names in the address, are part of it. Where the address of this server is not
    known, it begins with ``base``, and without one it is empty.
    """
    seen, query = st.context.url or base, {RUN_PARAMETER: record.link or record.run_id, **settings}
    return urljoin(seen, f"results?{urlencode(query)}") if seen else ""


def works_elsewhere(link: str) -> bool:
    """Return whether a link can lead other devices here; one to ``localhost`` leads each to itself."""
    return (urlsplit(link).hostname or "") not in _ONLY_HERE


def qr_code(link: str) -> str:
    """Return the QR code of a link as SVG, black on white whatever the theme is."""
    found: str = segno.make(link, micro=False).svg_inline(scale=8, border=_QUIET, dark="black", light="white")
    return found
