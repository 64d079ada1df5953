"""Folders of the server: what may be read, links, things that are not files, and many files."""

import os

import pytest

from senseapp.core.errors import InvalidDataset
from senseapp.data.contents import ArchiveLimits, FolderSource, Unreadable, resolve_readable
from tests.pictures import class_files, png, write_folder


def names_in(source):
    return sorted(source.contents.pictures)


def test_files_are_listed_and_read(tmp_path):
    files = class_files()
    source = FolderSource(write_folder(tmp_path / "set", files))
    assert {name: source.read(entry) for name, entry in source.contents.pictures.items()} == files
    assert source.contents.folders == {"0", "1", "2"}


def test_only_folders_under_the_roots_may_be_read(tmp_path):
    inside, outside = tmp_path / "roots" / "set", tmp_path / "roots and more"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
    (tmp_path / "roots" / "link").symlink_to(outside)
    assert resolve_readable(str(inside), (tmp_path / "roots",)) == inside.resolve()
    assert resolve_readable(str(outside), ()) == outside.resolve()
    paths = (outside, inside / ".." / ".." / outside.name, tmp_path / "roots" / "..", tmp_path / "roots" / "link")
    for path in paths:
        with pytest.raises(InvalidDataset, match=r"outside of the folders .* SENSEAPP_DATA_ROOTS"):
            resolve_readable(str(path), (tmp_path / "roots",))


@pytest.mark.parametrize("path", ["/no/such/folder", "bad\0name", "x" * 5000])
def test_a_path_that_does_not_exist(path):
    with pytest.raises(InvalidDataset, match="There is no folder or archive at"):
        resolve_readable(path, ())


def test_links_to_files_and_folders_outside_are_left_out(tmp_path):
    write_folder(tmp_path / "secret", {"a/1.png": png()})
    root = write_folder(tmp_path / "root", {"b/1.png": png()})
    (root / "b" / "2.png").symlink_to(tmp_path / "secret" / "a" / "1.png")
    (root / "c").symlink_to(tmp_path / "secret" / "a")
    assert names_in(FolderSource(root)) == ["b/1.png", "b/2.png", "c/1.png"]
    source = FolderSource(root, (root,))
    assert names_in(source) == ["b/1.png"]
    assert tuple(source.contents.notes()) == ("2 links or special files left out.",)


def test_links_that_form_a_circle_end(tmp_path):
    root = write_folder(tmp_path / "root", {"a/1.png": png()})
    (root / "a" / "up").symlink_to(root)
    (root / "loop").symlink_to(root / "loop")
    (root / "b").symlink_to(root / "nowhere")
    source = FolderSource(root, (root,))
    assert names_in(source) == ["a/1.png"]
    assert source.contents.links == 2


def test_pipes_are_not_opened(tmp_path):
    root = write_folder(tmp_path / "root", {"1.png": png()})
    os.mkfifo(root / "2.png")
    source = FolderSource(root)
    assert names_in(source) == ["1.png"]
    assert source.contents.links == 1


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    with pytest.raises(InvalidDataset, match=r"a\.png is not a folder"):
        FolderSource(tmp_path / "a.png")


def test_a_file_that_vanishes_or_is_too_large_is_left_out(tmp_path):
    root = write_folder(tmp_path / "root", {"1.png": png(), "2.png": bytes(2000)})
    source = FolderSource(root, limits=ArchiveLimits(file_bytes=1000))
    (root / "1.png").unlink()
    with pytest.raises(Unreadable, match="No such file"):
        source.read(source.contents.pictures["1.png"])
    with pytest.raises(Unreadable, match="larger than"):
        source.read(source.contents.pictures["2.png"])
