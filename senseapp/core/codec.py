"""Tagged, versioned JSON for the frozen records; never pickle.

A record is written as ``{"type": "RunSpec", "version": 1, "data": {...}}``; members of a union carry their own
``"type"``. Unknown types, unknown fields and newer versions are refused with one sentence. Infinite and
undefined numbers, which JSON has no form for, are written as the strings ``"inf"``, ``"-inf"`` and ``"nan"``.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_origin

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn

from senseapp.core.errors import InvalidFile, first_line_of
from senseapp.core.foreign_values import LARGEST_COUNT, BadValue, is_int, items, number, read_json, text, truth, whole
from senseapp.core.process import without_collection

RecordT = TypeVar("RecordT")

# Only the first error is reported: a list of 300,000 wrong entries would produce gigabytes of errors.
_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
_INFINITE = ("inf", "-inf", "nan")
_VERSION = 1  # of all types so far


_reader = cache(partial(make_dict_structure_fn, converter=_converter, _cattrs_forbid_extra_keys=True))
_writer = cache(partial(make_dict_unstructure_fn, converter=_converter))
_PLAIN: dict[type, Callable[[Any], Any]] = {
    float: lambda value: float(value) if value in _INFINITE else number(value, "a number"),
    int: lambda value: whole(value, "a count", least=-LARGEST_COUNT),
    bool: lambda value: truth(value, "a switch"),
    str: lambda value: text(value, "a text"),
}


def _plain_reader(kind: type, value: Any, asked: Any) -> Any:
    if asked is not kind:  # an enumeration of texts or numbers
        return asked(value)
    is_usual = type(value) is kind and (kind in (str, bool) or -LARGEST_COUNT <= value <= LARGEST_COUNT)
    return value if is_usual else _PLAIN[kind](value)


for _kind in _PLAIN:
    _converter.register_structure_hook(_kind, partial(_plain_reader, _kind))
_converter.register_unstructure_hook(float, lambda value: value if math.isfinite(value) else str(value))
_converter.register_unstructure_hook(bytes, lambda value: base64.b64encode(value).decode())
_converter.register_structure_hook(bytes, lambda value, _: base64.b64decode(value))


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple and get_args(kind)[1:] == (...,)


def _list_reader(kind: Any) -> Callable[[Any, Any], Any]:
    """Return a reader of ``tuple[Kind, ...]`` that looks up that of the items once, not for each of 100,000 tuples."""
    (inner, _) = get_args(kind)
    hook = _converter.get_structure_hook(inner)

    def read(values: Any, _: Any) -> tuple[Any, ...]:
        found = values if type(values) is tuple else items(values, "a list")  # of encode, or of JSON
        if inner in (float, int, str) and set(map(type, found)) == {inner}:  # as senseapp writes them
            return tuple(found)
        return tuple([hook(value, inner) for value in found])

    return read


_converter.register_structure_hook_factory(_is_list, _list_reader)


def register_family(base: type, members: Callable[[], Mapping[str, type]]) -> None:
    """Write members of an open family, those of ``members``, with their ``"type"``; also in optional fields."""

    def structure(value: Any, _: Any = base) -> Any:
        known, fields = members(), dict(value)
        if (name := fields.pop("type")) not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(known)}")
        return _reader(known[name])(fields, known[name])

    def unstructure(value: Any) -> dict[str, Any]:
        cls: Any = type(value)
        return _writer(cls)(value) | {"type": cls.__name__}

    _converter.register_structure_hook(base, structure)
    _converter.register_unstructure_hook(base, unstructure)
    _converter.register_structure_hook(base | None, lambda value, _: None if value is None else structure(value))
    _converter.register_unstructure_hook(base | None, lambda value: None if value is None else unstructure(value))


def encode(value: Any) -> dict[str, Any]:
    """Return the JSON object of a record."""
    return {"type": type(value).__name__, "version": _VERSION, "data": _converter.unstructure(value)}


def decode(payload: Any, expected: type[RecordT]) -> RecordT:
    """Build a record from the result of :func:`encode`; InvalidFile if it is damaged, of another type, or newer."""
    name = expected.__name__
    if not isinstance(payload, dict) or payload.get("type") != name:
        found = payload.get("type") if isinstance(payload, dict) else type(payload).__name__
        raise InvalidFile(f"Expected a {name} record, found {found!r}. Choose a file that senseapp wrote.")
    version = payload.get("version")
    if not is_int(version) or not 1 <= version <= _VERSION:
        raise InvalidFile(
            f"This {name} has version {version!r}; this senseapp reads versions 1 to {_VERSION}. "
            "Update senseapp, or export the file again from the version that wrote it."
        )
    record: RecordT = from_plain(payload.get("data"), expected, name=f"{name} record")
    return record


def to_plain(value: Any) -> Any:
    """Return records, paths and plain values as JSON, without the type and version of a record."""
    return _converter.unstructure(value)


def from_plain(payload: Any, kind: Any, *, name: str = "answer") -> Any:
    """Return the value of type ``kind`` from the result of :func:`to_plain`; InvalidFile if it is none."""
    try:
        return _converter.structure(payload, kind)
    except Exception as error:  # constructors of records may raise anything
        reason = f"the field {error} is missing" if isinstance(error, KeyError) else first_line_of(error)
        raise InvalidFile(f"This {name} is damaged: {reason}.") from error


def dumps(value: Any) -> str:
    """Return the record as one line of strict JSON."""
    return json.dumps(encode(value), allow_nan=False, separators=(",", ":"))


def loads(content: str | bytes, expected: type[RecordT]) -> RecordT:
    """Read a record from JSON text; see :func:`decode` for errors."""
    with without_collection():
        try:
            payload = read_json(content)
        except BadValue as error:
            raise InvalidFile(f"This file cannot be read: {error}. Choose a file that senseapp wrote.") from error
        return decode(payload, expected)
