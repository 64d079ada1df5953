"""Edits in the bytes of an ONNX file: what an edit does not name is copied as it lies in the file.

Reading a message and writing it again keeps its meaning, but not its bytes: writers differ in the order of fields, in
packing and in what they write out. Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from senseapp.core.errors import InvalidCheckpoint

GRAPH, OPSETS, METADATA = 7, 8, 14  # of a model
NODES, INITIALIZERS, INPUTS_OF_GRAPH, DECLARED = 1, 5, 11, 13  # of a graph
INPUTS, OUTPUTS, ATTRIBUTES = 1, 2, 5  # of a node
ATTRIBUTE_NUMBER, ATTRIBUTE_TENSOR = 3, 5  # of an attribute
SHAPE = 1  # of a tensor: its lengths
NUMBERS = frozenset({4, 5, 7, 9, 10, 11})
"""Numbers of fields: of a model, a graph, a node, an attribute and a tensor (numbers in all the forms that exist)."""

_VARINT, _EIGHT, _MESSAGE, _FOUR = 0, 1, 2, 5  # wire types: the lower three bits of a field's key
_LONGEST_VARINT = 10  # bytes of seven bits each, for 64

Change = Callable[[bytes], Sequence[bytes]]
"""From the content of a field to those that take its place: itself to keep it, none to drop it, several to add some."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its number, and where it starts, its content starts and it ends."""

    number: int
    start: int
    content: int
    stop: int
    is_message: bool


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of ``message``, in the order of its bytes; raises InvalidCheckpoint where they are damaged."""
    place = 0
    while place < len(message):
        start = place
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == _VARINT:
            content = place
            _, place = _varint(message, place)
        elif kind in (_EIGHT, _FOUR):
            content, place = place, place + (8 if kind == _EIGHT else 4)
        elif kind == _MESSAGE:
            length, content = _varint(message, place)
            place = content + length
        else:
            raise InvalidCheckpoint("The file is not an ONNX model: its bytes cannot be read as one.")
        if place > len(message):
            raise InvalidCheckpoint("The file ends in the middle of its graph.")
        yield Field(number=tag >> 3, start=start, content=content, stop=place, is_message=kind == _MESSAGE)


def rewritten(message: bytes, changes: Mapping[int, Change], added: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """Return ``message`` with messages, text and bytes of some numbers changed, and others ``added`` at its end."""
    parts: list[bytes] = []
    for field in fields(message):
        if field.number not in changes or not field.is_message:
            parts.append(message[field.start : field.stop])
            continue
        content = message[field.content : field.stop]
        for each in changes[field.number](content):
            parts.append(message[field.start : field.stop] if each is content else written(field.number, each))
    return b"".join([*parts, *(written(number, content) for number, content in added)])


def replaced(message: bytes, numbers: Collection[int], fresh: bytes) -> bytes:
    """Return ``message`` with ``fresh``, one or more whole fields, in place of its fields of these numbers."""
    parts: list[bytes] = []
    is_in_place = False
    for field in fields(message):
        if field.number not in numbers:
            parts.append(message[field.start : field.stop])
        elif not is_in_place:
            parts.append(fresh)
            is_in_place = True
    return b"".join(parts if is_in_place else [*parts, fresh])


def written(number: int, content: bytes) -> bytes:
    """Return the field ``number`` that holds ``content``."""
    return _as_varint(number << 3 | _MESSAGE) + _as_varint(len(content)) + content


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the number at ``place``, and where what follows it starts."""
    value = 0
    for count, byte in enumerate(message[place : place + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise InvalidCheckpoint("The file ends in the middle of its graph.")


def _as_varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
