"""Uploaded files: copied to disk in chunks, then dropped from the server's memory."""

from __future__ import annotations

import logging
import re
import shutil
import uuid
from pathlib import Path
from typing import NoReturn

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.uploaded_file_manager import UploadedFile

from senseapp.errors import SenseError, StorageFailed
from senseapp.service import UploadLimits
from senseapp.ui import backend
from senseapp.ui.components.notices import complain
from senseapp.ui.state import session

__all__ = ["refuse_upload", "upload_field"]

_CHUNK_BYTES = 4 * 1024 * 1024
_LONGEST_NAME = 80
_log = logging.getLogger(__name__)


def upload_field(label: str, *, purpose: str, types: list[str], help_text: str) -> Path | None:
    """Show an uploader until a file is there, then its name with a button to choose another.

    The file goes to a folder of its own among this visitor's uploads; what the browser called it is kept only
    as far as it is harmless. Returns the path, or None while there is none.
    """
    held = session().uploads.get(purpose)
    if held is not None and held.is_file():
        _show_held(held, purpose)
        return held
    uploaded = st.file_uploader(
        label,
        type=types,
        key=_widget_key(purpose),
        help=help_text,
        max_upload_size=UploadLimits.configured().file_mb,
    )
    if purpose in session().refused:
        complain(session().refused[purpose])
    if uploaded is None:
        return None
    return _take(uploaded, purpose)


def refuse_upload(purpose: str, sentence: str) -> NoReturn:
    """Remove the file that was uploaded for ``purpose`` and say why, beside the uploader that comes back."""
    backend.service().discard_upload(session().uploads.pop(purpose))
    session().refused[purpose] = sentence
    st.rerun()


def _take(uploaded: UploadedFile, purpose: str) -> NoReturn:
    session().refused.pop(purpose, None)
    try:
        session().uploads[purpose] = _store(uploaded)
    except SenseError as error:
        session().refused[purpose] = str(error)
    _free_memory(uploaded)
    _forget_widget(purpose)
    st.rerun()


def _show_held(path: Path, purpose: str) -> None:
    row = st.container(horizontal=True, vertical_alignment="center")
    row.markdown(f":material/description: `{path.name}`", width="content")
    if row.button("Choose another file", key=f"analyze.{purpose}.replace", type="tertiary"):
        backend.service().discard_upload(session().uploads.pop(purpose))
        st.rerun()


def _widget_key(purpose: str) -> str:
    return f"analyze.{purpose}.file.{session().upload_round.get(purpose, 0)}"


def _forget_widget(purpose: str) -> None:
    rounds = session().upload_round
    rounds[purpose] = rounds.get(purpose, 0) + 1


def _store(uploaded: UploadedFile) -> Path:
    folder = backend.service().make_room(uploaded.size) / uuid.uuid4().hex
    path = folder / _safe_name(uploaded.name)
    uploaded.seek(0)
    try:
        folder.mkdir(parents=True)
        with path.open("wb") as stream:
            shutil.copyfileobj(uploaded, stream, _CHUNK_BYTES)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StorageFailed(f"The file could not be stored ({error.strerror}). Try again later.") from error
    return path


def _safe_name(name: str) -> str:
    """Keep the last part of ``name`` and its letters, digits, dots and dashes; never a hidden file."""
    last = re.split(r"[\\/]", name)[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", last).lstrip(".")[-_LONGEST_NAME:] or "upload"


def _free_memory(uploaded: UploadedFile) -> None:
    """Drop Streamlit's copy, which it would keep until the session ends (a semi-private call)."""
    context = get_script_run_ctx()
    remove = getattr(context.uploaded_file_mgr, "remove_file", None) if context else None
    if context is None or remove is None:
        _log.warning("This Streamlit keeps an upload in memory until its session ends.")
    else:
        remove(session_id=context.session_id, file_id=uploaded.file_id)
