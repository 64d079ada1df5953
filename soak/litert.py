"""Hostile LiteRT files, each in a process that may be killed: refused with one sentence, or run within bounds.

Run as ``python -m soak.litert [--files 1000] [--after N]`` where the extra ``litert`` is installed: all files by hand,
then so many with changed bytes, offsets or fields, each opened and run on an image with the limits of ``soak.onnx`` and
the memory of a check. Exits with 0 if every file was run, refused with one sentence, or ended its process.
"""

from __future__ import annotations

import sys

import torch

from senseapp.runtimes.litert.model import LiteRtFile
from senseapp.server.machine import memory_limit
from soak.onnx import asked_files, report
from tests import hostile_tflite

MOST_BYTES = 1.2e9
"""Of memory, as a check of small files may take."""


def run_once(content: bytes) -> None:
    """Open a file and run it on one image; raises SenseError."""
    with memory_limit(most_bytes=MOST_BYTES):
        opened = LiteRtFile(content, threads=1)
        opened.run(torch.zeros(1, *(size or 1 for size in opened.facts.image_shape)))


def main() -> int:
    """Run all files and print what became of them."""
    torch.set_num_threads(1)
    for is_int8 in (False, True):
        run_once(hostile_tflite.sound(int8=is_int8))  # loads what is loaded at the first call
    return report(asked_files(__doc__, hostile_tflite), run_once, may_crash=True)


if __name__ == "__main__":
    sys.exit(main())
