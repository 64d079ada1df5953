"""Undocumented names of Streamlit: sessions, cookies, uploads and downloads, the routes and page of its server."""

from __future__ import annotations

import json
import os
import re
import time
from asyncio import Transport
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import streamlit
from google.protobuf.message import DecodeError, Message
from streamlit import config, runtime
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.media_file_storage import MediaFileStorage, MediaFileStorageError
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.url_util import make_url_path
from streamlit.web.server.starlette import starlette_server
from streamlit.web.server.starlette.starlette_app_utils import decode_xsrf_token_string
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME, XSRF_COOKIE_NAME
from streamlit.web.server.starlette.starlette_websocket import _get_signed_cookie_with_chunks
from uvicorn.protocols.http.auto import AutoHTTPProtocol

UPLOAD_ROUTE = re.compile(r"/_stcore/upload_file/(?P<session>[^/]+)/(?P<file>[^/]+)$")
"""Where browsers PUT what a file uploader takes, and DELETE what is taken back; may have a base path before it."""

PRIVATE_ROUTES = ("/_stcore/metrics", "/_stcore/agent")
"""Where metrics are, and the interface for agents, which answers even where it is switched off."""

LOGIN_COOKIE = USER_COOKIE_NAME
"""Says who is logged in, signed; a long one goes on in cookies of this name with a number."""

LOGOUT_ROUTE = "/auth/logout"
"""Where browsers are sent to lose :data:`LOGIN_COOKIE`; may have a base path before it."""

LOGGERS = ("streamlit", "uvicorn", "websockets")
"""First parts of the names of the loggers of Streamlit and of the server in it."""

_INLINE_SCRIPT = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)


def session_id() -> str:
    """Return the id of the session that this script run is for, the one in :data:`UPLOAD_ROUTE`; else nothing."""
    context = get_script_run_ctx()
    return context.session_id if context is not None else ""


def page_id() -> str:
    """Return the id of the page that this script run shows."""
    context = get_script_run_ctx()
    return context.page_script_hash if context is not None else ""


def went_through_history() -> bool:
    """Tell whether the browser's back or forward led to this script run."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def is_connected(session: str) -> bool:
    """Tell whether a browser is connected to this session, in any thread; without a server, every session is."""
    return not runtime.exists() or runtime.get_instance().is_active_session(session)


def is_session(session: str) -> bool:
    """Tell whether there is such a session, connected or waiting for its browser to come back."""
    return runtime.exists() and runtime.get_instance()._session_mgr.get_session_info(session) is not None


def free_upload(file_id: str) -> None:
    """Drop the copy in memory of a file that this session sent, which would stay until the session ends."""
    context = get_script_run_ctx()
    if context is not None and isinstance(context.uploaded_file_mgr, MemoryUploadedFileManager):
        context.uploaded_file_mgr.remove_file(session_id=context.session_id, file_id=file_id)


def ignore_pages_folder() -> None:
    """Do not take a folder called ``pages`` for pages of the kind before ``st.navigation``."""
    PagesManager.uses_pages_directory = False


def limit_incoming_messages(num_bytes: int) -> None:
    """Let the server take messages of up to ``num_bytes`` from pages; Streamlit takes as much as it sends, 200 MB."""
    starlette_server.get_max_message_size_bytes = lambda: num_bytes  # type: ignore[attr-defined]


def page_message(content: bytes) -> Message | None:
    """Return what a page sent, as a record with fields; None where it is no such message, which Streamlit refuses."""
    try:
        return BackMsg.FromString(content)
    except DecodeError:
        return None


def close_silent_connections(seconds: float) -> None:
    """Let the server close connections on which no whole head of a request has come after that time."""

    class Impatient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Transport) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_if_silent)

        def _close_if_silent(self) -> None:
            if self.cycle is None and self.transport.get_protocol() is self:  # not the one of a web socket by now
                self.transport.close()

    usual = starlette_server._get_uvicorn_config_kwargs
    starlette_server._get_uvicorn_config_kwargs = lambda: usual() | {"http": Impatient}


def inline_scripts() -> list[str]:
    """Return the scripts that Streamlit's page holds itself, for the security policy to name by their hashes."""
    index = Path(streamlit.__file__).parent / "static" / "index.html"
    return _INLINE_SCRIPT.findall(index.read_text(encoding="utf-8"))


KNOWN_BASE = 'window.__streamlit = { BACKEND_BASE_URL: new URL(".", location.href).href };'
"""A script that tells Streamlit's page where its server is. Without it, a page that is opened by its address looks
below that address first, and the browser complains of two addresses that do not exist."""


def with_known_base(page: bytes) -> bytes:
    """Return Streamlit's page with :data:`KNOWN_BASE` in its head; anything else as it is."""
    return page.replace(b"<head>", f"<head><script>{KNOWN_BASE}</script>".encode(), 1)


def login_payload(cookies: Mapping[str, str]) -> bytes:
    """Return what :data:`LOGIN_COOKIE` holds, as JSON; nothing where it is missing or its signature is wrong."""
    return _get_signed_cookie_with_chunks(dict(cookies), LOGIN_COOKIE) or b""


def login_claims(cookies: Mapping[str, str]) -> Mapping[str, Any]:
    """Return what the login provider said of whoever sends ``cookies``; nothing of somebody who is not logged in."""
    claims = json.loads(login_payload(cookies) or b"{}")
    return claims if isinstance(claims, dict) and claims.get("is_logged_in") else {}


def browser_key(cookies: Mapping[str, str]) -> bytes:
    """Return the secret that Streamlit gives each browser against forged requests; nothing of one that has none."""
    return decode_xsrf_token_string(cookies.get(XSRF_COOKIE_NAME, ""))[0] or b""


def address_of(path: str) -> str:
    """Return the path of an address of this server, below its base path if it has one."""
    return make_url_path(config.get_option("server.baseUrlPath") or "", path)


def allowed_origins() -> tuple[str, ...]:
    """Return the origins, beside that of the page's own address, that may connect."""
    return tuple(config.get_option("server.corsAllowedOrigins") or ())


def listening_address() -> str:
    """Return the address that the server listens on, as it was configured; nothing where it was not."""
    return str(config.get_option("server.address") or "")


def server_address() -> str:
    """Return the name that this server was told it has; nothing where it was not told."""
    return str(config.get_option("browser.serverAddress")) if config.is_manually_set("browser.serverAddress") else ""


def options_of_environment() -> dict[str, str | list[str]]:
    """Return the options that ``STREAMLIT_…`` variables set; Streamlit reads them for ``streamlit run`` alone."""
    return {
        name: os.environ[option.env_var].split() if option.multiple else os.environ[option.env_var]
        for name, option in config._config_options_template.items()  # reads no file, as the server will
        if option.env_var in os.environ and not option.sensitive  # those it reads itself
    }


Made = Callable[[], Any]
"""What a download button was given to call when it is pressed."""


_REPLACED_SECONDS = 60.0


class _Downloads(MediaFileManager):
    """Streamlit's files of pages, without those that download buttons make.

    Streamlit drops the callable of a button at the end of the next page run. The browser draws the new button later,
    and a click in between names a callable that is gone. Replaced callables stay for a minute here.
    """

    def __init__(self, storage: MediaFileStorage, deliver: Callable[[Made, str, str], str]) -> None:
        super().__init__(storage)
        self._deliver = deliver
        self._replaced: dict[str, float] = {}

    def _remove_orphaned_deferred_callables(self) -> None:
        """Remove callables that were replaced a minute ago or whose session has ended; called with the lock held."""
        now = time.monotonic()
        shown = {file_id for ids in self._files_by_session_and_coord.values() for file_id in ids.values()}
        self._replaced = {
            file_id: self._replaced.get(file_id, now) for file_id in self._deferred_callables if file_id not in shown
        }
        for file_id, since in self._replaced.items():
            if now - since >= _REPLACED_SECONDS or not is_session(self._deferred_callables[file_id]["session_id"]):
                self._drop_deferred_id(file_id)

    def execute_deferred(self, file_id: str) -> str:
        with self._lock:
            asked = self._deferred_callables.get(file_id)
        if asked is None:
            raise MediaFileStorageError("There is no such download.")
        return self._deliver(asked["callable"], asked["filename"] or "download", asked["mimetype"] or "")


def deliver_downloads(deliver: Callable[[Made, str, str], str]) -> None:
    """Let ``deliver`` make an address of what a pressed button calls, its file name and its type."""
    if runtime.exists():
        running = runtime.get_instance()
        running._media_file_mgr = _Downloads(running.media_file_mgr._storage, deliver)
