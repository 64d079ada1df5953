"""Archives that anybody may have made: what a member unpacks to is bounded by what it declares."""

import io
import zipfile
import zlib
from pathlib import Path

import pytest

from senseapp.core import foreign_zip
from senseapp.core.foreign_zip import ZIP_DAMAGE, ForeignZip, TooManyMembers, ZipRefused
from tests.lying_zips import METHODS, Member, lying_member, zip_of


def opened(content: bytes, most_members: int = 10) -> ForeignZip:
    return ForeignZip(io.BytesIO(content), most_members=most_members)


@pytest.mark.parametrize("method", ["stored", "deflate"])
def test_a_sound_member_is_read_whole(method: str) -> None:
    content = bytes(range(256)) * 12_000  # more than two chunks
    archive = opened(zip_of(lying_member("a", content, declares=len(content), method=METHODS[method])))
    (member,) = archive.members
    assert archive.read(member) == content
    assert max(map(len, archive.chunks(member))) <= 1 << 20


@pytest.mark.parametrize("method", ["bzip2", "lzma"])
def test_a_method_that_unpacks_in_one_call_is_refused_by_name(method: str) -> None:
    archive = opened(zip_of(lying_member("a", b"x" * 100, declares=100, method=METHODS[method])))
    with pytest.raises(ZipRefused, match=f"compressed by (?i:{method}), where only stored and Deflate are read"):
        archive.read(archive.members[0])


def test_a_member_is_inflated_no_further_than_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    inflated: list[int] = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self, *arguments: int) -> None:
            self._real = real(*arguments)

        def decompress(self, data: bytes, most: int = 0) -> bytes:
            found = self._real.decompress(data, most)
            inflated.append(len(found))
            return found

        def flush(self) -> bytes:
            return self._real.flush()

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    monkeypatch.setattr(zipfile.zlib, "decompressobj", Counting)  # type: ignore[attr-defined]
    archive = opened(zip_of(lying_member("a", bytes(50_000_000), declares=10)))
    assert archive.read(archive.members[0]) == bytes(10)
    assert sum(inflated) < 10_000


def test_a_member_of_another_size_than_it_declares_is_refused() -> None:
    larger = Member(name="a", packed=b"x" * 30, declares=10, method=0, beginning=b"x" * 30)
    smaller = lying_member("a", b"x" * 10, declares=60_000_000)
    with pytest.raises(ZIP_DAMAGE):
        (archive := opened(zip_of(larger))).read(archive.members[0])
    with pytest.raises(ZipRefused, match="smaller than it says"):
        (archive := opened(zip_of(smaller))).read(archive.members[0])


def test_a_directory_of_too_many_members_is_refused_before_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = zip_of(*(Member(name=str(i), packed=b"", declares=0, method=0) for i in range(11)))
    assert len(opened(content, 11).members) == 11
    monkeypatch.setattr(foreign_zip, "_USUAL_ENTRY_BYTES", 46)
    monkeypatch.setattr(zipfile, "ZipInfo", None)  # no object is made of any entry
    with pytest.raises(TooManyMembers, match="more than 10 files"):
        opened(content, 10)
    monkeypatch.setattr(foreign_zip, "_LEAST_DIRECTORY_BYTES", 100)
    with pytest.raises(TooManyMembers):
        opened(content, 2)


def test_signatures_inside_members_are_no_entries() -> None:
    inner = zip_of(*(Member(name=str(i), packed=b"", declares=0, method=0) for i in range(50)))
    archive = opened(zip_of(Member(name="a.zip", packed=inner, declares=len(inner), method=0, beginning=inner)), 1)
    assert archive.read(archive.members[0]) == inner


def test_closing_closes_the_file_that_it_opened(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zip_of(lying_member("a", b"1", declares=1)))
    archive = ForeignZip(tmp_path / "a.zip", most_members=1)
    archive.close()
    with pytest.raises(ValueError, match="closed"):
        archive.read(archive.members[0])
    (tmp_path / "b.zip").write_bytes(b"PK\x05\x06")
    with pytest.raises(zipfile.BadZipFile):
        ForeignZip(tmp_path / "b.zip", most_members=1)
