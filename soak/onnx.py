"""Hostile ONNX files, each in a process that may be killed: refused with one sentence, or opened within bounds.

Run as ``python -m soak.onnx [--files 1000] [--after N]``: all files by hand, then so many with changed bytes or
fields. Each process has 4 GB more memory than before, a minute of processor time, and cannot write to any file. Exits
with 0 if every file was opened or refused with one sentence, and no process was lost but to one of these limits.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from senseapp.core.errors import SenseError
from senseapp.networks.onnx.open import open_onnx
from tests import hostile_onnx
from tests.onnx_styles import STYLES

MOST_MEMORY = 4 << 30
MOST_SECONDS = 60
LONGEST_SENTENCE = 1000
_AT_ITS_LIMIT = {-signal.SIGXCPU, -signal.SIGKILL}
_CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}
_TOLD_EVERY = 100


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a file: ``opened``, ``refused``, ``limit``, ``crashed`` or ``wrong``; what was said; seconds."""

    kind: str
    sentence: str
    seconds: float


def outcome_of(content: bytes, opens: Callable[[bytes], object] = open_onnx) -> Outcome:
    """Open ``content`` in a process of its own, by ``opens``."""
    began = time.perf_counter()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _answer(content, writing, opens)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read().decode("utf-8", "replace")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kind, _, sentence = told.partition(": ")
    if status:
        kind = "limit" if status in _AT_ITS_LIMIT else "crashed" if status in _CRASHES else "wrong"
        sentence = f"status {status} {told}"
    return Outcome(kind=kind, sentence=sentence, seconds=time.perf_counter() - began)


def _answer(content: bytes, writing: int, opens: Callable[[bytes], object]) -> None:
    """Write what became of ``content``, and end this process."""
    status = 1
    try:
        os.setpgrp()
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        nowhere = os.open(os.devnull, os.O_WRONLY)  # libraries say what they think of such files
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            opens(content)
            told = "opened: "
        except SenseError as error:
            one = str(error)
            told = f"refused: {one}" if 0 < len(one) <= LONGEST_SENTENCE and "\n" not in one else f"wrong: {one!r}"
        except Exception as error:
            told = f"wrong: {type(error).__name__}: {error}"
        os.write(writing, told[:60_000].encode("utf-8", "replace"))
        status = 0
    finally:
        os._exit(status)


def asked_files(description: str | None, hostile: ModuleType) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield names of files of ``hostile``, and what makes them: those by hand, then as many changed ones as asked."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--after", type=int, default=0)
    asked = parser.parse_args()
    if not asked.after:
        yield from ((name, make) for name, (make, _) in hostile.BY_HAND.items())
        yield from hostile.RUN.items()
    for seed in range(asked.after, asked.after + asked.files):
        yield f"changed {seed}", lambda seed=seed: hostile.mutated(seed)


def main() -> int:
    """Open all files and print what became of them."""
    torch.set_num_threads(1)
    open_onnx(STYLES["opset 18"]())  # torch loads modules, which need a folder for temporary files, at the first shapes
    return report(asked_files(__doc__, hostile_onnx), open_onnx)


def report(
    made: Iterable[tuple[str, Callable[[], bytes]]], opens: Callable[[bytes], object], *, may_crash: bool = False
) -> int:
    """Open each file by ``opens`` and print what became of them; return 1 if one ended in anything but a sentence.

    ``may_crash`` is for libraries that crash on some: the server says a sentence where a process ends.
    """
    counts, slowest = Counter[str](), (0.0, "")
    for number, (name, make) in enumerate(made, 1):
        found = outcome_of(make(), opens)
        counts[found.kind] += 1
        slowest = max(slowest, (found.seconds, name))
        if found.kind not in ("opened", "refused"):
            sys.stdout.write(f"{found.kind}: {name}: {found.sentence[:500]}\n")
        if not number % _TOLD_EVERY:
            sys.stderr.write(f"{number}: {dict(counts)}\n")
    sys.stdout.write(f"{dict(counts)}; the slowest took {slowest[0]:.1f} s ({slowest[1]})\n")
    return 1 if counts["wrong"] + (0 if may_crash else counts["crashed"]) else 0


if __name__ == "__main__":
    sys.exit(main())
