"""Serve the app: ``python -m senseapp.app.server.serve [--server.port 8501 ...]``, with Streamlit's options.

Streamlit takes a folder called ``pages`` for pages of its own kind until ``st.navigation`` has run once. Somebody who
opens a link to a run on a fresh server would then see that page without ``app.py`` around it, so the old kind is
switched off before the first visitor comes.
"""

from __future__ import annotations

import logging
import os
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

from senseapp.app.server.application import APP_SCRIPT, application
from senseapp.app.server.guards import configured_hosts, frame_ancestors
from senseapp.app.server.limits import SILENT_SECONDS, configured_limits, raise_descriptors
from senseapp.compat.streamlit_internals import (
    close_silent_connections,
    ignore_pages_folder,
    limit_incoming_messages,
    options_of_environment,
)
from senseapp.core.errors import HomeInUse, InvalidSpec, StorageFailed
from senseapp.core.files import PRIVATE, home, lock_home
from senseapp.core.process import measuring_environment
from senseapp.server.operations import log_to
from senseapp.server.quotas import UploadLimits

Option = str | int | bool | list[str]

_SWITCH_SECONDS = 0.001
"""How long a page may keep the interpreter from other threads, such as the one that stores what a run has found."""
_MESSAGE_BYTES = 2_000_000
"""Of what a page sends at once, and anybody may: the states of its widgets take some ten kB, files go another way."""


def serve(arguments: list[str]) -> None:
    """Run the server until it is stopped; ``arguments`` are options as of ``streamlit run``.

    Raises:
        SystemExit: they are none, another server works in the same home, or a setting cannot be used.
    """
    os.umask(PRIVATE)
    raise_descriptors()
    _keep_home()
    try:
        frame_ancestors()
        configured_hosts()
        configured_limits()
    except InvalidSpec as error:
        raise SystemExit(str(error)) from error
    os.environ.setdefault("SENSEAPP_JOB_PROCESSES", "1")
    os.environ.setdefault("SENSEAPP_RECOMMEND_SECONDS", "120")
    os.environ.update(measuring_environment())  # for this process's threads, and for processes that it starts
    with suppress(StorageFailed):  # the log goes to standard error alone, and pages say what is wrong
        log_to(home(), _secrets())
    sys.setswitchinterval(_SWITCH_SECONDS)
    ignore_pages_folder()
    limit_incoming_messages(_MESSAGE_BYTES)
    close_silent_connections(SILENT_SECONDS)
    sys.argv = [str(APP_SCRIPT)]  # Streamlit looks for .streamlit/config.toml beside it
    of_environment = {name: _value(given) for name, given in options_of_environment().items()}
    upload_size = {"server.maxUploadSize": UploadLimits.configured().file_mb}
    application().run(config=of_environment | upload_size | options_of(arguments))


def _keep_home() -> None:
    try:
        lock_home(home())
    except HomeInUse as error:
        raise SystemExit(str(error)) from error
    except StorageFailed:  # pages say what is wrong
        logging.getLogger(__name__).exception("the home cannot be used")


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

    Raises:
        SystemExit: there is something else among them.
    """
    words = [part for argument in arguments for part in argument.split("=", 1 if argument.startswith("--") else 0)]
    names, values = words[::2], words[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names):
        raise SystemExit(f"Options come as --name value, such as --server.port 8501; got {' '.join(arguments)}.")
    return {name.removeprefix("--"): _value(value) for name, value in zip(names, values, strict=True)}


def _value(text: str | list[str]) -> Option:
    if isinstance(text, list):
        return text
    if text.isdecimal():
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)


if __name__ == "__main__":
    serve(sys.argv[1:])
