"""Middleware: names and origins, cookies of ended logins, security headers, the token for Streamlit's metrics."""

import base64
import hashlib
import hmac
import os
import re
from abc import ABC, abstractmethod

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from senseapp.app.common.notices import INLINE_SCRIPTS
from senseapp.app.logins import logouts
from senseapp.compat.streamlit_internals import (
    KNOWN_BASE,
    LOGIN_COOKIE,
    LOGOUT_ROUTE,
    PRIVATE_ROUTES,
    allowed_origins,
    inline_scripts,
    listening_address,
    server_address,
    with_known_base,
)
from senseapp.core.errors import InvalidSpec

POLICY_VIOLATION = 1008  # close code of RFC 6455, 7.4.1
_EVERYWHERE = ("", "0.0.0.0", "::")  # addresses to listen on that name no host
_NAME = r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?"
_HOST = rf"(?P<host>(?P<name>{_NAME}(\.{_NAME})*|\[[0-9a-f:.]+\])(:(?P<port>\d{{1,5}}))?)"
_ORIGIN = re.compile(rf"(?P<scheme>https?)://{_HOST}", re.IGNORECASE)
_PATTERN = re.compile(rf"(\*\.)?{_NAME}(\.{_NAME})*|[0-9a-f:.]+", re.IGNORECASE)


class Around(ABC):
    """Middleware around ``app``, which sees every request first, or the connections and requests of its ``kinds``."""

    kinds = frozenset({"http"})

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        await (self._serve if scope["type"] in self.kinds else self._app)(scope, receive, send)

    @abstractmethod
    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class KnownSites(Around):
    """Answers requests and connections to known names of this server alone, and of pages of its own origin alone.

    A page of another site can make its name resolve to this server's address; its requests then name that site as their
    host and as their origin.
    """

    kinds = frozenset({"http", "websocket"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(Headers(scope=scope).getlist("host")) > 1:  # the check reads the first
            await _refuse(scope, receive, send, "A request names one host.", 400)
            return
        names = known_hosts((scope.get("server") or ("",))[0])
        checked = TrustedHostMiddleware(self._serve_own, names, www_redirect=False)
        await checked(scope, receive, _closing(send))

    async def _serve_own(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origins = headers.getlist("origin")
        if len(origins) > 1 or not is_own_origin("".join(origins), headers["host"]):
            await _refuse(scope, receive, send, "Pages of another origin may not use this server.", 403)
        else:
            await self._app(scope, receive, send)


def _closing(send: Send) -> Send:
    """Return ``send`` for connections, closed where they are denied by a response: uvicorn logs that as an error."""

    async def sent(message: Message) -> None:
        if message["type"] == "websocket.http.response.start":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        elif message["type"] != "websocket.http.response.body":
            await send(message)

    return sent


async def _refuse(scope: Scope, receive: Receive, send: Send, sentence: str, status: int) -> None:
    if scope["type"] == "http":
        await PlainTextResponse(sentence, status)(scope, receive, send)
        return
    await receive()  # the request to connect; refusing it then answers with 403
    await send({"type": "websocket.close", "code": POLICY_VIOLATION})


def configured_hosts() -> tuple[str, ...]:
    """Return the names in ``SENSEAPP_HOSTS``, separated by spaces or commas; ``*.`` stands for any part before a dot.

    Raises InvalidSpec if one of them is no name of a host.
    """
    about = "names without scheme and port, such as app.example.org or *.example.org"
    return tuple(name.lower() for name in _configured("SENSEAPP_HOSTS", _PATTERN, about))


def _configured(variable: str, pattern: re.Pattern[str], about: str) -> tuple[str, ...]:
    """Return the entries of a variable, separated by spaces or commas; InvalidSpec for one that is not ``about``."""
    entries = tuple(os.environ.get(variable, "").replace(",", " ").split())
    for entry in entries:
        if not pattern.fullmatch(entry):
            raise InvalidSpec(f"{variable} lists {about}, with spaces between them; got {entry!r}.")
    return entries


def known_hosts(address: str) -> tuple[str, ...]:
    """Return the names of this server in requests to this machine's ``address``, at any port.

    These are the loopback names, the address itself (which is no name that somebody else could make resolve to it), the
    names that Streamlit's options give the server, and those of ``SENSEAPP_HOSTS``.
    """
    told = [name for name in (server_address(), listening_address(), address) if name not in _EVERYWHERE]
    names = ("localhost", "127.0.0.1", "::1", *told, *configured_hosts())
    return tuple(f"[{name}]" if ":" in name else name for name in names)  # as a header writes an IPv6 address


def is_own_origin(origin: str, host: str) -> bool:
    """Return whether a page of ``origin`` may use the server at ``host``.

    It may where both are the same, where the origin is the configured name of this server on the usual port, and where
    the server was told to allow it. Programs that are no browsers send no origin.
    """
    if not origin or origin in allowed_origins():
        return True
    found = _ORIGIN.fullmatch(origin)
    if not found:
        return False
    if found["host"].lower() == host.lower():
        return True
    is_usual = found["port"] in (None, "443" if found["scheme"].lower() == "https" else "80")
    return is_usual and found["name"].lower() == server_address().lower()


class EndedLogins(Around):
    """Takes the cookies of ended logins out of requests, and answers the address of the logout after a logout alone.

    Pages of other sites, and texts on ours, can make a browser GET any address. So the button ends the login itself, by
    a message of its page (:mod:`senseapp.app.common.account`); the address it leads to then only clears the cookie, and
    tells the login provider where that wants to be told.
    """

    kinds = frozenset({"http", "websocket"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if LOGIN_COOKIE in Headers(scope=scope).get("cookie", ""):
            cookies = HTTPConnection(scope).cookies
            leaves, has_ended = scope["path"].endswith(LOGOUT_ROUTE), logouts().covers(cookies)
            if leaves and not has_ended:
                answer = PlainTextResponse("This address logs nobody out. Press Log out on a page.", 403)
                await answer(scope, receive, send)
                return
            if has_ended and not leaves:
                kept = (f"{name}={value}" for name, value in cookies.items() if not name.startswith(LOGIN_COOKIE))
                scope = {**scope, "headers": list(scope["headers"])}
                MutableHeaders(scope=scope)["cookie"] = "; ".join(kept)
        await self._app(scope, receive, send)


_FRAMING_ORIGIN = re.compile(r"https?://(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:\d{1,5})?")


class SecurityHeaders(Around):
    """Middleware that adds them; headers of the same name are replaced."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._headers = {
            "Content-Security-Policy": content_security_policy(),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",  # addresses hold the ids of runs
            "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        if not frame_ancestors():  # says what frame-ancestors says, to old browsers; it cannot name origins
            self._headers["X-Frame-Options"] = "DENY"

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def frame_ancestors() -> tuple[str, ...]:
    """Return the origins whose pages may show the app in a frame: ``SENSEAPP_FRAME_ANCESTORS``, by spaces or commas.

    Raises:
        InvalidSpec: one of them is no origin; a policy is made of them.
    """
    about = "origins such as https://example.org or https://*.example.org"
    return _configured("SENSEAPP_FRAME_ANCESTORS", _FRAMING_ORIGIN, about)


def content_security_policy() -> str:
    """Return the policy that Streamlit's own pages and charts need, and nothing more.

    Scripts come from this server only; Streamlit's one inline script and ours are named by their hashes. Styles are
    made in the page by Streamlit's and Vega's code, pictures of charts are data and blob addresses.
    """
    scripts = (*inline_scripts(), KNOWN_BASE, *INLINE_SCRIPTS.values())
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    framed_by = " ".join(frame_ancestors()) or "'none'"
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self' 'wasm-unsafe-eval' {hashes}".rstrip(),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self' data: blob:",
            "worker-src 'self' blob:",
            "media-src 'self' blob:",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            f"frame-ancestors {framed_by}",
        )
    )


class KnownBase(Around):
    """Middleware that tells a page the address of its server, see :func:`with_known_base`."""

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET" or "text/html" not in Headers(scope=scope).get("accept", ""):
            await self._app(scope, receive, send)
            return
        del MutableHeaders(scope=scope)["accept-encoding"]  # a few kB, to be read here
        is_page = False

        async def send_told(message: Message) -> None:
            nonlocal is_page
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_page = headers.get("content-type", "").startswith("text/html")
                if is_page:
                    del headers["content-length"]  # the page gets longer
            elif is_page:
                message = {**message, "body": with_known_base(message.get("body", b""))}
            await send(message)

        await self._app(scope, receive, send_told)


class PrivateMetrics(Around):
    """Middleware that hides the metrics, unless ``SENSEAPP_METRICS_TOKEN`` is set and comes as a bearer token.

    They tell what everybody does here. An address of the network is no proof: behind a reverse proxy every request
    comes from the same one. Streamlit's agent interface, which answers even where it is switched off, is hidden with
    them.
    """

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(route in scope["path"] for route in PRIVATE_ROUTES):
            expected = os.environ.get("SENSEAPP_METRICS_TOKEN", "").strip()
            offered = Headers(scope=scope).get("authorization", "").removeprefix("Bearer ").strip()
            if not (expected and hmac.compare_digest(offered.encode(), expected.encode())):
                await PlainTextResponse("Not Found", 404)(scope, receive, send)
                return
        await self._app(scope, receive, send)
