"""Small picture files that keep a decoder busy far longer than their pixels do, in every format that is read.

    python -m soak.slow_pictures [--pictures 100]

Loads each as a run does, alone in a zip and behind sound ones; exits with 0 if each time took at most 10 seconds. A
picture is used, or left out with a sentence. ``soak.hostile --only "slow picture"`` brings them to the page.
"""

from __future__ import annotations

import argparse
import io
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from senseapp.core.errors import SenseError
from senseapp.data.load import load_images
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import DataSpec
from senseapp.tasks import CLASSIFICATION
from tests.pictures import png, write_zip

Maker = Callable[[int], bytes]
_SOS = b"\xff\xda"


def _saved(side: int, kind: str, mode: str = "L", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (side, side), 128).save(file, kind, **options)
    return file.getvalue()


def _scans(side: int, count: int, mode: str = "L") -> bytes:
    jpeg = _saved(side, "JPEG", mode, progressive=True)
    last = jpeg.rindex(_SOS)
    return jpeg[:last] + jpeg[last:-2] * count + jpeg[-2:]


def many_scans(step: int) -> bytes:
    """A progressive JPEG whose last scan comes thousands of times."""
    return _scans(1000 + 600 * step, 1000 * step)


def many_scans_in_colour(step: int) -> bytes:
    """The same with three components."""
    return _scans(800 + 500 * step, 700 * step, "RGB")


def scans_in_tiff(step: int) -> bytes:
    """A TIFF with one strip, which is such a JPEG: its own reader counts no markers."""
    side = 1000 + 600 * step
    jpeg = _scans(side, 1500 * step)
    entries = [
        *((256, 4, 1, side), (257, 4, 1, side), (258, 3, 1, 8), (259, 3, 1, 7), (262, 3, 1, 1)),
        *((273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, side), (279, 4, 1, len(jpeg))),
    ]
    padded = jpeg + b"\0" * (len(jpeg) % 2)
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8 + len(padded)) + padded + directory + bytes(4)


def tiff_strips(step: int) -> bytes:
    """A TIFF that names millions of strips."""
    count = 400_000 * step
    entries = [
        *((256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)),
        *((273, 4, count, 200), (277, 3, 1, 1), (278, 4, 1, 1), (279, 4, count, 200 + 4 * count)),
    ]
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<I", 8) + directory + bytes(4)
    return head.ljust(200, b"\0") + struct.pack("<I", 8) * (2 * count)


def _put_in(kind: str, mark: bytes, pieces: bytes, *, before: int = 0) -> bytes:
    """Return a small picture with further pieces so many bytes before the first ``mark``."""
    sound = _saved(8, kind, "P" if kind == "GIF" else "L")
    start = sound.index(mark) - before
    return sound[:start] + pieces + sound[start:]


def gif_comments(step: int) -> bytes:
    """A GIF with one comment in many pieces, which are joined one by one."""
    return _put_in("GIF", b"\x2c", b"\x21\xfe" + (b"\xff" + b"x" * 255) * (30_000 * step) + b"\0")


def gif_extensions(step: int) -> bytes:
    """A GIF with a million extensions before its first frame."""
    return _put_in("GIF", b"\x2c", b"\x21\xf9\x04\0\0\0\0\0" * (400_000 * step))


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_chunks(step: int) -> bytes:
    """A PNG with millions of empty chunks before its pixels."""
    return _put_in("PNG", b"IDAT", png_chunk(b"tEXt", b"a\0b") * (200_000 * step), before=4)


def png_empty_data(step: int) -> bytes:
    """A PNG whose pixels come after millions of empty pieces of data."""
    return _put_in("PNG", b"IDAT", png_chunk(b"IDAT", b"") * (400_000 * step), before=4)


def png_texts(step: int) -> bytes:
    """A PNG with compressed texts that unpack to a thousand times their size."""
    text = png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(900_000), 9))
    return _put_in("PNG", b"IDAT", text * (100 * step), before=4)


def webp_frames(step: int) -> bytes:
    """An animated WebP with very many frames on a large canvas."""
    frame = _saved(16, "WEBP", "RGB")[12:]
    side = min(16_000, 1000 * step)
    place = b"\0" * 6 + struct.pack("<I", 15)[:3] * 2 + b"\1\0\0\0"
    frames = _webp_chunk(b"ANMF", place + frame) * (4000 * step)
    edge = struct.pack("<I", side - 1)[:3]
    body = _webp_chunk(b"VP8X", b"\x02\0\0\0" + edge * 2) + _webp_chunk(b"ANIM", bytes(6)) + frames
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def _webp_chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


SLOW_PICTURES: dict[str, Maker] = {
    "scans.jpg": many_scans,
    "colour-scans.jpg": many_scans_in_colour,
    "scans.tif": scans_in_tiff,
    "strips.tif": tiff_strips,
    "comments.gif": gif_comments,
    "extensions.gif": gif_extensions,
    "chunks.png": png_chunks,
    "empty-data.png": png_empty_data,
    "texts.png": png_texts,
    "frames.webp": webp_frames,
}
"""By the name that such a file has; the argument says how bad it is, from 1 to 10."""

_MOST_SECONDS = 10.0
_LEFT_OUT = ("cannot be used", "take more than")
_SMALL = Preprocessing(input_shape=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)


def load_as_a_run(path: Path) -> str:
    """Load the pictures of a zip as a run does, and return what it says of those that it leaves out."""
    try:
        images = load_images(DataSpec(kind="archive", path=str(path)), _SMALL, num_classes=10, task=CLASSIFICATION)
    except SenseError as error:
        return str(error)
    return " ".join(images.notes)


def main(arguments: list[str]) -> int:
    """Load as many as asked, and say what came of them in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=100)
    given = parser.parse_args(arguments)
    slowest, left_out, wrong = (0.0, ""), 0, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.pictures):
            name = list(SLOW_PICTURES)[number % len(SLOW_PICTURES)]
            step = 1 + number // len(SLOW_PICTURES) % 10
            slow = {f"1/z-{name}": SLOW_PICTURES[name](step)}
            for before in ({}, {f"0/{place}.png": png(place) for place in range(3)}):
                path = write_zip(Path(folder) / f"{name}-{step}-{len(before)}.zip", before | slow)
                began = time.perf_counter()
                said = load_as_a_run(path)
                seconds = time.perf_counter() - began
                slowest, left_out = (
                    max(slowest, (seconds, path.name)),
                    left_out + any(mark in said for mark in _LEFT_OUT),
                )
                if seconds > _MOST_SECONDS:
                    wrong.append(f"{path.name}: {seconds:.1f} s, {said[:200]!r}")
                path.unlink()
    sys.stdout.write(
        f"{2 * given.pictures} zips with a slow picture: {left_out} were left out with a sentence, the slowest took "
        f"{slowest[0]:.1f} s ({slowest[1]}); wrong: {'; '.join(wrong) or 'nothing'}\n"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
