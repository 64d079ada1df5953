"""Times of layers from tables, sound and damaged; reports of devices are those of ``test_device_times``."""

import json

import pytest

from senseapp.core.errors import InvalidFile
from senseapp.descriptions import get
from senseapp.store.layer_times import MOST_BYTES, merged, read_layer_times
from tests import device_reports
from tests.schedule_cases import profile_of

PROFILE = profile_of({"layer1.0.conv1": 10, "layer1.0.conv10": 10, "head": 5})
BITS, FRACTIONS = get("quantization").scale, get("sparsity").scale


def read(text: str | bytes, *, level: float | None = None, scale=BITS):
    content = text if isinstance(text, bytes) else text.encode()
    return read_layer_times(content, PROFILE, scale, name="times.txt", level=level)


def milliseconds(times) -> dict[tuple[str, float], float]:
    return {(each.layer, each.level): round(1000 * each.seconds, 9) for each in times.times}


def test_a_table_says_every_level():
    found = read("layer, level, ms\nlayer1.0.conv1,32,1.5\nlayer1.0.conv1,8,0.5\nhead,0,0.25\nstrange,8,1\n\n")
    assert milliseconds(found) == {("layer1.0.conv1", 32): 1.5, ("layer1.0.conv1", 8): 0.5, ("head", 32): 0.25}
    assert found.unmatched == ("strange",)
    assert found.source == "times.txt"


def test_fractions_are_percent():
    found = read("layer,level,ms\nhead,0,2\nhead,37.5,1\n", scale=FRACTIONS)
    assert milliseconds(found) == {("head", 0.0): 2, ("head", 0.375): 1}


def test_two_profiles_are_two_levels():
    def read_report(level):
        content = device_reports.trtexec().encode()
        return read_layer_times(content, device_reports.profile(), BITS, name="a.json", level=level)

    found = milliseconds(merged([read_report(32.0), read_report(8.0)]))
    expected = {(name, level): spent for name, spent in device_reports.MILLISECONDS.items() for level in (32.0, 8.0)}
    assert found == pytest.approx(expected)
    with pytest.raises(InvalidFile, match="of the same level"):
        merged([read_report(8.0)] * 2)


@pytest.mark.parametrize(
    ("content", "level", "message"),
    [
        ("", None, "none of the files that senseapp reads times from"),
        ("\x00\xff".encode("latin-1"), None, "none of the files"),
        ("layer,level,ms\n", None, "has no time of any layer"),
        ("layer,level,ms\nhead,8,fast\n", None, "Line 2 of times.txt is not a layer, a level and milliseconds"),
        ("layer,level,ms\nhead,8,-1\n", None, "Line 2"),
        ("layer,level,ms\nhead,8,nan\n", None, "Line 2"),
        ("layer,level,ms\nhead,8,1e300\n", None, "Line 2"),
        ("layer,level,ms\nhead,5.5,1\n", None, "Line 2"),
        ("layer,level,ms\nhead,8\n", None, "Line 2"),
        ("layer,level,ms\nhead,8,1\nhead,8,2\n", None, "gives head the same level again"),
        ("layer,level,ms\nstem,8,1\n", None, "it names stem"),
        ("layer,level,ms\nhead,8,1\n", 8.0, "says the levels itself"),
        (json.dumps([{"name": "head"}]), 8.0, "damaged, or no report that senseapp knows"),
        (json.dumps({"a": 1}), 8.0, "damaged, or no report that senseapp knows"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(content, level, message):
    with pytest.raises(InvalidFile, match=message) as refused:
        read(content, level=level)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_large_file_is_refused_before_it_is_parsed():
    with pytest.raises(InvalidFile, match="more than 50 MB"):
        read(b"[" * (MOST_BYTES + 1), level=8.0)
