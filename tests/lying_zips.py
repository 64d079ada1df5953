"""Zip archives whose members hold other amounts than they declare."""

import bz2
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass


def _lzma(content: bytes) -> bytes:
    kind = lzma.FILTER_LZMA1
    properties = lzma._encode_filter_properties({"id": kind, "preset": 6})  # type: ignore[attr-defined]
    raw = lzma.compress(content, lzma.FORMAT_RAW, filters=[{"id": kind, "preset": 6}])
    return struct.pack("<BBH", 9, 4, len(properties)) + properties + raw


def _deflated(content: bytes) -> bytes:
    packing = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packing.compress(content) + packing.flush()


PACKED: dict[int, Callable[[bytes], bytes]] = {
    zipfile.ZIP_STORED: bytes,
    zipfile.ZIP_DEFLATED: _deflated,
    zipfile.ZIP_BZIP2: bz2.compress,
    zipfile.ZIP_LZMA: _lzma,
}
METHODS = {"stored": 0, "deflate": 8, "bzip2": 12, "lzma": 14}


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member as it is written: ``packed`` bytes that unpack by ``method``, and the size that it ``declares``.

    Attributes:
        beginning: of what it unpacks to, as long as it declares, for the check sum; a reader that cuts it there finds
            nothing wrong.
    """

    name: str
    packed: bytes
    declares: int
    method: int = zipfile.ZIP_DEFLATED
    beginning: bytes = b""


def lying_member(name: str, content: bytes, *, declares: int, method: int = zipfile.ZIP_DEFLATED) -> Member:
    """Return a member of ``content`` that declares another size."""
    return Member(
        name=name, packed=PACKED[method](content), declares=declares, method=method, beginning=content[:declares]
    )


def zip_of(*members: Member) -> bytes:
    """Return the archive."""
    file, directory = io.BytesIO(), io.BytesIO()
    for member in members:
        name, crc = member.name.encode(), zlib.crc32(member.beginning)
        common = struct.pack(
            *("<HHHHHIIIHH", 20, 0x800, member.method, 0, 0x21, crc, len(member.packed), member.declares, len(name), 0)
        )
        directory.write(b"PK\x01\x02\x14\x00" + common + struct.pack("<HHHII", 0, 0, 0, 0, file.tell()) + name)
        file.write(b"PK\x03\x04" + common + name + member.packed)
    start, entries = file.tell(), directory.getvalue()
    file.write(entries)
    file.write(struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, len(members), len(members), len(entries), start, 0))
    return file.getvalue()
