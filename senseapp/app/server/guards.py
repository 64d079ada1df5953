"""Middleware against connections of foreign origins and against cookies of ended logins."""

from __future__ import annotations

from urllib.parse import urlsplit

from anyio import to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from senseapp.app.logins import logouts
from senseapp.compat.streamlit_internals import LOGIN_COOKIE, LOGOUT_ROUTE, allowed_origins, server_address

_POLICY_VIOLATION = 1008
_DEFAULT_PORTS = {"http": 80, "https": 443}


class SameOrigin:
    """Refuses connections of pages of another origin; Streamlit's own check lets every port of its host in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope) if scope["type"] == "websocket" else Headers()
        if is_own_origin(headers.get("origin", ""), headers.get("host", "")):
            await self._app(scope, receive, send)
        else:
            await receive()  # the request to connect; refusing it then answers with 403
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})


def is_own_origin(origin: str, host: str) -> bool:
    """Tell whether a page of ``origin`` may connect to ``host``.

    It may where both are the same, where the origin is the configured name of this server on the usual port, and where
    the server was told to allow it. Programs that are no browsers send no origin.
    """
    if not origin or urlsplit(origin).netloc == host or origin in allowed_origins():
        return True
    try:
        name, port = urlsplit(origin).hostname, urlsplit(origin).port
    except ValueError:  # no port number
        return False
    return name == server_address() and port in (None, _DEFAULT_PORTS.get(urlsplit(origin).scheme))


class EndedLogins:
    """Takes the cookies of ended logins out of requests, and ends the login of whoever logs out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] in ("http", "websocket") and LOGIN_COOKIE in Headers(scope=scope).get("cookie", ""):
            cookies = HTTPConnection(scope).cookies
            if logouts().covers(cookies):
                scope = _without_login(scope, cookies)
            elif scope["path"].endswith(LOGOUT_ROUTE):
                await to_thread.run_sync(logouts().end, cookies)
        await self._app(scope, receive, send)


def _without_login(scope: Scope, cookies: dict[str, str]) -> Scope:
    kept = {name: value for name, value in cookies.items() if not name.startswith(LOGIN_COOKIE)}
    changed = {**scope, "headers": list(scope["headers"])}
    MutableHeaders(scope=changed)["cookie"] = "; ".join(f"{name}={value}" for name, value in kept.items())
    return changed
