"""Undocumented names of Streamlit: sessions, uploads held in memory, and the routes and page of its server."""

from __future__ import annotations

import re
from pathlib import Path

import streamlit
from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner import get_script_run_ctx

UPLOAD_ROUTE = re.compile(r"/_stcore/upload_file/(?P<session>[^/]+)/(?P<file>[^/]+)$")
"""Where browsers PUT what a file uploader takes, and DELETE what is taken back; may have a base path before it."""

PRIVATE_ROUTES = ("/_stcore/metrics", "/_stcore/agent")
"""Where metrics are, and the interface for agents, which answers even where it is switched off."""

LOGGERS = ("streamlit", "uvicorn", "websockets")
"""First parts of the names of the loggers of Streamlit and of the server in it."""

_INLINE_SCRIPT = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)


def session_id() -> str:
    """Return the id of the session that this script run is for, the one in :data:`UPLOAD_ROUTE`; else nothing."""
    context = get_script_run_ctx()
    return context.session_id if context is not None else ""


def is_connected(session: str) -> bool:
    """Tell whether a browser is connected to this session, in the thread of the server or in any other."""
    return runtime.get_instance().is_active_session(session)


def free_upload(file_id: str) -> None:
    """Drop the copy in memory of a file that this session sent, which would stay until the session ends."""
    context = get_script_run_ctx()
    if context is not None and isinstance(context.uploaded_file_mgr, MemoryUploadedFileManager):
        context.uploaded_file_mgr.remove_file(session_id=context.session_id, file_id=file_id)


def ignore_pages_folder() -> None:
    """Do not take a folder called ``pages`` for pages of the kind before ``st.navigation``."""
    PagesManager.uses_pages_directory = False


def inline_scripts() -> list[str]:
    """Return the scripts that Streamlit's page holds itself, for the security policy to name by their hashes."""
    index = Path(streamlit.__file__).parent / "static" / "index.html"
    return _INLINE_SCRIPT.findall(index.read_text(encoding="utf-8"))
