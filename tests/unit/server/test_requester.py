"""Limits of requests on time and memory, and whose turn in the queue they take."""

import math
import re
import signal
from pathlib import Path

import pytest

from senseapp.core.errors import OutOfMemory, ReadingStopped
from senseapp.records.check import CheckSpec
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.checks import CheckTask
from senseapp.server.execution import Measurement
from senseapp.server.process import requester
from senseapp.server.process.processes import takes_too_long
from senseapp.server.process.requester import ANYBODY, COPIES, Requester, model_limits, reading_limits


def test_a_busy_machine_does_not_use_up_the_time_of_a_question() -> None:
    def too_long(elapsed: float, processor: float) -> bool:
        return takes_too_long(elapsed=elapsed, processor=processor, limit=8)

    assert not too_long(7.9, 15.0)  # on two cores, within its time
    assert too_long(8.1, 8.1)
    assert not too_long(31.9, 2.0)  # beside three others on the same core
    assert too_long(32.1, 2.0)


def test_a_small_onnx_file_may_take_little_and_a_large_one_what_large_networks_take(tmp_path: Path) -> None:
    def of(size: int, library: str = "onnx") -> ModelSpec:
        path = tmp_path / f"{size}.onnx"
        path.write_bytes(b"x" * size)
        name = "resnet18" if library == "timm" else ""
        return ModelSpec(library=library, name=name, checkpoint=str(path), task="classification")

    small, medium, large = of(400), of(2_000_000), of(9_000_000)
    seconds, memory = zip(*map(model_limits, (small, medium, large)), strict=True)
    assert 16 > seconds[0] < seconds[1] < seconds[2] < 121
    assert 1.3e9 > memory[0] < memory[1] < memory[2] == 8e9 + COPIES * 9_000_000
    for limits in (model_limits(of(400, "timm")), model_limits(small, large.checkpoint)):
        assert limits[1] > 8e9  # the architecture is a library's, or another file is large
    images = DataSpec(kind="archive", path=large.checkpoint)

    def check_bytes(spec: CheckSpec) -> float:
        return CheckTask(run_id="", spec=spec).most_bytes

    assert check_bytes(CheckSpec(reference=small, candidate=of(500))) < 1.3e9
    assert check_bytes(CheckSpec(reference=small, candidate=of(500), data=images)) > 8e9
    assert check_bytes(CheckSpec(reference=small, candidate=of(400, "timm"))) > 8e9
    assert Measurement(run_id="a", spec=RunSpec(model=small)).most_bytes == memory[0]
    assert Measurement(run_id="a", spec=RunSpec(model=medium)).most_bytes == math.inf


def test_turns_are_of_people_and_without_login_of_pages() -> None:
    assert ANYBODY.turn_of("local") == ""
    assert ANYBODY.turn_of("ann") == "ann"
    assert Requester(person="page 1").turn_of("local") == "page 1"


def test_a_text_that_takes_a_command_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requester, "OPEN_SECONDS", 0.05)
    before = signal.getsignal(signal.SIGPROF)
    with pytest.raises(ReadingStopped, match=r"slow\.csv kept the process that reads it busy"), \
            reading_limits(tmp_path / "slow.csv"):  # fmt: skip
        re.match("(a+)+b", "a" * 40)
    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_a_text_that_takes_a_command_too_much_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory, match=r"more than the 0\.3 GB"), reading_limits(tmp_path / "large.csv"):
        bytearray(10**9)
