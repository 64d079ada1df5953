"""Pictures for detectors and text detectors: characters on photographs, and pages of text, made by code.

Pictures to make files from show left halves of the photographs, pictures to score them right halves.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.real.photographs import SCORED_ON, Half, photographs

_CHARACTERS = string.ascii_letters + string.digits + "@#&%?"
_WORDS = (
    *("measure", "layer", "weight", "scale", "range", "error", "bits", "image", "score", "box", "table", "figure"),
    *("result", "method", "model", "network", "section", "speed", "memory", "page", "number", "channel", "file"),
    *("quantization", "sparsity", "detection", "small", "large", "of", "the", "and", "with", "for", "each", "to", "in"),
)
_INKS = ((20, 20, 20), (60, 60, 70), (30, 40, 110), (120, 30, 30))


def characters(count: int, halves: Sequence[Half] = SCORED_ON, *, seed: int, side: int = 416) -> list[Image.Image]:
    """Return photographs of ``side`` pixels with four to seven turned characters in colours, as in picture puzzles."""
    generator = np.random.default_rng(seed)
    found = []
    for crop in photographs(count, halves, seed=seed):
        picture = crop.resize((side, side), Image.Resampling.BICUBIC)
        taken: list[tuple[float, float]] = []
        for _ in range(int(generator.integers(4, 8))):
            place = tuple(float(each) for each in generator.uniform(0.02, 0.82, 2) * side)
            if any(max(abs(place[0] - x), abs(place[1] - y)) < side / 6 for x, y in taken):
                continue
            taken.append((place[0], place[1]))
            _paste_character(picture, place, generator, side)
        found.append(picture)
    return found


def _paste_character(picture: Image.Image, place: Sequence[float], generator: np.random.Generator, side: int) -> None:
    size = int(generator.uniform(0.1, 0.16) * side)
    font = ImageFont.load_default(size)
    stamp = Image.new("L", (2 * size, 2 * size))
    text = _CHARACTERS[int(generator.integers(len(_CHARACTERS)))]
    ImageDraw.Draw(stamp).text((size, size), text, 255, font, anchor="mm", stroke_width=2)
    stamp = stamp.rotate(float(generator.uniform(-40, 40)))
    stamp = stamp.crop(stamp.getbbox())
    colour = tuple(int(each) for each in generator.integers(0, 256, 3))
    picture.paste(Image.new("RGB", stamp.size, colour), (int(place[0]), int(place[1])), stamp)


def pages(
    count: int, halves: Sequence[Half] = SCORED_ON, *, seed: int, width: int = 640, height: int = 640
) -> list[Image.Image]:
    """Return pages with headings, paragraphs, a ruled table and a photograph, as scanners see them."""
    generator = np.random.default_rng(seed)
    return [_page(photograph, generator, width, height) for photograph in photographs(count, halves, seed=seed)]


def _page(photograph: Image.Image, generator: np.random.Generator, width: int, height: int) -> Image.Image:
    shade = int(generator.integers(225, 256))
    page = Image.new("RGB", (width, height), (shade, shade, int(shade - generator.integers(0, 15))))
    pen, margin = ImageDraw.Draw(page), int(generator.integers(25, 60))
    ink, top = _INKS[int(generator.integers(len(_INKS)))], int(generator.integers(20, 50))
    blocks = [*generator.permutation(["text", "text", "table", "picture", "text"])]
    while top < height - 60 and blocks:
        size = int(generator.integers(11, 20))
        kind = blocks.pop(0)
        if generator.random() < 0.6:
            pen.text((margin, top), _line(generator, 3), ink, ImageFont.load_default(size + 10))
            top += size + 26
        if kind == "text":
            top = _paragraph(pen, generator, ink, (margin, top, width - margin), size, int(generator.integers(2, 7)))
        elif kind == "table":
            top = _table(pen, generator, ink, (margin, top, width - margin), size)
        else:
            wide = int(generator.integers(120, 220))
            page.paste(photograph.resize((wide, wide * 3 // 4)), (margin, top))
            top += wide * 3 // 4 + 20
    turned = page.rotate(float(generator.uniform(-1.5, 1.5)), Image.Resampling.BICUBIC, fillcolor=(shade,) * 3)
    soft = turned.filter(ImageFilter.GaussianBlur(float(generator.uniform(0, 0.7))))
    noise = generator.normal(0, generator.uniform(0, 6), (height, width, 1))
    return Image.fromarray((np.asarray(soft) + noise).clip(0, 255).astype(np.uint8))


def _line(generator: np.random.Generator, words: int) -> str:
    return " ".join(generator.choice(_WORDS, words)).capitalize()


def _paragraph(
    pen: ImageDraw.ImageDraw,
    generator: np.random.Generator,
    ink: tuple[int, int, int],
    place: tuple[int, int, int],
    size: int,
    lines: int,
) -> int:
    left, top, right = place
    font = ImageFont.load_default(size)
    for _ in range(lines):
        text = _line(generator, 14)
        while pen.textlength(text, font) > right - left:
            text = text.rpartition(" ")[0]
        pen.text((left, top), text, ink, font)
        top += int(1.5 * size)
    return top + size


def _table(
    pen: ImageDraw.ImageDraw,
    generator: np.random.Generator,
    ink: tuple[int, int, int],
    place: tuple[int, int, int],
    size: int,
) -> int:
    left, top, right = place
    rows, columns = (int(each) for each in generator.integers(3, 6, 2))
    wide, high, font = (right - left) // columns, int(1.9 * size), ImageFont.load_default(size)
    for row in range(rows):
        for column in range(columns):
            corner = left + column * wide, top + row * high
            pen.rectangle((*corner, corner[0] + wide, corner[1] + high), outline=ink)
            text = f"{generator.uniform(0, 99):.2f}" if row and column else str(generator.choice(_WORDS))
            pen.text((corner[0] + 5, corner[1] + size // 3), text[: max(3, wide // size)], ink, font)
    return top + rows * high + size


def write(folder: Path, pictures: Sequence[Image.Image]) -> Path:
    """Write pictures as PNG files into ``folder``; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, picture in enumerate(pictures):
        picture.save(folder / f"{index:04}.png")
    return folder
