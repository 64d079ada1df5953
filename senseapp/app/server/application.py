"""The whole web application: Streamlit around ``app.py``, with what this server adds to each request."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import import_module

import streamlit as st
from anyio import to_thread
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route

from senseapp.app.common import backend
from senseapp.app.common.download import remove_new_files
from senseapp.app.server.downloads import Downloads, download_registry
from senseapp.app.server.guards import EndedLogins, KnownBase, KnownSites, PrivateMetrics, SecurityHeaders
from senseapp.app.server.limits import BoundedMessages, Connections, configured_limits
from senseapp.app.uploads.registry import upload_registry
from senseapp.app.uploads.to_disk import UploadsToDisk
from senseapp.compat.streamlit_internals import LOGGERS, deliver_downloads, is_connected
from senseapp.core.errors import SenseError
from senseapp.core.files import SITE
from senseapp.core.process import give_back_freed_memory
from senseapp.server.backend import close_backends

APP_SCRIPT = SITE / "app.py"
_SWEEP_SECONDS = 60.0
_QUIET_SECONDS = 2.0  # in which a first visitor would come who has just started the server
_SLOW_TO_IMPORT = "senseapp.app.results.views"  # altair and pandas: seconds, which the first visitor would wait for


def application() -> st.App:
    """Return the application, to be run once."""
    return st.App(
        APP_SCRIPT,
        routes=[Route("/run", _moved)],
        lifespan=_lifespan,
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(KnownSites),
            Middleware(PrivateMetrics),
            Middleware(KnownBase),
            Middleware(Connections, **configured_limits()),
            Middleware(BoundedMessages),
            Middleware(EndedLogins),
            Middleware(Downloads, registry=download_registry()),
            Middleware(UploadsToDisk, registry=upload_registry()),
        ],
    )


async def _moved(request: Request) -> RedirectResponse:
    """Lead an old link to a run's progress on to its page."""
    return RedirectResponse(f"results?{request.url.query}")


@asynccontextmanager
async def _lifespan(app: st.App) -> AsyncIterator[None]:
    _log_with_the_rest()
    remove_new_files()
    deliver_downloads(download_registry().deliver)
    sweeping = asyncio.create_task(_sweep(), name="sweep-sessions")
    readying = asyncio.create_task(_get_ready(), name="get-ready")
    yield
    await _stopped(readying)
    await to_thread.run_sync(close_backends)  # a signal that ends the server leaves no time for anything later
    await _stopped(sweeping)
    download_registry().close()


async def _get_ready() -> None:
    """Load what the first visitor would wait for, and what would slow down the pages of one who comes later."""
    await to_thread.run_sync(import_module, _SLOW_TO_IMPORT)
    await asyncio.sleep(_QUIET_SECONDS)
    with suppress(SenseError):  # pages say what is wrong
        await to_thread.run_sync(backend.warm_up_ahead)


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _log_with_the_rest() -> None:
    """Let the server's own loggers, which print lines of their own form, log as everything else does.

    Only what is amiss: addresses that browsers ask for hold ids of sessions and runs.
    """
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] in LOGGERS:
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(max(logger.level, logging.WARNING))


async def _sweep() -> None:
    """Remove the files of sessions that have ended, and what else they left in memory, every minute."""
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        await to_thread.run_sync(upload_registry().close_ended, is_connected)
        await to_thread.run_sync(download_registry().sweep)
        await to_thread.run_sync(gc.collect)
        await to_thread.run_sync(give_back_freed_memory)
