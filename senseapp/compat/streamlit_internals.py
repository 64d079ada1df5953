"""Undocumented names of Streamlit: sessions, cookies, uploads and downloads, the routes and page of its server."""

import json
import os
import re
import time
from asyncio import Transport
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from streamlit.runtime.state.session_state import Serialized, Value, WStates
from streamlit.url_util import make_url_path
from streamlit.web.server.starlette import starlette_server
from streamlit.web.server.starlette.starlette_app_utils import decode_xsrf_token_string
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME, XSRF_COOKIE_NAME
from streamlit.web.server.starlette.starlette_websocket import _get_signed_cookie_with_chunks
from uvicorn.protocols.http.auto import AutoHTTPProtocol

UPLOAD_ROUTE = re.compile(r"/_stcore/upload_file/(?P<session>[^/]+)/(?P<file>[^/]+)$")
"""Route of file uploads (PUT) and their removal (DELETE); may follow a base path."""

PRIVATE_ROUTES = ("/_stcore/metrics", "/_stcore/agent")
"""Routes of metrics and of the agents' interface, which responds even where it is disabled."""

LOGIN_COOKIE = USER_COOKIE_NAME
"""Signed cookie with the user's login; a long one continues in cookies of this name with a number."""

LOGOUT_ROUTE = "/auth/logout"
"""Route that deletes :data:`LOGIN_COOKIE`; may follow a base path."""

LOGGERS = ("streamlit", "uvicorn", "websockets")
"""First parts of the logger names of Streamlit and of its server."""

_INLINE_SCRIPT = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)


def session_id() -> str:
    """Return the id of the session of this script run, as in :data:`UPLOAD_ROUTE`; empty without one."""
    context = get_script_run_ctx()
    return context.session_id if context is not None else ""


def page_id() -> str:
    """Return the id of the page of this script run."""
    context = get_script_run_ctx()
    return context.page_script_hash if context is not None else ""


def went_through_history() -> bool:
    """Return whether the browser's back or forward button caused this script run."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def is_first_run() -> bool:
    """Return whether no event on the page has followed the one that led to the first run of this session."""
    context = get_script_run_ctx()
    return context is not None and not context.session_state._state._old_state


def drawn_before() -> bool:
    """Return whether an earlier session has drawn the page: its widgets' states come with the first run of this one."""
    if (context := get_script_run_ctx()) is None or not is_first_run():
        return False
    return any(
        isinstance(state, Serialized) for state in context.session_state._state._new_widget_state.states.values()
    )


def is_connected(session: str) -> bool:
    """Return whether a browser is connected to this session; callable in any thread; True without a server."""
    return not runtime.exists() or runtime.get_instance().is_active_session(session)


def open_sessions() -> int:
    """Return how many sessions have a browser connected."""
    manager = getattr(runtime.get_instance(), "_session_mgr", None) if runtime.exists() else None  # none in tests
    return manager.num_active_sessions() if manager is not None else 1


def is_session(session: str) -> bool:
    """Return whether this session exists, connected or waiting for its browser to reconnect."""
    return runtime.exists() and runtime.get_instance()._session_mgr.get_session_info(session) is not None


def free_upload(file_id: str) -> None:
    """Drop the copy in memory of this session's uploaded file, which would stay until the session ends."""
    context = get_script_run_ctx()
    if context is not None and isinstance(context.uploaded_file_mgr, MemoryUploadedFileManager):
        context.uploaded_file_mgr.remove_file(session_id=context.session_id, file_id=file_id)


def ignore_pages_folder() -> None:
    """Do not treat a folder called ``pages`` as Streamlit's former kind of pages, before ``st.navigation``."""
    PagesManager.uses_pages_directory = False


def limit_incoming_messages(num_bytes: int) -> None:
    """Limit messages from pages to ``num_bytes``; Streamlit accepts as much as it sends, 200 MB."""
    starlette_server.get_max_message_size_bytes = lambda: num_bytes  # type: ignore[attr-defined]


def page_message(content: bytes) -> Message | None:
    """Return a page's message as a record with fields; None if it is none, which Streamlit refuses."""
    try:
        return BackMsg.FromString(content)
    except DecodeError:
        return None


def close_silent_connections(seconds: float) -> None:
    """Close connections that have not sent a complete request head after ``seconds``."""

    class Impatient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Transport) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_if_silent)

        def _close_if_silent(self) -> None:
            if self.cycle is None and self.transport.get_protocol() is self:  # not replaced by that of a web socket
                self.transport.close()

    usual = starlette_server._get_uvicorn_config_kwargs
    starlette_server._get_uvicorn_config_kwargs = lambda: usual() | {"http": Impatient}


def inline_scripts() -> list[str]:
    """Return the inline scripts of Streamlit's page, whose hashes the security policy lists."""
    index = Path(streamlit.__file__).parent / "static" / "index.html"
    return _INLINE_SCRIPT.findall(index.read_text(encoding="utf-8"))


KNOWN_BASE = 'window.__streamlit = { BACKEND_BASE_URL: new URL(".", location.href).href };'
"""A script that tells Streamlit's page the server's base URL. Without it, a page opened by its address first requests
two URLs below that address that do not exist, and the browser logs errors."""


def with_known_base(page: bytes) -> bytes:
    """Return Streamlit's page with :data:`KNOWN_BASE` in its head; any other content unchanged."""
    return page.replace(b"<head>", f"<head><script>{KNOWN_BASE}</script>".encode(), 1)


def login_payload(cookies: Mapping[str, str]) -> bytes:
    """Return the content of :data:`LOGIN_COOKIE` as JSON; empty if it is missing or its signature is wrong."""
    return _get_signed_cookie_with_chunks(dict(cookies), LOGIN_COOKIE) or b""


def login_claims(cookies: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the login provider's claims on the sender of ``cookies``; empty without a login."""
    claims = json.loads(login_payload(cookies) or b"{}")
    return claims if isinstance(claims, dict) and claims.get("is_logged_in") else {}


def browser_key(cookies: Mapping[str, str]) -> bytes:
    """Return the browser's secret of Streamlit's protection against forged requests; empty without one."""
    return decode_xsrf_token_string(cookies.get(XSRF_COOKIE_NAME, ""))[0] or b""


def address_of(path: str) -> str:
    """Return a path of this server with its base path in front, if it has one."""
    return make_url_path(config.get_option("server.baseUrlPath") or "", path)


def allowed_origins() -> tuple[str, ...]:
    """Return the origins, besides that of the page's own address, that may connect."""
    return tuple(config.get_option("server.corsAllowedOrigins") or ())


def listening_address() -> str:
    """Return the configured address that the server listens on; empty if not configured."""
    return str(config.get_option("server.address") or "")


def server_address() -> str:
    """Return the configured name of this server; empty if not configured."""
    return str(config.get_option("browser.serverAddress")) if config.is_manually_set("browser.serverAddress") else ""


def options_of_environment() -> dict[str, str | list[str]]:
    """Return the options set by ``STREAMLIT_…`` variables, which Streamlit reads for ``streamlit run`` only."""
    return {
        name: os.environ[option.env_var].split() if option.multiple else os.environ[option.env_var]
        for name, option in config._config_options_template.items()  # reads no file, as the server will
        if option.env_var in os.environ and not option.sensitive  # sensitive ones are read by Streamlit itself
    }


_NUMBERS = {"int_value", "double_value"}
"""Forms of one number: fields of whole numbers are declared as the one and send the other."""


def ignore_forged_states() -> None:
    """Have a state count as the usual value of its widget where it is of another type, or its widget cannot read it.

    Pages do not send such states. Streamlit reads each state again before every run of the page: one that cannot be
    read would end the session's thread each time.
    """
    read = WStates.__getitem__

    def read_state(states: WStates, key: str) -> Any:
        state, metadata = states.states.get(key), states.widget_metadata.get(key)
        if not isinstance(state, Serialized) or metadata is None:
            return read(states, key)
        with suppress(Exception):  # of any kind, by the widget
            sent = state.value.WhichOneof("value")
            if sent in (None, metadata.value_type) or {sent, metadata.value_type} == _NUMBERS:
                return read(states, key)
        states.states[key] = Value(metadata.deserializer(None))
        return read(states, key)

    WStates.__getitem__ = read_state  # type: ignore[method-assign]


Made = Callable[[], Any]
"""Callable of a download button, called when it is pressed."""


class _Downloads(MediaFileManager):
    """Streamlit's media files; files of download buttons go to ``deliver``.

    Streamlit drops the callable of a button at the end of the next page run. The browser draws the new button later,
    and a click in between refers to a dropped callable. Replaced callables stay for a minute here.
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
            if now - since >= 60.0 or not is_session(self._deferred_callables[file_id]["session_id"]):
                self._drop_deferred_id(file_id)

    def execute_deferred(self, file_id: str) -> str:
        with self._lock:
            asked = self._deferred_callables.get(file_id)
        if asked is None:
            raise MediaFileStorageError("There is no such download.")
        return self._deliver(asked["callable"], asked["filename"] or "download", asked["mimetype"] or "")


def deliver_downloads(deliver: Callable[[Made, str, str], str]) -> None:
    """Have ``deliver`` return the address for a pressed button's callable, its file name and its type."""
    if runtime.exists():
        running = runtime.get_instance()
        running._media_file_mgr = _Downloads(running.media_file_mgr._storage, deliver)
