"""Hostile ONNX files in checks of a server with default settings: the wait of others, and memory.

Run as ``python -m soak.hostile_checks``. One person checks two files of 423 bytes that compute without end, which
hold all lanes; another then checks two plain files, and a third one asks for 12 GB with 354 bytes. Exits with 0 if the
second person's check begins within 15 s, each hostile one ends with a sentence, and no process takes more than 2 GB.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from senseapp.records.check import CheckSpec
from senseapp.records.jobs import RunState
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from tests.onnx_graphs import file_of, node
from tests.unit.runtimes.test_onnxruntime_foreign import looping

MOST_WAIT, MOST_BYTES, MOST_SECONDS = 15.0, 2e9, 300.0
HEAD = [node("GlobalAveragePool", "x", "p"), node("Flatten", "p", "y")]
PLAIN = file_of(HEAD, {}, shape=("N", 3, 8, 8))
ENDLESS = looping("", "bright", still="bright")
HUGE = file_of(
    [*HEAD[:1], node("Expand", "p s", "e"), node("GlobalAveragePool", "e", "g"), node("Flatten", "g", "y")],
    {"s": np.array([1, 3, 10**5, 10**4])},
    shape=(1, 3, 8, 8),
)


class Peak:
    """The most memory that any worker process takes while it is watched."""

    def __init__(self) -> None:
        self.bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            for process in psutil.Process().children(recursive=True):
                try:
                    self.bytes = max(self.bytes, process.memory_info().rss)
                except psutil.Error:
                    continue
            time.sleep(0.02)


def checked(service: Service, candidate: bytes) -> str:
    """Start a check of ``candidate`` against a plain file, and return its id."""
    sides = []
    for content in (PLAIN, candidate):
        path = service.inputs.reserve_upload(len(content))
        path.write_bytes(content)
        named = path.replace(path.with_name("net.onnx"))
        sides.append(ModelSpec(library="onnx", checkpoint=str(named), task="classification"))
    spec = CheckSpec(reference=sides[0], candidate=sides[1], data=DataSpec(kind="random"), num_samples=8)
    return service.checks.start(spec)


def ended(service: Service, check_id: str) -> str:
    """Wait until a check has ended, and return its error or its headline."""
    deadline = time.monotonic() + MOST_SECONDS
    while time.monotonic() < deadline:
        record = service.checks.record(check_id)
        if record.error or record.report is not None:
            return record.error or record.report.headline  # type: ignore[union-attr]
        time.sleep(0.2)
    return "it did not end"


def main() -> int:
    """Start the checks, and say what came of them."""
    with tempfile.TemporaryDirectory() as folder:
        backend = Backend(Path(folder), data_roots=(), settings=ServerSettings(job_processes=True))
        backend.warm_up()
        backend.speeds.calibrate()
        peak = Peak()
        ann, bob, cas = (Service(backend, name) for name in ("ann", "bob", "cas"))
        endless = [checked(ann, ENDLESS) for _ in range(2)]
        time.sleep(1)
        began = time.monotonic()
        plain = checked(bob, PLAIN)
        while bob.checks.progress(plain).state is RunState.QUEUED and time.monotonic() - began < MOST_SECONDS:  # type: ignore[union-attr]
            time.sleep(0.05)
        waited = time.monotonic() - began
        said = [ended(bob, plain), ended(cas, checked(cas, HUGE)), *(ended(ann, each) for each in endless)]
        backend.close()
    sizes = len(ENDLESS), len(HUGE)
    sys.stdout.write(
        f"files of {sizes} bytes; waited {waited:.1f} s, a process took {peak.bytes / 1e9:.2f} GB; {said}\n"
    )
    is_refused = "GB of memory that a file of its size may take" in said[1] and all(
        "so it was stopped" in x for x in said[2:]
    )
    return int(waited > MOST_WAIT or peak.bytes > MOST_BYTES or not is_refused)


if __name__ == "__main__":
    sys.exit(main())
