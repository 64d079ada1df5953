"""Deferred download: factory, owner, expiry."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import streamlit as st

from senseapp.app.common import backend
from senseapp.compat.streamlit_internals import browser_key, session_id
from senseapp.core.disk import storage_errors
from senseapp.core.home import home

_FOLDER = "tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadOwner:
    """Who may fetch a file: one page of one browser, and one person where people log in."""

    session: str
    browser: bytes
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A file for one visitor.

    Attributes:
        make: returns its content, or where it lies; called in a thread that knows no visitor.
        is_temporary: whether the folder of the file that ``make`` returns goes once the file was fetched.
        asker: the visitor.
    """

    make: Callable[[], str | bytes | Path]
    is_temporary: bool
    asker: DownloadOwner

    def __call__(self) -> str | bytes | BinaryIO:
        """Return the content as Streamlit takes it, on a server without :class:`Downloads`."""
        made = self.make()
        return made.open("rb") if isinstance(made, Path) else made


def download(make: Callable[[], str | bytes | Path], *, is_temporary: bool = False) -> Download:
    """Return what to give a download button of this visitor; see :class:`Download`."""
    asker = DownloadOwner(session=session_id(), browser=browser_key(st.context.cookies), owner=backend.visitor().owner)
    return Download(make=make, is_temporary=is_temporary, asker=asker)


def new_file() -> Path:
    """Return the path of a new file in a temporary folder of its own.

    Raises:
        StorageFailed: the disk refuses.
    """
    parent = home() / _FOLDER
    with storage_errors(f"the folder {_FOLDER}"):
        parent.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent)) / "file"


def remove_new_files() -> None:
    """Remove what a server that ended has left of new files."""
    shutil.rmtree(home() / _FOLDER, ignore_errors=True)
