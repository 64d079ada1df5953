"""Streamlit's metrics tell what everybody does here: only who has the token may read them."""

from __future__ import annotations

import hmac
import os

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from senseapp.compat.streamlit_internals import PRIVATE_ROUTES


class PrivateMetrics:
    """Middleware that hides the metrics, unless ``SENSEAPP_METRICS_TOKEN`` is set and comes as a bearer token.

    An address of the network is no proof: behind a reverse proxy every request comes from the same one. Streamlit's
    agent interface, which answers even where it is switched off, is hidden with them.
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
