"""Uploaded files: on disk before a page sees them, or copied there where a server of another kind kept them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import streamlit as st
from streamlit.typing import UploadedFile

from senseapp.app.common import backend
from senseapp.app.common.notices import complain
from senseapp.app.common.state import session
from senseapp.app.uploads.registry import IncomingFile, suffix_of, upload_registry, zip_entries, zip_entry, zip_files
from senseapp.compat.streamlit_internals import free_upload, session_id
from senseapp.core.errors import InvalidFile, QuotaExceeded, SenseError
from senseapp.core.files import storage_errors
from senseapp.core.markdown import code, md
from senseapp.core.texts import distinct, listed, plural
from senseapp.records.spec import LOOSE_PICTURES, upload_title
from senseapp.server.access import UploadPurpose
from senseapp.server.settings import ServerSettings

_ARCHIVES = (".zip", ".tar", ".tgz", ".gz")
_CHUNK_BYTES = 4 * 1024 * 1024  # copied at a time: the file is held twice for no more than that
_MOST_RECENT = 3  # files of this session that are kept beside the chosen one


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseFiles:
    """Files that a field takes several of at once, and keeps as one archive.

    Attributes:
        suffixes: of such files, with their dots.
        most: the largest number of them.
        words: what they are called: ``pictures``.
        main: suffixes of the file that gives the archive its name.
        counted: suffixes of files whose number is its name where there is no such file; else it is that of the first.
        grows: whether one such file becomes an archive too, and more can be added later.
    """

    suffixes: frozenset[str]
    most: int
    words: str
    main: tuple[str, ...] = ()
    counted: frozenset[str] = frozenset()
    grows: bool = False


def upload_field(
    label: str, *, purpose: UploadPurpose, types: list[str], help_text: str, loose: LooseFiles | None = None
) -> Path | None:
    """Show an uploader until a file is there, then its name with a button to choose another.

    The file goes to a folder of its own among this visitor's uploads; what the browser called it is kept only
    as far as it is harmless. With ``loose``, several files are taken too, as one archive, to which more can be added
    where it grows. Returns the path, or None while there is none.
    """
    held = session().uploads.get(purpose)
    held = held if held is not None and held.is_file() else None
    if held is not None:
        _show_held(held, purpose)
        if loose is None or not loose.grows:
            return held
    expect_files()
    uploaded = st.file_uploader(
        label if held is None else "Add more files",
        type=types,
        accept_multiple_files=loose is not None,
        key=f"analyze.{purpose}.file.{session().upload_round[purpose]}",
        help=help_text,
        max_upload_size=ServerSettings.configured().upload_mb,
    )
    if purpose in session().refused:
        complain(session().refused[purpose])
    if uploaded:
        _take(uploaded if isinstance(uploaded, list) else [uploaded], purpose, loose, held)
    if held is None:
        _offer_recent(purpose)
    return held


def forget_refusal(purpose: UploadPurpose) -> None:
    """Clear the message on the last refused file of this purpose; call it where no uploader for it is shown."""
    session().refused.pop(purpose, None)


def adopt_upload(name: str) -> Path:
    """Return the upload that an address names, which is kept as long as this session is; NotFound without it."""
    path = backend.service().inputs.upload_named(name)
    upload_registry().adopt(session_id(), path, backend.service())
    return path


def expect_files() -> None:
    """Allow this session's browser to upload files, if its owner is known; call it beside every uploader."""
    if backend.visitor().is_known:
        upload_registry().expect(session_id(), backend.service())


def upload_path(uploaded: UploadedFile) -> Path:
    """Return where an uploaded file lies until it is dropped or its field is cleared.

    Raises SenseError if a quota would be passed, or the disk refuses.
    """
    upload = upload_registry().look(session_id(), uploaded.file_id)
    if upload is None:  # Streamlit has it in memory
        incoming = IncomingFile(backend.service(), uploaded.size)
        uploaded.seek(0)
        for content in iter(partial(uploaded.read, _CHUNK_BYTES), b""):
            incoming.write(content)
        upload = incoming.finish()
        upload_registry().keep(session_id(), uploaded.file_id, upload, backend.service())
    if isinstance(upload, str):
        raise QuotaExceeded(upload)
    return upload


def drop_upload(uploaded: UploadedFile) -> None:
    """Remove an uploaded file that was read."""
    upload_registry().drop(session_id(), uploaded.file_id)
    free_upload(uploaded.file_id)


def read_upload(uploaded: UploadedFile, *, most_megabytes: int) -> bytes:
    """Return the content of a small file.

    Raises:
        InvalidFile: it is larger than that.
        SenseError: as of :func:`upload_path`.
    """
    with storage_errors("the folder uploads"), upload_path(uploaded).open("rb") as stream:
        content = stream.read(most_megabytes * 1_000_000 + 1)
    if len(content) > most_megabytes * 1_000_000:
        raise InvalidFile(f"This file may have up to {most_megabytes} MB. Choose a smaller one.")
    return content


def store_upload(uploaded: UploadedFile) -> Path:
    """Return where ``uploaded`` lies on disk, under a harmless name, and drop Streamlit's copy from memory.

    It belongs to this visitor, and goes when the session ends unless a run reads it by then.

    Raises SenseError if a quota would be passed, or the disk refuses.
    """
    try:
        path = upload_path(uploaded)
    finally:
        upload_registry().take(session_id(), uploaded.file_id)
        free_upload(uploaded.file_id)
    return _named(path, uploaded.name)


def refuse_upload(purpose: UploadPurpose, sentence: str) -> NoReturn:
    """Remove the file that was uploaded for ``purpose`` and show the reason beside an empty uploader."""
    backend.service().inputs.discard_upload(session().uploads.pop(purpose))
    session().refused[purpose] = sentence
    st.rerun()


def _take(
    uploaded: list[UploadedFile], purpose: UploadPurpose, loose: LooseFiles | None, held: Path | None
) -> NoReturn:
    with taking(purpose):
        is_alone = len(uploaded) == 1 and held is None
        if loose is not None and not (is_alone and (not loose.grows or suffix_of(uploaded[0].name) in _ARCHIVES)):
            session().uploads[purpose] = _packed(uploaded, loose, held)
        else:
            session().uploads[purpose] = store_upload(uploaded[0])
    st.rerun()


@contextmanager
def taking(purpose: str) -> Iterator[None]:
    """Keep why a file of this purpose is refused in the body, and let its uploader empty itself."""
    session().refused.pop(purpose, None)
    try:
        yield
    except SenseError as error:
        session().refused[purpose] = str(error)
    session().upload_round[purpose] += 1


def _packed(uploaded: list[UploadedFile], loose: LooseFiles, held: Path | None) -> Path:
    """Return an archive of loose files, in the order in which they came, after the one that is ``held``."""
    others = sorted({suffix for file in uploaded if (suffix := suffix_of(file.name)) not in loose.suffixes})
    if others or len(uploaded) > loose.most:
        raise InvalidFile(
            f"Several files at once must be {loose.words}, at most {loose.most}; {listed(others)} came too. Choose one "
            f"archive, or {loose.words} alone."
            if others
            else f"At most {loose.most} loose {loose.words} are taken at once; {len(uploaded)} came. Send them as a "
            "zip."
        )
    new = list(map(store_upload, uploaded))
    parts = [] if held is None else [held]
    known = set() if held is None else {zip_entry(held), *zip_entries(held)}
    for path in tuple(new):
        entry = zip_entry(path)
        if entry in known:  # sent twice
            new.remove(path)
            backend.service().inputs.discard_upload(path)
        else:
            parts.append(path)
            known.add(entry)
    if held is not None and not new:
        return held
    try:
        packed = _named(zip_files(backend.service(), parts), _archive_name([path.name for path in parts], loose))
    except SenseError:
        parts = new  # what was there before stays
        raise
    finally:
        for part in parts:
            backend.service().inputs.discard_upload(part)
    return packed


def _archive_name(names: list[str], loose: LooseFiles) -> str:
    """Return the name of an archive of files of these ``names``: ``6 pictures.zip``."""
    own = {name: int(known[1].replace(",", "")) for name in names if (known := LOOSE_PICTURES.fullmatch(name))}
    main = next((name for name in names if suffix_of(name) in loose.main and name not in own), "")
    if main or not loose.counted:
        return f"{Path(main or names[0]).stem}.zip"
    pictures = sum(own[name] for name in own if "picture" in name)
    pictures += sum(suffix_of(name) in loose.counted for name in names)
    return f"{plural(pictures, 'picture') if pictures else plural(len(names), 'file')}.zip"


def _named(path: Path, name: str) -> Path:
    """Rename a file to the last part of ``name``: its letters, digits, spaces and common marks; never a hidden file."""
    # 60 characters of up to four bytes: file systems take 255
    safe = re.sub(r"[^\w .()+=@,-]+", "_", re.split(r"[\\/]", name)[-1])[-60:].strip(" .-") or "upload"
    with storage_errors("the folder uploads"):
        return path.replace(path.with_name(safe))


def _show_held(path: Path, purpose: UploadPurpose) -> None:
    row = st.container(horizontal=True, vertical_alignment="center")
    row.markdown(md(":material/description: {}", code(upload_title(path.name))), width="content")
    if row.button("Choose another file", key=f"analyze.{purpose}.replace", type="tertiary"):
        recent = session().recent.setdefault(purpose, [])
        recent[:] = [path, *(each for each in recent if each != path)]
        for old in recent[_MOST_RECENT:]:
            backend.service().inputs.discard_upload(old)
        del recent[_MOST_RECENT:]
        del session().uploads[purpose]
        st.rerun()


def _offer_recent(purpose: UploadPurpose) -> None:
    """Offer the last files of this session and of this person's runs."""
    service = backend.service()
    if not backend.visitor().is_known:
        return
    paths = [*session().recent.get(purpose, ()), *service.inputs.used_uploads(service.runs(), purpose)]
    offered = {service.inputs.upload_name(str(path)): path for path in paths if path.is_file()}
    if not offered:
        return
    labels = distinct({name: upload_title(name.partition("/")[2]) for name in list(offered)[:20]})
    key = f"analyze.{purpose}.again"

    def choose_again() -> None:
        if (path := offered.get(st.session_state[key] or "")) is not None:
            forget_refusal(purpose)
            session().uploads[purpose] = path

    st.selectbox(
        "Or one of the last uploads",
        list(labels),
        index=None,
        format_func=labels.__getitem__,
        key=key,
        placeholder="Choose a file that is here already",
        on_change=choose_again,
    )
