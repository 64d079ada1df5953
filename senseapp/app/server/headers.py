"""Security headers on every answer, and the token that Streamlit's metrics ask for."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from senseapp.app.common.notices import INLINE_SCRIPTS
from senseapp.compat.streamlit_internals import KNOWN_BASE, PRIVATE_ROUTES, inline_scripts, with_known_base
from senseapp.core.errors import InvalidSpec

_ORIGIN = re.compile(r"https?://(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:\d{1,5})?")


class SecurityHeaders:
    """Middleware that adds them; headers of the same name are replaced."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, send_with_headers)


def frame_ancestors() -> tuple[str, ...]:
    """Return the origins whose pages may show the app in a frame: ``SENSEAPP_FRAME_ANCESTORS``, separated by spaces.

    Raises:
        InvalidSpec: one of them is no origin; a policy is made of them.
    """
    origins = tuple(os.environ.get("SENSEAPP_FRAME_ANCESTORS", "").split())
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise InvalidSpec(
                "SENSEAPP_FRAME_ANCESTORS lists origins such as https://example.org or https://*.example.org, "
                f"separated by spaces; got {origin!r}."
            )
    return origins


def content_security_policy() -> str:
    """Return the policy that Streamlit's own pages and charts need, and nothing more.

    Scripts come from this server only; Streamlit's one inline script and ours are named by their hashes. Styles are
    made in the page by Streamlit's and Vega's code, pictures of charts are data and blob addresses.
    """
    hashes = " ".join(f"'{_hash(script)}'" for script in (*inline_scripts(), KNOWN_BASE, *INLINE_SCRIPTS))
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


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


class KnownBase:
    """Middleware that lets a page know where its server is, see :func:`with_known_base`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if (
            scope["type"] != "http"
            or scope["method"] != "GET"
            or "text/html" not in Headers(scope=scope).get("accept", "")
        ):
            await self._app(scope, receive, send)
            return
        del MutableHeaders(scope=scope)["accept-encoding"]  # a few kB, to be read here
        start: Message | None = None
        parts: list[bytes] = []

        async def send_told(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_page(Headers(raw=message["headers"])):
                start = message
            elif start is None:
                await send(message)
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    body = with_known_base(b"".join(parts))
                    MutableHeaders(scope=start)["content-length"] = str(len(body))
                    await send(start)
                    await send({"type": "http.response.body", "body": body})

        await self._app(scope, receive, send_told)


def _is_page(headers: Headers) -> bool:
    return headers.get("content-type", "").startswith("text/html")


class PrivateMetrics:
    """Middleware that hides the metrics, unless ``SENSEAPP_METRICS_TOKEN`` is set and comes as a bearer token.

    They tell what everybody does here. An address of the network is no proof: behind a reverse proxy every request
    comes from the same one. Streamlit's agent interface, which answers even where it is switched off, is hidden with
    them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._expected = os.environ.get("SENSEAPP_METRICS_TOKEN", "").strip()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        private = scope["type"] == "http" and any(route in scope["path"] for route in PRIVATE_ROUTES)
        if private and not self._admits(Headers(scope=scope).get("authorization", "")):
            await PlainTextResponse("Not Found", 404)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _admits(self, authorization: str) -> bool:
        offered = authorization.removeprefix("Bearer ").strip()
        return bool(self._expected) and hmac.compare_digest(offered.encode(), self._expected.encode())
