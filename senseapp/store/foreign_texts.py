"""Texts of records that anybody may have written: printable, and not endless. Whoever shows them escapes them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

_LONGEST_TEXT = 2000

T = TypeVar("T")


def printable_text(text: str) -> str:
    """Return ``text`` with a space for each control character, and no longer than 2,000 characters."""
    if len(text) <= _LONGEST_TEXT and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST_TEXT])


def with_printable_texts(record: T) -> T:
    """Return ``record`` with :func:`printable_text` of every text in it, however deep; itself where nothing changes.

    It may be a dataclass, a tuple, a list, a dictionary or a plain value.
    """
    printable: T = _printable(record)
    return printable


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable_text(value) if type(value) is str else value  # members of an enumeration stay
    if isinstance(value, tuple | list):
        found = [_printable(each) for each in value]
        return value if all(map(_is_same, value, found)) else type(value)(found)
    if isinstance(value, dict):
        pairs = {_printable(key): _printable(each) for key, each in value.items()}
        return value if all(map(_is_same, value.values(), pairs.values())) and pairs.keys() == value.keys() else pairs
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found_parts = {each.name: _printable(getattr(value, each.name)) for each in fields(value) if each.init}
    changed = {name: part for name, part in found_parts.items() if part is not getattr(value, name)}
    return replace(value, **changed) if changed else value


def _is_same(before: Any, after: Any) -> bool:
    return before is after
