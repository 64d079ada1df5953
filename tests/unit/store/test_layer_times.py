"""Times of layers from the files of other programs, sound, damaged and hostile."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.core.errors import InvalidFile
from senseapp.descriptions import get
from senseapp.store.layer_times import MOST_BYTES, merged, read_layer_times
from tests.schedule_cases import profile_of

PROFILE = profile_of({"layer1.0.conv1": 10, "layer1.0.conv10": 10, "head": 5})
BITS, FRACTIONS = get("quantization").scale, get("sparsity").scale
ONNXRUNTIME = [
    {"cat": "Session", "name": "model_run", "dur": 9000, "ph": "X"},
    *(
        {
            "cat": "Node",
            "name": f"{name}_kernel_time",
            "dur": dur,
            "ph": "X",
            "args": {"op_name": name.rpartition("/")[2]},
        }
        for name, durations in {
            "/layer1/layer1.0/conv1/Conv": (900, 1100, 5000),
            "/layer1/layer1.0/conv10/Conv": (300, 300, 300),
            "/Flatten": (10, 10, 10),
        }.items()
        for dur in durations
    ),
]
TRTEXEC = [
    {"count": 100},
    {"name": "layer1.0.conv1 + layer1.0.relu", "timeMs": 110.0, "averageMs": 1.1, "medianMs": 1.0, "percentage": 70},
    {"name": "/head/Gemm", "timeMs": 20.0, "averageMs": 0.2, "percentage": 10},
    {"name": "Reformatting CopyNode for Input Tensor 0", "timeMs": 5.0, "averageMs": 0.05, "percentage": 3},
]
BENCHMARK_MODEL = """\
Operator-wise Profiling Info for Regular Benchmark Runs:
============================== Run Order ==============================
\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t                 CONV_2D\t    1.269\t    1.000\t  0.107%\t  0.107%\t     0.000\t        1\t[layer1/0/conv1/Conv2D]:0
\t         FULLY_CONNECTED\t    0.300\t    0.250\t  0.107%\t  0.107%\t     0.000\t        1\t[model/head/MatMul]:1
\t                 SOFTMAX\t    0.100\t    0.050\t  0.107%\t  0.107%\t     0.000\t        1\t[softmax]:2

============================== Top by Computation Time ==============================
\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t                 CONV_2D\t    1.269\t    1.000\t  0.107%\t  0.107%\t     0.000\t        1\t[layer1/0/conv1/Conv2D]:0
"""


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


def test_onnxruntime_counts_the_median_of_its_kernels():
    found = read(json.dumps(ONNXRUNTIME), level=32.0)
    assert milliseconds(found) == {("layer1.0.conv1", 32): 1.1, ("layer1.0.conv10", 32): 0.3}
    assert found.other_seconds == pytest.approx(1e-5)


def test_tensorrt_names_what_it_fused():
    found = read(json.dumps(TRTEXEC), level=8.0)
    assert milliseconds(found) == {("layer1.0.conv1", 8): 1.0, ("head", 8): 0.2}
    assert found.other_seconds == pytest.approx(5e-5)


def test_benchmark_model_is_read_in_the_order_it_ran():
    found = read(BENCHMARK_MODEL, level=8.0)
    assert milliseconds(found) == {("layer1.0.conv1", 8): 1.0, ("head", 8): 0.25}
    assert found.other_seconds == pytest.approx(5e-5)


def test_two_profiles_are_two_levels():
    both = merged([read(json.dumps(ONNXRUNTIME), level=32.0), read(json.dumps(TRTEXEC), level=8.0)])
    assert set(milliseconds(both)) == {
        *(("layer1.0.conv1", 32), ("layer1.0.conv10", 32), ("layer1.0.conv1", 8), ("head", 8))
    }
    with pytest.raises(InvalidFile, match="of the same level"):
        merged([read(json.dumps(TRTEXEC), level=8.0)] * 2)


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
        (json.dumps(TRTEXEC), None, "say at which level"),
        (json.dumps([{"count": 1}]), 8.0, "names no layer"),
        (json.dumps([{"name": "head"}]), 8.0, "damaged"),
        (json.dumps(ONNXRUNTIME[:1]), 8.0, "no times of kernels"),
        (json.dumps({"a": 1}), 8.0, "damaged"),
        ("[" * 100_000, 8.0, "damaged"),
        ('[{"name": "head", "medianMs": 1' + "0" * 400 + "}]", 8.0, "damaged"),
        (BENCHMARK_MODEL[:90], 8.0, "none of the files"),
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


SOUND = [("layer,level,ms\nlayer1.0.conv1,32,1.5\nhead,8,0.5\n", None)] + [
    (text, 8.0) for text in (json.dumps(ONNXRUNTIME), json.dumps(TRTEXEC), BENCHMARK_MODEL)
]


@settings(max_examples=150, deadline=None)
@given(
    case=st.sampled_from(SOUND),
    at=st.floats(0, 1),
    cut=st.integers(0, 40),
    put=st.one_of(st.binary(max_size=12), st.sampled_from([b"NaN", b"-1e999", b"null", b"[", b"\xff", b'"', b",,,"])),
)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(case, at, cut, put):
    text, level = case
    content = text.encode()
    start = int(at * len(content))
    sentence, found = "", None
    try:
        found = read(content[:start] + put + content[start + cut :], level=level)
    except InvalidFile as refused:
        sentence = str(refused)
    assert "\n" not in sentence
    for each in found.times if found else ():
        assert each.layer in {"layer1.0.conv1", "layer1.0.conv10", "head"}
        assert 0 <= each.seconds < 1e6
