"""Hostile and damaged annotations of pictures: masks, COCO JSON, YOLO text, Pascal VOC XML; by hand and by chance.

Each is of one of three pictures in an archive; the other two have valid ones where each has a file of its own.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from PIL import Image

from tests.pictures import encoded, random_picture

WIDTH, HEIGHT = 32, 24
PICTURES = ("images/a.png", "images/b.png", "images/c.png")
TaskName = Literal["segmentation", "detection"]
Outcome = Literal["refused", "left out", "read"]
"""The whole archive is refused, only the picture is left out, or its annotation is read."""
Json = dict[str, Any]
Wrong = bytes | Callable[[], bytes]
"""A file, or what makes a large one."""
DAMAGED: tuple[Outcome, ...] = ("refused", "left out")
ANY: tuple[Outcome, ...] = ("refused", "left out", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadAnnotation:
    """One archive.

    Attributes:
        family: how it was made.
        task: that reads it.
        files: of the archive, by path.
        allowed: what may become of it.
    """

    family: str
    task: TaskName
    files: Mapping[str, bytes]
    allowed: tuple[Outcome, ...]


def picture(seed: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    """Return a picture of noise, as PNG."""
    return encoded(random_picture(seed, size))


def mask(values: object = None, *, kind: str = "PNG", mode: str = "L", **options: Any) -> bytes:
    """Return a mask of two classes, or of ``values``."""
    usual = np.repeat(np.arange(HEIGHT)[:, None] // 12, WIDTH, axis=1).astype(np.uint8)
    image = Image.fromarray(np.asarray(usual if values is None else values))
    return encoded(image if image.mode == mode or values is not None else image.convert(mode), kind, **options)


def made(bad: Wrong) -> bytes:
    """Return the bytes of a file."""
    return bad if isinstance(bad, bytes) else bad()


def _pictures() -> dict[str, bytes]:
    return {path: picture(seed) for seed, path in enumerate(PICTURES)}


def _beside(folder: str, suffix: str, valid: bytes, bad: Wrong) -> dict[str, bytes]:
    """Return the pictures with a file for each, of which that of the second is the bad one."""
    files = [valid, made(bad), valid]
    return _pictures() | {f"{folder}/{stem}{suffix}": file for stem, file in zip("abc", files, strict=True)}


# ---- masks


def _png_header(width: int, height: int, bits: int = 8, colour: int = 0) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )


def _animated() -> bytes:
    frames = [Image.new("L", (WIDTH, HEIGHT), grey) for grey in (0, 1, 2)]
    file = io.BytesIO()
    frames[0].save(file, "PNG", save_all=True, append_images=frames[1:])
    return file.getvalue()


def _palette(colours: int) -> bytes:
    image = Image.fromarray((np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % colours).astype(np.uint8)).convert("P")
    return encoded(image)


_VALID_MASK = mask()
_MASKS: Mapping[str, tuple[Wrong, tuple[Outcome, ...]]] = {
    "a smaller one": (lambda: mask(np.zeros((HEIGHT // 2, WIDTH), np.uint8)), DAMAGED),
    "a turned one": (lambda: mask(np.zeros((WIDTH, HEIGHT), np.uint8)), DAMAGED),
    "one pixel": (lambda: mask(np.zeros((1, 1), np.uint8)), DAMAGED),
    "16 bits of class numbers": (lambda: mask(np.full((HEIGHT, WIDTH), 1, np.uint16)), ANY),
    "16 bits beyond 255": (lambda: mask(np.full((HEIGHT, WIDTH), 40_000, np.uint16)), DAMAGED),
    "32 bits in TIFF": (lambda: mask(np.full((HEIGHT, WIDTH), 70_000, np.int32), kind="TIFF"), DAMAGED),
    "floats in TIFF": (lambda: mask(np.full((HEIGHT, WIDTH), 0.5, np.float32), kind="TIFF"), DAMAGED),
    "NaN in TIFF": (lambda: mask(np.full((HEIGHT, WIDTH), np.nan, np.float32), kind="TIFF"), DAMAGED),
    "colours": (lambda: mask(np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)), DAMAGED),
    "grey as colours": (lambda: mask(mode="RGB"), ANY),
    "with an alpha channel": (lambda: mask(mode="RGBA"), ANY),
    "grey and alpha": (lambda: mask(mode="LA"), ANY),
    "in printing colours": (lambda: mask(mode="CMYK", kind="TIFF"), DAMAGED),
    "as JPEG, whose greys are not exact": (lambda: mask(kind="JPEG"), ANY),
    "class numbers beyond the model's": (lambda: mask(np.full((HEIGHT, WIDTH), 200, np.uint8)), ANY),
    "everything void": (lambda: mask(np.full((HEIGHT, WIDTH), 255, np.uint8)), ANY),
    "a palette of 256": (lambda: _palette(256), ANY),
    "one bit": (lambda: mask(mode="1"), ANY),
    "animated": (_animated, ANY),
    "100,000 pixels a side": (lambda: _png_header(100_000, 100_000), DAMAGED),
    "a side of 2^31 pixels": (lambda: _png_header(2**31 - 1, 1), DAMAGED),
    "no width": (lambda: _png_header(0, HEIGHT), DAMAGED),
    "the right size without pixels": (lambda: _png_header(WIDTH, HEIGHT), DAMAGED),
    "16 bits without pixels": (lambda: _png_header(WIDTH, HEIGHT, bits=16), DAMAGED),
    "an unknown kind of colour": (lambda: _png_header(WIDTH, HEIGHT, colour=5), DAMAGED),
    "broken off": (lambda: _VALID_MASK[:60], DAMAGED),
    "broken off in its header": (lambda: _VALID_MASK[:20], DAMAGED),
    "empty": (lambda: b"", DAMAGED),
    "a text": (lambda: b"0 0 1 1\n" * 100, DAMAGED),
    "JSON": (lambda: b"{}", DAMAGED),
    "a GIF": (lambda: mask(kind="GIF"), ANY),
    "zeros": (lambda: bytes(10_000), DAMAGED),
}


# ---- COCO


def _image(number: object, path: str, **changes: Any) -> Json:
    return {"id": number, "file_name": path.rpartition("/")[2], "width": WIDTH, "height": HEIGHT} | changes


def _object(number: object, image: object, **changes: Any) -> Json:
    box = {"id": number, "image_id": image, "category_id": 1, "bbox": [2, 3, 10, 8], "area": 80, "iscrowd": 0}
    return box | {"segmentation": [[2, 3, 12, 3, 12, 11, 2, 11]]} | changes


def coco(bad: Json | None = None, **changes: Any) -> bytes:
    """Return a COCO file of the three pictures with an object each, the second one's changed by ``bad``."""
    content: Json = {
        "images": [_image(place, path) for place, path in enumerate(PICTURES)],
        "annotations": [_object(place, place, **(bad or {} if place == 1 else {})) for place in range(len(PICTURES))],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    return json.dumps(content | changes).encode()


def _without(part: str, key: str) -> bytes:
    content = json.loads(coco())
    del content[part][1][key]
    return json.dumps(content).encode()


def _many(count: int) -> bytes:
    """Return a file of ``count`` annotations of one picture."""
    one = json.dumps(_object(1, 1, segmentation=[])).encode()
    before, _, after = coco(annotations=[]).partition(b'"annotations": [')
    return before + b'"annotations": [' + b",".join([one] * count) + after


_RUNS = {"size": [HEIGHT, WIDTH]}
_FAR = 10**400
_COCO: Mapping[str, tuple[Wrong, tuple[Outcome, ...]]] = {
    "no images": (lambda: json.dumps({"annotations": []}).encode(), ANY),
    "images are a number": (lambda: coco(images=7), DAMAGED),
    "images are an object": (lambda: coco(images={"a": 1}), DAMAGED),
    "images are numbers": (lambda: coco(images=[1, 2, 3]), DAMAGED),
    "annotations are a text": (lambda: coco(annotations="x"), DAMAGED),
    "annotations are texts": (lambda: coco(annotations=["x"]), DAMAGED),
    "annotations are null": (lambda: coco(annotations=None), DAMAGED),
    "categories are a text": (lambda: coco(categories="x"), DAMAGED),
    "categories are lists": (lambda: coco(categories=[[1, "cat"]]), DAMAGED),
    "a category without an id": (lambda: coco(categories=[{"name": "cat"}]), DAMAGED),
    "a category of 10^9": (lambda: coco(categories=[{"id": 10**9, "name": "cat"}]), ANY),
    "a negative category": (lambda: coco(categories=[{"id": -1, "name": "cat"}]), DAMAGED),
    "a picture without an id": (lambda: _without("images", "id"), DAMAGED),
    "a picture without a name": (lambda: _without("images", "file_name"), DAMAGED),
    "an object without a picture": (lambda: _without("annotations", "image_id"), DAMAGED),
    "an object without a category": (lambda: _without("annotations", "category_id"), DAMAGED),
    "a name that is a number": (lambda: coco(images=[_image(1, "x") | {"file_name": 7}]), DAMAGED),
    "an id that is a list": (lambda: coco(images=[_image([1], PICTURES[0])]), DAMAGED),
    "an id that is NaN": (lambda: coco(images=[_image(float("nan"), PICTURES[0])]), DAMAGED),
    "an id that is true": (lambda: coco({"image_id": True}), DAMAGED),
    "ids that come twice": (lambda: coco(images=[_image(1, path) for path in PICTURES]), DAMAGED),
    "pictures that come twice": (lambda: coco(images=[_image(place, PICTURES[0]) for place in range(3)]), ANY),
    "other pictures": (lambda: coco(images=[_image(place, f"z{place}.png") for place in range(3)]), ANY),
    "names that climb": (lambda: coco(images=[_image(place, "../" * 9 + "etc/passwd") for place in range(3)]), ANY),
    "another size": (lambda: coco(images=[_image(place, path, width=900) for place, path in enumerate(PICTURES)]), ANY),
    "no JSON": (lambda: b"{'images': []", DAMAGED),
    "broken off": (lambda: coco()[:200], DAMAGED),
    "binary": (lambda: bytes(range(256)) * 40, DAMAGED),
    "UTF-16": (lambda: coco().decode().encode("utf-16"), ANY),
    "lists in lists": (lambda: b"[" * 1_000_000, DAMAGED),
    "objects in objects": (lambda: b'{"a":' * 200_000, DAMAGED),
    "a number of 100,000 digits": (lambda: coco().replace(b"80", b"8" * 100_000, 1), DAMAGED),
    "65 MB": (lambda: b'{"images": [], "annotations": [' + b" " * 65_000_000 + b"]}", DAMAGED),
    "10^6 objects": (lambda: _many(300_000), DAMAGED),
    "6,000 objects of a picture": (lambda: _many(6_000), DAMAGED),
}
_BOXES_IN_COCO: Mapping[str, tuple[Wrong, tuple[Outcome, ...]]] = {
    "no box": (lambda: _without("annotations", "bbox"), DAMAGED),
    "a box of texts": (lambda: coco({"bbox": ["a", "b", "c", "d"]}), DAMAGED),
    "a box of three": (lambda: coco({"bbox": [1, 2, 3]}), DAMAGED),
    "a box in a box": (lambda: coco({"bbox": [[1, 2, 3, 4]]}), DAMAGED),
    "a box of NaN": (lambda: coco({"bbox": [float("nan")] * 4}), DAMAGED),
    "an endless box": (lambda: coco({"bbox": [0, 0, float("inf"), 3]}), DAMAGED),
    "a box of 401 digits": (lambda: coco({"bbox": [0, 0, _FAR, 3]}), DAMAGED),
    "a negative box": (lambda: coco({"bbox": [10, 10, -4, 3]}), DAMAGED),
    "a box outside of its picture": (lambda: coco({"bbox": [900, 900, 10, 10]}), DAMAGED),
    "a category of 401 digits": (lambda: coco({"category_id": _FAR}), DAMAGED),
    "a category that is a half": (lambda: coco({"category_id": 1.5}), DAMAGED),
    "a category that is a list": (lambda: coco({"category_id": [1]}), DAMAGED),
    "a category that is true": (lambda: coco({"category_id": True}), DAMAGED),
}
_SHAPES_IN_COCO: Mapping[str, tuple[Wrong, tuple[Outcome, ...]]] = {
    "a polygon of two corners": (lambda: coco({"segmentation": [[1, 2, 3, 4]]}), DAMAGED),
    "a polygon of seven numbers": (lambda: coco({"segmentation": [[1, 2, 3, 4, 5, 6, 7]]}), DAMAGED),
    "a polygon of texts": (lambda: coco({"segmentation": [["a"] * 6]}), DAMAGED),
    "a polygon of NaN": (lambda: coco({"segmentation": [[float("nan")] * 6]}), DAMAGED),
    "a polygon of 401 digits": (lambda: coco({"segmentation": [[_FAR] * 6]}), DAMAGED),
    "a polygon that is a number": (lambda: coco({"segmentation": [7]}), DAMAGED),
    "a shape that is a text": (lambda: coco({"segmentation": "abc"}), DAMAGED),
    "a shape of null": (lambda: coco({"segmentation": None}), DAMAGED),
    "a polygon outside of its picture": (lambda: coco({"segmentation": [[900, 900, 950, 900, 950, 950]]}), ANY),
    "400,000 corners": (lambda: coco({"segmentation": [[1, 2, 30, 2, 30, 20, 1, 20] * 100_000]}), DAMAGED),
    "60,000 polygons": (lambda: coco({"segmentation": [[0, 0, WIDTH, 0, WIDTH, HEIGHT]] * 60_000}), DAMAGED),
    "runs without a size": (lambda: coco({"segmentation": {"counts": [1, 2]}}), DAMAGED),
    "runs of another size": (lambda: coco({"segmentation": {"size": [9, 9], "counts": [1, 80]}}), DAMAGED),
    "runs of a negative size": (lambda: coco({"segmentation": {"size": [-9, -9], "counts": [1, 80]}}), DAMAGED),
    "runs of half a size": (lambda: coco({"segmentation": {"size": [1.5, 2], "counts": [1, 2]}}), DAMAGED),
    "runs beyond the picture": (lambda: coco({"segmentation": _RUNS | {"counts": [0, 2**30]}}), DAMAGED),
    "runs below zero": (lambda: coco({"segmentation": _RUNS | {"counts": [-5, 773]}}), DAMAGED),
    "runs of texts": (lambda: coco({"segmentation": _RUNS | {"counts": ["a"]}}), DAMAGED),
    "runs of 401 digits": (lambda: coco({"segmentation": _RUNS | {"counts": [0, _FAR]}}), DAMAGED),
    "runs in a text that is none": (lambda: coco({"segmentation": _RUNS | {"counts": "\u00e9\u00e9 \n"}}), DAMAGED),
    "runs in an endless text": (lambda: coco({"segmentation": _RUNS | {"counts": "o" * 1_000_000}}), DAMAGED),
    "a million runs of nothing": (lambda: coco({"segmentation": _RUNS | {"counts": [0] * 1_000_000}}), DAMAGED),
    "a class of 300": (lambda: coco({"category_id": 300}), DAMAGED),
    "a class that is true": (lambda: coco({"category_id": True}), DAMAGED),
}


# ---- YOLO


VALID_YOLO = b"1 0.5 0.5 0.25 0.25\n"
_YOLO: Mapping[str, tuple[Wrong, tuple[Outcome, ...]]] = {
    "letters": (b"cat 0.5 0.5 0.2 0.2\n", DAMAGED),
    "a letter among numbers": (b"1 0.5 O.5 0.2 0.2\n", DAMAGED),
    "6 columns": (b"1 0.5 0.5 0.2 0.2 0.9\n", ANY),
    "3 columns": (b"1 0.5 0.5\n", DAMAGED),
    "a class alone": (b"1\n", DAMAGED),
    "pixels": (b"1 16 12 8 6\n", DAMAGED),
    "just above 1": (b"1 0.5 0.5 1.02 0.2\n", DAMAGED),
    "negative": (b"1 -0.5 0.5 0.2 0.2\n", DAMAGED),
    "a negative width": (b"1 0.5 0.5 -0.005 0.2\n", DAMAGED),
    "NaN": (b"1 nan nan nan nan\n", DAMAGED),
    "endless": (b"1 0.5 0.5 inf 1e999\n", DAMAGED),
    "a negative class": (b"-1 0.5 0.5 0.2 0.2\n", DAMAGED),
    "a class of a half": (b"1.5 0.5 0.5 0.2 0.2\n", DAMAGED),
    "a class that is NaN": (b"nan 0.5 0.5 0.2 0.2\n", DAMAGED),
    "a class of 10^9": (b"1000000000 0.5 0.5 0.2 0.2\n", DAMAGED),
    "a class beyond the model's": (b"77 0.5 0.5 0.2 0.2\n", ANY),
    "a class of 5,000 digits": (b"9" * 5000 + b" 0.5 0.5 0.2 0.2\n", DAMAGED),
    "a polygon of two corners": (b"1 0.1 0.1 0.5 0.5 0.3 0.3 0.4\n", DAMAGED),
    "commas": (b"1,0.5,0.5,0.2,0.2\n", DAMAGED),
    "semicolons": (b"1;0.5;0.5;0.2;0.2\n", DAMAGED),
    "decimal commas": (b"1 0,5 0,5 0,2 0,2\n", DAMAGED),
    "digits of another script": ("1 ٠.٥ ٠.٥ ٠.٢ ٠.٢\n".encode(), ANY),
    "underscores": (b"1 0_5 0.5 0.2 0.2\n", DAMAGED),
    "binary": (bytes(range(256)) * 10, DAMAGED),
    "zeros": (bytes(1000), DAMAGED),
    "UTF-16": (VALID_YOLO.decode().encode("utf-16"), DAMAGED),
    "a PNG": (picture(0), DAMAGED),
    "JSON": (coco(), DAMAGED),
    "half of XML": (b"<annotation><object>", DAMAGED),
    "6,000 lines": (VALID_YOLO * 6000, DAMAGED),
    "5 MB of spaces": (b" " * 5_000_000, DAMAGED),
    "an endless line": (b"1 " + b"0.5 " * 900_000, ANY),
    "nothing": (b"", ANY),
    "empty lines": (b"\n \n\t\n", ANY),
}


# ---- VOC


def voc(objects: str = "", *, size: str = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>") -> bytes:
    """Return a VOC file; without ``objects`` with a valid one."""
    return f"<annotation>{size}{objects or voc_object()}</annotation>".encode()


def voc_object(xmin: str = "3", ymin: str = "4", xmax: str = "12", ymax: str = "11", *, name: str = "cat") -> str:
    """Return one object of a VOC file."""
    corners = f"<xmin>{xmin}</xmin><ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax>"
    return f"<object><name>{name}</name><bndbox>{corners}</bndbox></object>"


def _entities(kind: str) -> bytes:
    return f"<!DOCTYPE annotation [{kind}]>".encode() + voc(voc_object(name="&a;"))


_LAUGHS = "<!ENTITY a0 'ha'>" + "".join(f"<!ENTITY a{i} '{f'&a{i - 1};' * 10}'>" for i in range(1, 10))
_VOC: Mapping[str, tuple[Wrong, tuple[Outcome, ...]]] = {
    "entities that grow": (lambda: _entities(_LAUGHS + "<!ENTITY a '&a9;'>"), DAMAGED),
    "one entity": (lambda: _entities("<!ENTITY a 'cat'>"), DAMAGED),
    "an entity in a file": (lambda: _entities("<!ENTITY a SYSTEM 'file:///etc/passwd'>"), DAMAGED),
    "an entity elsewhere": (lambda: _entities("<!ENTITY a SYSTEM 'http://127.0.0.1:9/x'>"), DAMAGED),
    "a parameter entity": (lambda: _entities("<!ENTITY % p SYSTEM 'http://127.0.0.1:9/x'> %p;"), DAMAGED),
    "a document type elsewhere": (lambda: b"<!DOCTYPE a SYSTEM 'http://127.0.0.1:9/x.dtd'>" + voc(), DAMAGED),
    "an unknown entity": (lambda: voc(voc_object(name="&nothing;")), DAMAGED),
    "no size": (lambda: voc(size=""), ANY),
    "another size": (lambda: voc(size="<size><width>900</width><height>24</height></size>"), DAMAGED),
    "a size of NaN": (lambda: voc(size="<size><width>nan</width><height>24</height></size>"), DAMAGED),
    "an endless size": (lambda: voc(size="<size><width>1e999</width><height>24</height></size>"), DAMAGED),
    "a size without a height": (lambda: voc(size="<size><width>32</width></size>"), DAMAGED),
    "a size of letters": (lambda: voc(size="<size><width>wide</width><height>24</height></size>"), DAMAGED),
    "a negative size": (lambda: voc(size="<size><width>-32</width><height>24</height></size>"), DAMAGED),
    "5 MB": (lambda: voc(voc_object() + " " * 5_000_000), DAMAGED),
    "6,000 objects": (lambda: voc(voc_object() * 6000), DAMAGED),
    "deep": (lambda: b"<annotation>" + b"<object>" * 100_000, DAMAGED),
    "broken off": (lambda: voc()[:120], DAMAGED),
    "no box": (lambda: voc("<object><name>cat</name></object>"), DAMAGED),
    "no name": (lambda: voc(voc_object().replace("<name>cat</name>", "")), DAMAGED),
    "an empty name": (lambda: voc(voc_object(name=" ")), DAMAGED),
    "an endless name": (lambda: voc(voc_object(name="c" * 100_000)), DAMAGED),
    "a corner of letters": (lambda: voc(voc_object(xmin="left")), DAMAGED),
    "a corner of NaN": (lambda: voc(voc_object(xmin="nan")), DAMAGED),
    "an endless corner": (lambda: voc(voc_object(xmax="1e999")), DAMAGED),
    "corners that are exchanged": (lambda: voc(voc_object(xmin="12", xmax="3")), DAMAGED),
    "a box outside of its picture": (lambda: voc(voc_object("900", "900", "950", "950")), DAMAGED),
    "a class that nobody knows": (lambda: voc(voc_object(name="unicorn")), ANY),
    "another encoding": (lambda: b'<?xml version="1.0" encoding="utf-7"?>' + voc(), DAMAGED),
    "UTF-16": (lambda: voc().decode().encode("utf-16"), ANY),
    "no annotation": (lambda: b"<html></html>", ANY),
    "an endless attribute": (lambda: b"<annotation a='" + b"x" * 3_900_000 + b"'/>", ANY),
    "a million attributes": (lambda: b"<annotation " + b" ".join(b"a%d=''" % i for i in range(300_000)) + b"/>", ANY),
}


def by_hand(families: Collection[str] = ()) -> Iterator[BadAnnotation]:
    """Yield each annotation with one thing wrong, or those of some ``families``."""
    for family, (task, make, allowed) in _all_by_hand().items():
        if not families or family in families:
            yield BadAnnotation(family=family, task=task, files=make(), allowed=allowed)


def _all_by_hand() -> dict[str, tuple[TaskName, Callable[[], dict[str, bytes]], tuple[Outcome, ...]]]:
    """Return the task, what makes the files, and what may become of them, by family."""
    found: dict[str, tuple[TaskName, Callable[[], dict[str, bytes]], tuple[Outcome, ...]]] = {}
    for what, (make, allowed) in _MASKS.items():
        found[f"mask: {what}"] = "segmentation", partial(_beside, "masks", ".png", _VALID_MASK, make), allowed
    for what, (make, allowed) in (_COCO | _BOXES_IN_COCO).items():
        found[f"COCO for detection: {what}"] = "detection", partial(_in_one_file, make), allowed
    for what, (make, allowed) in (_COCO | _SHAPES_IN_COCO).items():
        found[f"COCO for segmentation: {what}"] = "segmentation", partial(_in_one_file, make), allowed
    for what, (make, allowed) in _YOLO.items():
        found[f"YOLO: {what}"] = "detection", partial(_beside, "labels", ".txt", VALID_YOLO, make), allowed
    for what, (make, allowed) in _VOC.items():
        found[f"VOC: {what}"] = "detection", partial(_beside, "annotations", ".xml", voc(), make), allowed
    return found


def _in_one_file(bad: Wrong) -> dict[str, bytes]:
    return _pictures() | {"annotations.json": made(bad)}


def mutated(number: int, seed: int) -> Iterator[BadAnnotation]:
    """Yield ``number`` valid annotations with some bytes cut out and others put in."""
    chance = random.Random(seed)
    put = [b"", b"NaN", b"-1e999", b"null", b"[", b"\xff", b'"', b"{}", b"\n\n", b"</object>", b"0" * 40, b"\0"]
    for place in range(number):
        form = place % 5
        valid = (_VALID_MASK, coco(), coco(), VALID_YOLO * 3, voc())[form]
        start = chance.randrange(len(valid))
        bad = valid[:start] + chance.choice(put) + valid[start + chance.randrange(20) :]
        beside = {
            0: ("masks", ".png", _VALID_MASK),
            3: ("labels", ".txt", VALID_YOLO),
            4: ("annotations", ".xml", voc()),
        }
        files = _beside(*beside[form], bad) if form in beside else _pictures() | {"annotations.json": bad}
        yield BadAnnotation(
            family=f"{('mask', 'COCO', 'COCO', 'YOLO', 'VOC')[form]}: changed bytes",
            task="segmentation" if form in (0, 2) else "detection",
            files=files,
            allowed=ANY,
        )
