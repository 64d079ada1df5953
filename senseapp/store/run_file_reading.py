"""Reading a run file that anybody may have made: names, sizes and content are checked before any of it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO
from zipfile import ZipInfo

from senseapp.core.codec import loads
from senseapp.core.errors import InvalidFile
from senseapp.core.foreign_zip import ZIP_DAMAGE, ForeignZip, TooManyMembers
from senseapp.core.texts import with_printable_texts
from senseapp.records.measurement import RunResult
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import ValidationResult
from senseapp.store.run_file import (
    HEAD_NAME,
    RESULT_NAME,
    WEIGHTS,
    RunFileHead,
    check_result,
    extra_record,
)

_MOST_MEMBERS = 2000  # histograms of every layer of a large network, a few times over
_MOST_RECORD_BYTES = 32_000_000  # 20,000 measurements, with what is recorded for pairs of layers
_MOST_FURTHER_BYTES = 16_000_000  # of proofs and recommendations together, which pages read at once
_ADVICE = "Choose a file that Download run wrote."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRunFile:
    """A run file whose records were found sound.

    Attributes:
        head: what it says about itself.
        result: the run.
        records: proofs and histograms by file name.
        weights: file names of compressed models, with their sizes in bytes; their bytes are still in the archive.
    """

    head: RunFileHead
    result: RunResult
    records: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    _archive: ForeignZip

    @property
    def num_bytes(self) -> int:
        """About the disk space that the run will take."""
        return self._archive.total_bytes

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of the compressed model called ``name``, no more than its size.

        Raises:
            InvalidFile: it is damaged.
        """
        (member,) = (member for member in self._archive.members if member.filename == name)
        yield from _chunks(self._archive, member)


def read_run_file(stream: BinaryIO, *, most_bytes: int) -> ReadRunFile:
    """Read and check a run file.

    Args:
        stream: the file; it must stay open while compressed models are taken from the result.
        most_bytes: that everything in it may have together, unpacked.

    Raises:
        InvalidFile: it is no run file, damaged, too large, or holds anything unexpected.
    """
    try:
        archive = ForeignZip(stream, most_members=_MOST_MEMBERS)
    except TooManyMembers as error:
        raise InvalidFile(f"A run file holds at most {_MOST_MEMBERS} files, and this one more. {_ADVICE}") from error
    except ZIP_DAMAGE as error:
        raise InvalidFile(f"This is not a run file, or it is damaged ({error}). {_ADVICE}") from error
    members = {member.filename: member for member in archive.members}
    _check_members(archive, most_bytes)
    records: dict[str, Any] = {
        name: loads(_record(archive, member), kind) for name, member in members.items() if (kind := extra_record(name))
    }
    head = loads(_record(archive, members[HEAD_NAME]), RunFileHead)
    result = loads(_record(archive, members[RESULT_NAME]), RunResult)
    check_result(result, tuple(records.values()))
    return ReadRunFile(
        head=with_printable_texts(head),
        result=with_printable_texts(replace(result, spec=result.spec.without_folders())),
        records=with_printable_texts(records),
        weights={name: member.file_size for name, member in members.items() if WEIGHTS.fullmatch(name)},
        _archive=archive,
    )


def _check_members(archive: ForeignZip, most_bytes: int) -> None:
    names = [member.filename for member in archive.members]
    for needed in (HEAD_NAME, RESULT_NAME):
        if names.count(needed) != 1:
            raise InvalidFile(f"A run file holds one {needed}; this one has {names.count(needed)}. {_ADVICE}")
    if archive.encrypted:
        raise InvalidFile(f"This file is protected by a password. {_ADVICE}")
    for member in archive.members:
        name = member.filename
        known = name in (HEAD_NAME, RESULT_NAME) or extra_record(name) or WEIGHTS.fullmatch(name)
        if not known or names.count(name) > 1:
            raise InvalidFile(
                f"A run file holds JSON records and safetensors of known names, not {name[:80]!r}. {_ADVICE}"
            )
        if not WEIGHTS.fullmatch(name) and member.file_size > _MOST_RECORD_BYTES:
            raise InvalidFile(f"{name} has more than {_MOST_RECORD_BYTES // 10**6} MB. {_ADVICE}")
    further = sum(member.file_size for member in archive.members if _is_read_at_once(member.filename))
    if further > _MOST_FURTHER_BYTES:
        raise InvalidFile(
            f"The proofs and recommendations of a run file have at most {_MOST_FURTHER_BYTES // 10**6} MB together, "
            f"and these {further / 1e6:.1f} MB. {_ADVICE}"
        )
    total = archive.total_bytes
    if total > most_bytes:
        raise InvalidFile(
            f"A run file may hold {most_bytes // 10**6:,} MB here; this one says it holds {total // 10**6:,} MB. "
            "Ask whoever runs this server, or download the run again without its compressed models."
        )


def _is_read_at_once(name: str) -> bool:
    return extra_record(name) in (ValidationResult, Recommendation)


def _record(archive: ForeignZip, member: ZipInfo) -> bytes:
    return b"".join(_chunks(archive, member))


def _chunks(archive: ForeignZip, member: ZipInfo) -> Iterator[bytes]:
    """Yield a member's bytes; what unpacks to another size than it declares is refused."""
    try:
        yield from archive.chunks(member)
    except ZIP_DAMAGE as error:
        raise InvalidFile(f"{member.filename} cannot be read ({error}). {_ADVICE}") from error
