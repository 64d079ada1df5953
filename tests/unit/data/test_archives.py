"""Archives: what is refused and with which words, what is left out, and that nothing is written to disk."""

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from dataclasses import replace

import pytest

from senseapp.core.errors import InvalidDataset
from senseapp.data.archives import open_archive
from senseapp.data.arrangement import arrange
from senseapp.data.contents import ArchiveLimits, Unreadable, are_same_images
from senseapp.records.spec import DataSpec
from tests.pictures import class_files, png, write_tar, write_zip

WRITERS = {"a.zip": write_zip, "b.tar": write_tar, "c.tar.gz": lambda path, files: write_tar(path, files, "w:gz")}


@pytest.fixture(params=WRITERS)
def pack(request, tmp_path):
    return lambda files: WRITERS[request.param](tmp_path / request.param, files)


def names_in(source):
    return sorted(source.contents.pictures)


def open_with_pictures(path):
    source = open_archive(path)
    source.contents.require_pictures(source.title)


def special_tar(path, *members):
    with tarfile.open(path, "w") as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
        plain = tarfile.TarInfo("plain.png")
        plain.size = len(png())
        archive.addfile(plain, io.BytesIO(png()))
    return path


def test_members_are_listed_and_read_in_any_order_and_nothing_is_written(pack, tmp_path):
    files = class_files()
    source = open_archive(pack(files))
    assert names_in(source) == sorted(files)
    for name in sorted(files, reverse=True):
        assert source.read(source.contents.pictures[name]) == files[name]
    source.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_kind_is_told_by_contents_not_by_name(tmp_path):
    path = write_tar(tmp_path / "images.zip", {"a.png": png()}, "w:gz")
    assert names_in(open_archive(path)) == ["a.png"]


@pytest.mark.parametrize("name", ["x/../../a.png", "/etc/a.png", "C:\\a.png", "..\\a.png"])
def test_names_that_lead_outside_refuse_the_archive(pack, name):
    with pytest.raises(InvalidDataset, match=r"leads outside of the archive\. Make the archive again"):
        open_archive(pack({"good.png": png(), name: png()}))


def test_backslashes_of_old_windows_programs_are_folders(pack):
    assert names_in(open_archive(pack({"cats\\1.png": png()}))) == ["cats/1.png"]


def test_odd_unicode_and_control_characters_in_names_are_kept_apart_from_messages(pack):
    name = "каше\u202egnp.\u0007/❄.png"
    assert names_in(open_archive(pack({name: png()}))) == [name]
    with pytest.raises(InvalidDataset) as caught:
        open_archive(pack({"../\u202e\u0007.png": png()}))
    assert "\u202e" not in str(caught.value)
    assert "\u0007" not in str(caught.value)


def test_what_systems_leave_behind_is_ignored_without_a_word(pack):
    junk = ["__MACOSX/a/._1.png", "a/.DS_Store", "a/._1.png", ".git/x.png", "a/Thumbs.db"]
    source = open_archive(pack({"a/1.png": png(), **dict.fromkeys(junk, b"x")}))
    assert names_in(source) == ["a/1.png"]
    assert tuple(source.contents.notes()) == ()


def test_archives_inside_and_other_files_are_counted(pack):
    source = open_archive(pack({"a.png": png(), "b.zip": b"PK", "c.tar.gz": b"x", "d.txt": b"", "e.mov": b""}))
    assert tuple(source.contents.notes()) == ("2 other files left out: .txt, .mov.", "2 archives inside not opened.")
    with pytest.raises(InvalidDataset, match="Unpack the archives inside it first"):
        open_with_pictures(pack({"inner.zip": b"PK"}))


def zipped(tmp_path, files):
    return write_zip(tmp_path / "inner.zip", files).read_bytes()


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([{"a.png": "RGB"}, {"truth.csv": b"x"}], ["a.png"]),
        ([{"cats/a.png": "RGB"}, {"dogs/a.png": "RGB"}], ["cats/a.png", "dogs/a.png"]),
        ([{"a.png": "RGB"}, {"a.png": "RGB"}], ["a-2.png", "a.png"]),
        ([{"a.png": "RGB"}, {"a.png": "L"}], ["a.png", "masks/a.png"]),
        ([{"a.png": "L"}, {"a.png": "RGB"}], ["a.png", "masks/a.png"]),  # in either order
        ([{"a.png": "L"}, {"a.png": "L"}], ["a-2.png", "a.png"]),  # digits are no masks of each other
    ],
)
def test_zips_in_a_zip_are_read_as_one(tmp_path, parts, expected):
    made = [
        {name: png(place, mode=held) if isinstance(held, str) else held for name, held in files.items()}
        for place, files in enumerate(parts)
    ]
    source = open_archive(
        write_zip(tmp_path / "all.zip", {f"{place}.zip": zipped(tmp_path, files) for place, files in enumerate(made)})
    )
    assert names_in(source) == expected
    listing = source.contents
    assert {source.read(entry) for kind in (listing.pictures, listing.tables) for entry in kind.values()} == {
        content for files in made for content in files.values()
    }


def test_class_folders_of_an_archive_inside_are_those_that_it_has_alone(tmp_path):
    pictures = {f"digits/{name}/{number}.png": png(number) for number in range(2) for name in "01"}
    inner = zipped(tmp_path, {"digits/": b"", "digits/labels.txt": b"", **pictures})
    source = open_archive(write_zip(tmp_path / "all.zip", {"digits.zip": inner, "0/2.png": png(2)}))
    found = arrange(source)
    assert (found.layout, len(found.entries), found.notes) == ("class folders", 5, ())
    deep = zipped(tmp_path, {f"{'a/' * 3000}{name}/1.png": png(1) for name in "01"})
    assert names_in(open_archive(write_zip(tmp_path / "all.zip", {"deep.zip": deep}))) == ["0/1.png", "1/1.png"]


def test_masks_may_come_as_an_archive_of_that_name_and_beside_pictures(tmp_path):
    masks = zipped(tmp_path, {"a.png": png(1, mode="L")})
    files = {"images.zip": zipped(tmp_path, {"a.jpg": png(0)}), "masks.zip": masks}
    assert names_in(open_archive(write_zip(tmp_path / "all.zip", files))) == ["a.jpg", "masks/a.png"]
    beside = write_zip(tmp_path / "all.zip", {"a.jpg": png(0), "a.png": png(1, mode="L")})
    assert names_in(open_archive(beside)) == ["a.jpg", "masks/a.png"]


def test_what_zips_in_a_zip_unpack_to_counts(tmp_path):
    inner = zipped(tmp_path, {"a.png": bytes(600)})
    path = write_zip(tmp_path / "all.zip", {"0.zip": inner, "1.zip": inner})
    with pytest.raises(InvalidDataset, match="holds more than 3 files"):
        open_archive(path, ArchiveLimits(members=3))
    with pytest.raises(InvalidDataset, match="unpacks to more than"):
        open_archive(path, ArchiveLimits(total_bytes=2 * len(inner) + 1100))


@pytest.mark.parametrize("files", [{}, {"empty/": b""}, {"readme.txt": b"hello"}])
def test_archive_without_pictures(tmp_path, files):
    path = write_zip(tmp_path / "a.zip", files)
    with pytest.raises(InvalidDataset, match=r"There are no pictures in a\.zip .* Bring JPEG, PNG"):
        open_with_pictures(path)


@pytest.mark.parametrize(
    ("limit", "most", "words"), [("members", 3, "more than 2 files"), ("total_bytes", 1001, "unpacks")]
)
def test_too_many_members_or_bytes_in_all(pack, limit, most, words):
    path = pack({"a.png": bytes(600), "b.png": bytes(401), "c.png": b""})
    with pytest.raises(InvalidDataset, match=words):
        open_archive(path, ArchiveLimits(**{limit: most - 1}))
    assert len(names_in(open_archive(path, ArchiveLimits(**{limit: most})))) == 3


@pytest.mark.parametrize("name", ["a.zip", "c.tar.gz"])
def test_decompression_bomb(tmp_path, name):
    path = tmp_path / name
    if name == "a.zip":
        write_zip(path, {"zeros.png": bytes(2_000_000)}, zipfile.ZIP_DEFLATED)
    else:
        write_tar(path, {"zeros.png": bytes(2_000_000)}, "w:gz")
    with pytest.raises(InvalidDataset, match=r"times its size.*decompression bomb"):
        open_archive(path, ArchiveLimits(small_bytes=1_000_000))
    open_archive(path, ArchiveLimits(small_bytes=2_000_000))


def tar_header(name, size, kind=tarfile.REGTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf()


LONG = "././@LongLink", 1_000_000_000, tarfile.GNUTYPE_LONGNAME


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(tar_header("zeros.png", 5_000_000_000) + bytes(1_000_000)), "decompression bomb"),
        (gzip.compress(tar_header(*LONG) + bytes(10_000_000)), "more than a million letters"),
        ((tar_header(LONG[0], 1, LONG[2]) + bytes(512)) * 3000, "damaged or cut short"),
    ],
    ids=["gigabytes of zeros", "a name of a gigabyte", "a long chain of headers"],
)
def test_a_tar_that_announces_too_much_is_refused_before_it_is_unpacked(tmp_path, content, words):
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(InvalidDataset, match=words):
        open_archive(tmp_path / "a.tar")


def test_a_file_above_the_limit_is_left_out(pack):
    source = open_archive(pack({"a.png": bytes(1001)}), ArchiveLimits(file_bytes=1000))
    with pytest.raises(Unreadable, match="larger than"):
        source.read(source.contents.pictures["a.png"])


@pytest.mark.parametrize(
    ("kind", "target"), [(tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "plain.png"), (tarfile.CHRTYPE, "")]
)
def test_links_and_devices_in_a_tar_are_left_out(tmp_path, kind, target):
    source = open_archive(special_tar(tmp_path / "a.tar", ("evil.png", kind, target)))
    assert names_in(source) == ["plain.png"]
    assert tuple(source.contents.notes()) == ("1 link or special file left out.",)


def test_links_in_a_zip_are_left_out(tmp_path):
    link = zipfile.ZipInfo("link.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
        archive.writestr("plain.png", png())
    source = open_archive(tmp_path / "a.zip")
    assert names_in(source) == ["plain.png"]
    assert tuple(source.contents.notes()) == ("1 link or special file left out.",)


def test_password(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"a.png": png()})
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(InvalidDataset, match=r"protected by a password\. Pack the images again without one"):
        open_archive(path)


def test_archive_cut_short(pack):
    path = pack(class_files())
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(InvalidDataset, match="damaged or cut short"):
        open_archive(path)


def test_a_member_with_a_wrong_check_sum_is_left_out(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"a.png": png()})
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    source = open_archive(path)
    with pytest.raises(Unreadable, match="damaged in the archive"):
        source.read(source.contents.pictures["a.png"])


def test_a_broken_header_in_the_middle_of_a_tar_is_not_taken_for_its_end(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"a.png": bytes(512), "b.png": bytes(512)})
    content = bytearray(path.read_bytes())
    content[1024:1100] = b"\xff" * 76  # the second header
    path.write_bytes(content)
    with pytest.raises(InvalidDataset, match="its end is missing"):
        open_archive(path)


def test_a_name_that_comes_twice_is_taken_once(pack):
    path = pack({"a.png": b"1"})
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.png", b"2")
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
            for content in (b"1", b"2"):
                member = tarfile.TarInfo("a.png")
                member.size = 1
                archive.addfile(member, io.BytesIO(content))
    source = open_archive(path)
    assert source.read(source.contents.pictures["a.png"]) == b"2"
    assert tuple(source.contents.notes()) == ("1 file name used twice: the last file of each name is taken.",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"just text", "is not an archive"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(600), "is a 7-Zip file"),
        (b"Rar!" + bytes(600), "is a RAR file"),
        (b"BZh9" + bytes(600), "is a bzip2 file"),
        (png(), "is not an archive"),
        (b"PK\x03\x04" + bytes(100), "damaged or cut short"),
        (b"\x1f\x8b" + bytes(100), "damaged or cut short"),
        (gzip.compress(b"not a tar", mtime=0), "damaged or cut short"),
        (gzip.compress(bytes(10_240), mtime=0), "There are no pictures"),
    ],
)
def test_files_that_are_no_archive(tmp_path, content, words):
    path = tmp_path / "images.zip"
    path.write_bytes(content)
    with pytest.raises(InvalidDataset, match=words) as caught:
        open_with_pictures(path)
    assert str(caught.value).startswith(("images.zip", "There are no pictures in images.zip"))


def test_millions_of_directory_entries_are_counted_before_they_become_objects(tmp_path):
    directory = struct.pack("<4s24xHHH12x", b"PK\x01\x02", 0, 0, 0) * 1001
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, len(directory), 0, 0)  # it claims one entry
    path = tmp_path / "a.zip"
    path.write_bytes(b"PK\x03\x04" + directory + end)
    with pytest.raises(InvalidDataset, match="holds more than 1,000 files"):
        open_archive(path, ArchiveLimits(members=1000))


def test_an_archive_that_is_uploaded_twice_holds_the_same_images(tmp_path):
    for name, content in {"a.zip": b"1234", "b.zip": b"1234", "c.zip": b"1235"}.items():
        (tmp_path / name).write_bytes(content)
    one, same, other = (DataSpec(kind="archive", path=str(tmp_path / f"{each}.zip")) for each in "abc")
    assert are_same_images(one, same)
    assert not are_same_images(one, other)
    assert not are_same_images(one, replace(one, path=str(tmp_path / "gone.zip")))
    assert are_same_images(DataSpec(), replace(DataSpec(), preparation="auto"))
