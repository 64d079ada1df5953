"""A sound run file with markup in every text that its records may hold, found by trying each field of each record."""

import io
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import SenseError
from senseapp.store.run_file import RESULT_NAME, read_run_file, record_in
from senseapp.store.run_folder import RunFolder

MARKUP = (
    "![pic](/evil/p) [in](http://evil.example) :red-badge[evil] :material/skull: :skull: www.evil.example "
    "me@evil.example <b>evil</b> **evil** $e^{v}$ ~~evil~~ a -> b"
)
_MOST_BYTES = 10**9

Field = tuple[str, str]
"""Name of a record's class, and of its field."""


def marked_run_file(source: Path) -> tuple[bytes, list[Field]]:
    """Return the run file ``source`` with :data:`MARKUP` in every text that a reader takes, and in which fields it is.

    Names of layers are marked everywhere alike, as records name them to each other.
    """
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    kinds = {name: kind for name in members if (kind := record_in(name)) is not None}
    records = {name: loads(members[name], kind) for name, kind in kinds.items()}
    layers = {layer.name for layer in records[RESULT_NAME].profile.layers}
    records = {name: _mapped(record, lambda text, _: _marked(text) if text in layers else text)
               for name, record in records.items()}  # fmt: skip
    taken: list[Field] = []
    for field in sorted({field for record in records.values() for field in _text_fields(record)}):
        with suppress(SenseError, ValueError, KeyError, TypeError):
            tried = {name: _mapped(record, lambda text, at, field=field: _marked(text) if at == field else text)
                     for name, record in records.items()}  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                file = io.BytesIO(_zipped(members, tried))
                read_run_file(file, RunFolder(Path(folder)), most_bytes=_MOST_BYTES)
            records = tried
            taken.append(field)
    return _zipped(members, records), taken


def _marked(text: str) -> str:
    return text if MARKUP in text else f"{text} {MARKUP}".strip()


def _zipped(members: dict[str, bytes], records: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, dumps(records[name]) if name in records else content)
    return stream.getvalue()


def _mapped(value: Any, change: Callable[[str, Field], str], at: Field = ("", "")) -> Any:
    """Return ``value`` with every text in it changed; ``change`` gets the text and the field that it is in."""
    if type(value) is str:
        return change(value, at)
    if isinstance(value, tuple | list):
        return type(value)(_mapped(each, change, at) for each in value)
    if isinstance(value, dict):
        return {_mapped(key, change, at): _mapped(each, change, at) for key, each in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    kind = type(value).__name__
    parts = {each.name: _mapped(getattr(value, each.name), change, (kind, each.name)) for each in fields(value)}
    changed = {name: part for name, part in parts.items() if part != getattr(value, name)}
    return replace(value, **changed) if changed else value


def _text_fields(value: Any, at: Field = ("", "")) -> Iterator[Field]:
    if type(value) is str:
        yield at
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _text_fields(each, at)
    elif isinstance(value, dict):
        yield from _text_fields([*value, *value.values()], at)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _text_fields(getattr(value, part.name), (type(value).__name__, part.name))
