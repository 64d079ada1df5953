import errno
import os

import pytest

from senseapp.core.errors import InvalidFile, StorageFailed
from senseapp.core.files import replace_file
from senseapp.store.run_folder import Journal
from tests.fake_session import LAYERS, a_measurement


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "measurements.jsonl")


def test_what_was_appended_is_read_in_order(journal):
    assert (journal.read(), journal.count()) == ((), 0)
    items = [a_measurement(layer) for layer in LAYERS]
    for item in items:
        journal.append(item)
    assert journal.read() == tuple(items)
    assert journal.count() == len(items)


def test_a_later_measurement_of_the_same_layer_and_level_replaces_the_earlier(journal):
    journal.append(a_measurement("stem", delta=0.1))
    journal.append(a_measurement("head"))
    journal.append(a_measurement("stem", delta=0.2))
    assert [item.layer for item in journal.read()] == ["stem", "head"]
    assert journal.read()[0].changes[0].delta == 0.2
    assert journal.count() == 3


def test_a_crash_inside_the_last_line_loses_that_line_only(tmp_path):
    path = tmp_path / "measurements.jsonl"
    first, second, third = (a_measurement(layer) for layer in LAYERS[:3])
    Journal(path).append(first)
    whole = path.stat().st_size
    Journal(path).append(second)
    content = path.read_bytes()
    for end in (*range(whole, len(content), 40), len(content) - 1):
        path.write_bytes(content[:end])
        resumed = Journal(path)
        assert resumed.read() == (first,)
        resumed.append(third)
        assert Journal(path).read() == (first, third)


def test_zeros_left_by_a_power_cut_are_cut_off(tmp_path):
    path = tmp_path / "measurements.jsonl"
    Journal(path).append(a_measurement("stem"))
    with path.open("ab") as stream:
        stream.write(b"\0" * 50 + b"\n")
    journal = Journal(path)
    assert len(journal.read()) == 1
    journal.append(a_measurement("head"))
    assert len(Journal(path).read()) == 2


def test_damage_before_the_last_line_is_reported_with_its_line(tmp_path):
    path = tmp_path / "measurements.jsonl"
    for layer in LAYERS[:3]:
        Journal(path).append(a_measurement(layer))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + lines[2])
    with pytest.raises(InvalidFile, match=r"Line 2 of measurements\.jsonl is damaged"):
        Journal(path).read()


def test_a_line_of_a_newer_version_is_refused_not_dropped(tmp_path):
    path = tmp_path / "measurements.jsonl"
    Journal(path).append(a_measurement())
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":99'))
    with pytest.raises(InvalidFile, match="version 99"):
        Journal(path).read()


def test_a_failed_write_is_one_sentence_and_leaves_no_torn_line(journal, monkeypatch):
    journal.append(a_measurement("stem"))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageFailed, match="No space left on device"):
            journal.append(a_measurement("head"))
    journal.append(a_measurement("stage.0.conv"))
    assert [item.layer for item in journal.read()] == ["stem", "stage.0.conv"]


def test_a_journal_whose_folder_is_gone_says_so(tmp_path):
    with pytest.raises(StorageFailed, match=r"measurements\.jsonl"):
        Journal(tmp_path / "gone" / "measurements.jsonl").append(a_measurement())
    assert not (tmp_path / "gone").exists()


def test_a_replaced_file_is_whole_or_as_before(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    replace_file(path, "old")

    def broken(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(StorageFailed, match=r"result\.json"):
            replace_file(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    replace_file(path, "neu für alle")
    assert path.read_bytes() == "neu für alle".encode()
    replace_file(path, b"\xff\r\n")
    assert path.read_bytes() == b"\xff\r\n"
