"""Uploaded files: on disk before a page sees them, or copied there where a server of another kind kept them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import NoReturn

import streamlit as st
from streamlit.typing import UploadedFile

from senseapp.app.common import backend
from senseapp.app.common.notices import complain
from senseapp.app.common.state import session
from senseapp.app.uploads.registry import IncomingFile, Upload, upload_registry
from senseapp.compat.streamlit_internals import free_upload, session_id
from senseapp.core.disk import storage_errors
from senseapp.core.errors import InvalidFile, QuotaExceeded, SenseError
from senseapp.runs.disk_space import UploadLimits

_CHUNK_BYTES = 4 * 1024 * 1024
_LONGEST_NAME = 80


def upload_field(label: str, *, purpose: str, types: list[str], help_text: str) -> Path | None:
    """Show an uploader until a file is there, then its name with a button to choose another.

    The file goes to a folder of its own among this visitor's uploads; what the browser called it is kept only
    as far as it is harmless. Returns the path, or None while there is none.
    """
    held = session().uploads.get(purpose)
    if held is not None and held.is_file():
        _show_held(held, purpose)
        return held
    expect_files()
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


def expect_files() -> None:
    """Let this session's browser send files, if it is known whose; call it wherever an uploader is shown."""
    if backend.visitor().is_known:
        upload_registry().expect(session_id(), backend.service())


def read_upload(uploaded: UploadedFile, *, most_megabytes: int) -> bytes:
    """Return the content of a small file, which stays until its field lets go of it.

    Raises:
        InvalidFile: it is larger than that.
        SenseError: it was not stored: a quota would be passed, or the disk refuses.
    """
    upload = upload_registry().look(session_id(), uploaded.file_id)
    if upload is None:
        return uploaded.getvalue()
    if upload.path is None:
        raise QuotaExceeded(upload.refused)
    with storage_errors("the folder uploads"), upload.path.open("rb") as stream:
        content = stream.read(most_megabytes * 1_000_000 + 1)
    if len(content) > most_megabytes * 1_000_000:
        raise InvalidFile(f"This file may have up to {most_megabytes} MB. Choose a smaller one.")
    return content


def store_upload(uploaded: UploadedFile) -> Path:
    """Return where ``uploaded`` lies on disk, under a harmless name, and drop Streamlit's copy from memory.

    It belongs to this visitor, and goes when the session ends unless a run reads it by then.

    Raises:
        SenseError: it was not stored: a quota would be passed, or the disk refuses.
    """
    try:
        upload = upload_registry().take(session_id(), uploaded.file_id) or _from_memory(uploaded)
    finally:
        free_upload(uploaded.file_id)
    if upload.path is None:
        raise QuotaExceeded(upload.refused)
    with storage_errors("the folder uploads"):
        return upload.path.replace(upload.path.with_name(_safe_name(uploaded.name)))


def refuse_upload(purpose: str, sentence: str) -> NoReturn:
    """Remove the file that was uploaded for ``purpose`` and say why, beside the uploader that comes back."""
    backend.service().inputs.discard_upload(session().uploads.pop(purpose))
    session().refused[purpose] = sentence
    st.rerun()


def _take(uploaded: UploadedFile, purpose: str) -> NoReturn:
    session().refused.pop(purpose, None)
    try:
        session().uploads[purpose] = store_upload(uploaded)
    except SenseError as error:
        session().refused[purpose] = str(error)
    _forget_widget(purpose)
    st.rerun()


def _show_held(path: Path, purpose: str) -> None:
    row = st.container(horizontal=True, vertical_alignment="center")
    row.markdown(f":material/description: `{path.name}`", width="content")
    if row.button("Choose another file", key=f"analyze.{purpose}.replace", type="tertiary"):
        backend.service().inputs.discard_upload(session().uploads.pop(purpose))
        st.rerun()


def _widget_key(purpose: str) -> str:
    return f"analyze.{purpose}.file.{session().upload_round.get(purpose, 0)}"


def _forget_widget(purpose: str) -> None:
    rounds = session().upload_round
    rounds[purpose] = rounds.get(purpose, 0) + 1


def _from_memory(uploaded: UploadedFile) -> Upload:
    incoming = IncomingFile(backend.service(), uploaded.size)
    uploaded.seek(0)
    for content in iter(partial(uploaded.read, _CHUNK_BYTES), b""):
        incoming.write(content)
    return incoming.finish()


def _safe_name(name: str) -> str:
    """Keep the last part of ``name`` and its letters, digits, dots and dashes; never a hidden file."""
    last = re.split(r"[\\/]", name)[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", last).lstrip(".")[-_LONGEST_NAME:] or "upload"
