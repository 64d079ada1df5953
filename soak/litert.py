"""Hostile LiteRT files, each in a process that may be killed: refused with one sentence, or run within bounds.

Run as ``python -m soak.litert [--files 1000] [--after N]`` where the extra ``litert`` is installed: all files by hand,
then so many with changed bytes, offsets or fields, each opened and run on an image with the limits of ``soak.onnx`` and
the memory of a check. Exits with 0 if every file was run, refused with one sentence, or ended its process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import torch

from senseapp.runtimes.litert.model import LiteRtFile
from senseapp.server.machine import memory_limit
from soak.onnx import report
from tests.hostile_tflite import BY_HAND, RUN, mutated, sound

MOST_BYTES = 1.2e9
"""Of memory, as a check of small files may take."""


def run_once(content: bytes) -> None:
    """Open a file and run it on one image; raises SenseError."""
    with memory_limit(most_bytes=MOST_BYTES):
        opened = LiteRtFile(content, threads=1)
        opened.run(torch.zeros(1, *(size or 1 for size in opened.facts.image_shape)))


def files(number: int, after: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield names of files, and what makes them: those by hand, then ``number`` changed ones."""
    if not after:
        yield from ((name, make) for name, (make, _) in BY_HAND.items())
        yield from RUN.items()
    for seed in range(after, after + number):
        yield f"changed {seed}", lambda seed=seed: mutated(seed)


def main() -> int:
    """Run all files and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--after", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for is_int8 in (False, True):
        run_once(sound(int8=is_int8))  # loads what is loaded at the first call
    return report(files(asked.files, asked.after), run_once, may_crash=True)


if __name__ == "__main__":
    sys.exit(main())
