"""The web server: the application, and its start by ``python -m senseapp.app.server.serve [--server.port 8501 ...]``.

The application is Streamlit around ``app.py``, with what this server adds to each request.

Streamlit takes a folder called ``pages`` for pages of its own kind until ``st.navigation`` has run once. Somebody who
opens a link to a run on a fresh server would then see that page without ``app.py`` around it, so the old kind is
switched off before the first visitor comes.
"""

import asyncio
import gc
import logging
import os
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path

import streamlit as st
from anyio import to_thread
from starlette.middleware import Middleware

from senseapp.app.common import backend
from senseapp.app.common.download import remove_new_files
from senseapp.app.server import guards
from senseapp.app.server.downloads import Downloads, download_registry
from senseapp.app.server.limits import SILENT_SECONDS, BoundedMessages, Connections, configured_limits, descriptors
from senseapp.app.uploads.registry import upload_registry
from senseapp.app.uploads.to_disk import UploadsToDisk
from senseapp.compat import streamlit_internals as internals
from senseapp.core.errors import HomeInUse, InvalidSpec, SenseError, StorageFailed
from senseapp.core.files import PRIVATE, SITE, home, lock_home
from senseapp.core.process import give_back_freed_memory, measuring_environment
from senseapp.server.backend import close_backends
from senseapp.server.operations import log_to
from senseapp.server.process.processes import remove_left_over
from senseapp.server.settings import ServerSettings

APP_SCRIPT = SITE / "app.py"
_QUIET_SECONDS = 2.0  # in which a first visitor would come who has just started the server
_FIRST_PAGE = ("senseapp.app.common.account", "senseapp.app.analyze.start", "senseapp.app.analyze.understood")
_FIRST_CHART = "senseapp.app.results.views"  # with altair, which the first page does without


def application() -> st.App:
    """Return the application, to be run once."""
    return st.App(
        APP_SCRIPT,
        lifespan=_lifespan,
        middleware=[
            Middleware(guards.SecurityHeaders),
            Middleware(guards.KnownSites),
            Middleware(guards.PrivateMetrics),
            Middleware(guards.KnownBase),
            Middleware(Connections, **configured_limits()),
            Middleware(BoundedMessages),
            Middleware(guards.EndedLogins),
            Middleware(Downloads, registry=download_registry()),
            Middleware(UploadsToDisk, registry=upload_registry()),
        ],
    )


@asynccontextmanager
async def _lifespan(app: st.App) -> AsyncIterator[None]:
    _log_with_the_rest()
    remove_new_files()
    remove_left_over()
    internals.deliver_downloads(download_registry().deliver)
    sweeping = asyncio.create_task(_sweep(), name="sweep-sessions")
    readying = asyncio.create_task(_get_ready(), name="get-ready")
    yield
    await _stopped(readying)
    await to_thread.run_sync(close_backends)  # a signal that ends the server leaves no time for anything later
    await _stopped(sweeping)
    download_registry().close()


async def _get_ready() -> None:
    """Load the modules that the first visitor would wait for, and those that would slow later pages down."""
    for module in _FIRST_PAGE:
        await to_thread.run_sync(import_module, module)
    await asyncio.sleep(_QUIET_SECONDS)
    await to_thread.run_sync(import_module, _FIRST_CHART)
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
        if name.split(".")[0] in internals.LOGGERS:
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(max(logger.level, logging.WARNING))


async def _sweep() -> None:
    """Remove the files of sessions that have ended, and what else they left in memory, every minute."""
    while True:
        await asyncio.sleep(60.0)
        await to_thread.run_sync(upload_registry().close_ended, internals.is_connected)
        await to_thread.run_sync(download_registry().sweep)
        await to_thread.run_sync(gc.collect)
        await to_thread.run_sync(give_back_freed_memory)


Option = str | int | bool | list[str]


def serve(arguments: list[str]) -> None:
    """Run the server until it is stopped; ``arguments`` are options as of ``streamlit run``.

    Raises SystemExit if they are none, another server works in the same home, or a setting cannot be used.
    """
    os.umask(PRIVATE)
    descriptors()
    try:
        lock_home(home())
    except HomeInUse as error:
        raise SystemExit(str(error)) from error
    except StorageFailed:  # pages say what is wrong
        logging.getLogger(__name__).exception("the home cannot be used")
    try:
        guards.frame_ancestors()
        guards.configured_hosts()
        configured_limits()
        upload_mb = ServerSettings.configured().upload_mb
    except InvalidSpec as error:
        raise SystemExit(str(error)) from error
    os.environ.setdefault("SENSEAPP_JOB_PROCESSES", "1")
    os.environ.setdefault("SENSEAPP_RECOMMEND_SECONDS", "180")
    os.environ.update(measuring_environment())  # for this process's threads, and for processes that it starts
    with suppress(StorageFailed):  # the log goes to standard error alone, and pages say what is wrong
        log_to(home(), _secrets())
    sys.setswitchinterval(0.001)  # pages must not keep the interpreter from the thread that stores measurements
    internals.ignore_pages_folder()
    internals.ignore_forged_states()
    internals.limit_incoming_messages(2_000_000)  # bytes: states of widgets take some ten kB, files go another way
    internals.close_silent_connections(SILENT_SECONDS)
    sys.argv = [str(APP_SCRIPT)]  # Streamlit looks for .streamlit/config.toml beside it
    of_environment = {name: _value(given) for name, given in internals.options_of_environment().items()}
    application().run(config=of_environment | {"server.maxUploadSize": upload_mb} | options_of(arguments))


def _secrets() -> list[str]:
    """Return the texts of ``secrets.toml``, such as the login's, for the log to leave out."""
    files = (folder / ".streamlit" / "secrets.toml" for folder in (APP_SCRIPT.parent, Path.cwd(), Path.home()))
    waiting: list[object] = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    found: list[str] = []
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
    return found


def options_of(arguments: list[str]) -> dict[str, Option]:
    """Return ``--name value`` and ``--name=value`` as options.

    >>> options_of(["--server.port=8502", "--server.headless", "true"])
    {'server.port': 8502, 'server.headless': True}

    Raises SystemExit if there is something else among them.
    """
    words = [part for argument in arguments for part in argument.split("=", 1 if argument.startswith("--") else 0)]
    names, values = words[::2], words[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        raise SystemExit(f"Options come as --name value, such as --server.port 8501; got {' '.join(arguments)}.")
    return {name.removeprefix("--"): _value(value) for name, value in zip(names, values, strict=True)}


def _value(text: str | list[str]) -> Option:
    if isinstance(text, list):
        return text
    return int(text) if text.isdecimal() else {"true": True, "false": False}.get(text.lower(), text)


if __name__ == "__main__":
    serve(sys.argv[1:])
