"""Files of boxes: which pictures they belong to, where boxes land, which class they mean, and damaged ones."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from senseapp.core.errors import InvalidDataset
from senseapp.data.images import PreparedImages
from senseapp.data.load import load_images
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import WITHOUT_LABELS, DataSpec
from senseapp.tasks import TASKS
from senseapp.tasks.coco import parsed_json
from senseapp.tasks.detection.annotations.voc import read_voc
from senseapp.tasks.detection.annotations.yolo import names_of, read_yaml, read_yolo
from tests.pictures import encoded, random_picture, write_folder, write_zip

DETECTION = TASKS["detection"]
NAMES = ("background", "cat", "traffic light")
WIDE = (80, 40)
BOX = (10.0, 8.0, 30.0, 20.0)
_EACH = 70  # mutations of each of three kinds: 210 files


def picture(size: tuple[int, int] = WIDE) -> bytes:
    return encoded(random_picture(size=size))


def coco(**changes: Any) -> bytes:
    content: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "a.png", "width": WIDE[0], "height": WIDE[1]}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [10, 8, 20, 12], "iscrowd": 0}],
        "categories": [{"id": 3, "name": "Traffic_Light"}, {"id": 9, "name": "cow"}],
    }
    return json.dumps(content | changes).encode()


VOC = b"""<annotation><size><width>80</width><height>40</height><depth>3</depth></size>
<object><name>cat</name><difficult>0</difficult><bndbox><xmin>11</xmin><ymin>9</ymin><xmax>30</xmax><ymax>20</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>
<object><name>traffic light</name><difficult>1</difficult>
<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>6</ymax></bndbox></object></annotation>"""
YOLO = b"1 0.25 0.35 0.25 0.3\n0 0.1 0.1 0.3 0.1 0.3 0.5\n"


def load(files: Mapping[str, bytes], tmp_path: Path, fit: str = "crop", **more: Any) -> PreparedImages:
    path = write_zip(tmp_path / "set.zip", files)
    preprocessing = Preprocessing(input_shape=(3, 40, 80), mean=(0.0,) * 3, std=(1.0,) * 3, fit=fit)
    images = load_images(
        DataSpec(kind="archive", path=str(path), **more),
        preprocessing,
        num_classes=3,
        task=DETECTION,
        class_names=NAMES,
    )
    assert isinstance(images, PreparedImages)
    return images


def test_coco_boxes_get_the_models_classes_by_name(tmp_path: Path) -> None:
    files = {"images/a.png": picture(), "images/b.png": picture(), "annotations/instances_val.json": coco()}
    images = load(files, tmp_path, fit="stretch")
    assert len(images) == 1
    (target,) = images.labels
    assert target["boxes"].tolist() == [list(BOX)]
    assert target["labels"].tolist() == [2]
    assert "The model has no class cow." in images.notes
    assert "1 picture without boxes left out." in images.notes
    assert images.class_names == NAMES


@pytest.mark.parametrize("labels", ["", WITHOUT_LABELS])
def test_masks_beside_the_pictures_are_no_pictures_to_a_detector(labels: str, tmp_path: Path) -> None:
    files = {f"{folder}/{name}.png": picture() for folder in ("images", "masks") for name in "ab"}
    images = load(files, tmp_path, labels=labels)
    assert len(images) == 2
    said = "2 files in masks left out: they are masks of the pictures beside them"
    assert any(note.startswith(said) for note in images.notes)
    assert len(load({**files, "boxes.json": coco(images=[{"id": 7, "file_name": "a.png"}])}, tmp_path)) == 1


def test_boxes_follow_the_picture(tmp_path: Path) -> None:
    square = Preprocessing(input_shape=(3, 40, 40), mean=(0.0,) * 3, std=(1.0,) * 3, fit="letterbox")
    path = write_folder(tmp_path / "set", {"a.png": picture(), "boxes.json": coco()})
    images = load_images(
        DataSpec(kind="folder", path=str(path)), square, num_classes=3, task=DETECTION, class_names=NAMES
    )
    assert images.labels[0]["boxes"].tolist() == [[5.0, 14.0, 15.0, 20.0]]  # half as large, below 10 rows of border
    assert not images.batch(0, 1)[0, :, :10].any()


def test_yolo_files_with_names_in_yaml(tmp_path: Path) -> None:
    files = {
        "data.yaml": b"path: .\nnames:\n  0: cat\n  1: traffic light\n",
        "images/val/a.png": picture(),
        "labels/val/a.txt": YOLO,
        "images/val/b.png": picture(),
        "labels/val/b.txt": b"",
    }
    images = load(files, tmp_path, fit="stretch")
    first, second = images.labels
    np.testing.assert_allclose(first["boxes"], [list(BOX), [8, 4, 24, 20]], atol=1e-4)
    assert first["labels"].tolist() == [2, 1]
    assert len(second["boxes"]) == 0


def test_voc_files_beside_pictures(tmp_path: Path) -> None:
    images = load({"a.png": picture(), "a.xml": VOC}, tmp_path, fit="stretch")
    (target,) = images.labels
    assert target["boxes"].tolist() == [list(BOX), [0, 0, 5, 6]]
    assert target["labels"].tolist() == [1, 2]
    assert target["crowd"].tolist() == [False, True]


_FLAT = VOC.replace(b"<ymin>1</ymin><xmax>5</xmax><ymax>6</ymax>", b"<ymin>7</ymin><xmax>5</xmax><ymax>6</ymax>")
_WRITTEN = json.loads(coco())["annotations"][0]


@pytest.mark.parametrize(
    "files",
    [
        {"a.json": coco(annotations=[_WRITTEN, _WRITTEN | {"bbox": [10, 8, 20, 0]}])},
        {"data.yaml": b"names: [cat, traffic light]", "a.txt": b"1 0.25 0.35 0.25 0.3\n0 0.5 0.5 0 0.2\n"},
        {"a.xml": _FLAT},
    ],
    ids=["COCO", "YOLO", "VOC"],
)
def test_a_box_of_no_area_is_left_out_with_words(files: Mapping[str, bytes], tmp_path: Path) -> None:
    images = load({"a.png": picture(), **files}, tmp_path, fit="stretch")
    (target,) = images.labels
    np.testing.assert_allclose(target["boxes"], [BOX], atol=1e-4)
    assert "1 box left out: no area, or less than a pixel of the network's input." in images.notes


@pytest.mark.parametrize(
    "text",
    [
        "names: [cat, 'dog']",
        "nc: 2\nnames:\n  - cat\n  - dog\n",
        'names:\n  0: cat\n  1: "dog"\ntrain: x',
        "names: [cat,\n  dog]  # two",
        "{names: {1: dog, 0: cat}}",
    ],
)
def test_names_in_yaml(text: str) -> None:
    assert names_of(read_yaml(text.encode())["names"]) == ("cat", "dog")


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;">]><annotation>&c;</annotation>'
)


@pytest.mark.parametrize(
    ("read", "content", "said"),
    [
        (read_voc, BOMB, "a document type or an entity"),
        (read_voc, b"<annotation>" * 50, "nested more than 12 deep"),
        (read_voc, VOC.replace(b"11", b"eleven"), "xmin must be a number, got 'eleven'"),
        (read_voc, VOC.replace(b"<name>cat</name>", b""), "an object without a name"),
        (read_voc, VOC.replace(b"<xmin>11</xmin>", b""), "an object without xmin"),
        (read_voc, VOC.replace(b"<xmax>30<", b"<xmax>3<"), "a box of negative size"),
        (read_voc, VOC.replace(b"<xmax>30<", b"<xmax>1e400<"), "not finite"),
        (read_voc, VOC[:100], "no XML"),
        (read_yolo, b"1 0.5 0.5 0.1", "line 1 has 4 numbers"),
        (read_yolo, b"1 0.5 0.5 0.1 7", "line 1 has a coordinate outside"),
        (read_yolo, b"cat 0.5 0.5 0.1 0.1", "line 1 is not a class number"),
        (read_yolo, b"1 0.5 0.5 nan 0.1", "coordinate outside"),
        (read_yolo, b"\xff\xfe\x00", "no text file"),
        (read_yolo, b"0 0.5 0.5 0.1 0.1\n" * 5_001, "up to 5,000 boxes"),
        (parsed_json, b"[" * 100_000, "nested too deeply|no JSON"),
        (parsed_json, b"{", "no JSON"),
    ],
)
def test_damaged_files_are_refused_with_words(read: Any, content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(content)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": 3}, '"images" must be a list'),
        ({"annotations": {}}, '"annotations" must be a list'),
        ({"images": [{"id": 7}]}, "a picture without file_name"),
        ({"annotations": [{"image_id": 7, "category_id": 1}]}, "an annotation without bbox"),
        ({"annotations": [{"image_id": 7, "category_id": 1, "bbox": [1, 2, 3]}]}, "four numbers"),
        ({"annotations": [{"image_id": 7, "category_id": -1, "bbox": [1, 2, 3, 4]}]}, "whole and below 10,000"),
        ({"annotations": [{"image_id": 7, "category_id": 1, "bbox": [1, 2, -3, 4]}]}, "negative size"),
        ({"annotations": [{"image_id": [7], "category_id": 1, "bbox": [1, 2, 3, 4]}]}, "image_id"),
        ({"categories": [{"name": "cat"}]}, "a category without id"),
    ],
)
def test_damaged_coco_files_are_refused_with_words(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDataset, match=said):
        load({"a.png": picture(), "boxes.json": coco(**changes)}, tmp_path, labels="boxes.json")


def test_a_picture_of_another_size_is_left_out_with_words(tmp_path: Path) -> None:
    files = {"a.png": picture((60, 60)), "b.png": picture(), "a.xml": VOC, "b.xml": VOC}
    images = load(files, tmp_path, fit="stretch")
    assert images.names == ("b.png",)
    assert any("in 80 × 40 pixels, and the picture has 60 × 60" in note for note in images.notes)


@pytest.mark.parametrize("kind", ["json", "xml", "txt"])
def test_mutated_files_are_read_or_refused_with_one_sentence(kind: str, tmp_path: Path) -> None:
    generator = random.Random(kind)
    original = {"json": coco(), "xml": VOC, "txt": YOLO}[kind]
    name = {"json": "boxes.json", "xml": "a.xml", "txt": "labels/a.txt"}[kind]
    place = "images/a.png" if kind == "txt" else "a.png"
    refusals = []
    for _ in range(_EACH):
        try:
            images = load({place: picture(), name: mutated(original, generator)}, tmp_path, fit="stretch")
        except InvalidDataset as error:
            refusals.append(str(error))
        else:
            assert len(images) == 1
    assert len(refusals) > _EACH // 10
    for said in refusals:
        assert said[-1] in ".)"
        assert 10 < len(said) < 1_000


def mutated(content: bytes, generator: random.Random) -> bytes:
    """Return ``content`` with a few bytes replaced or put in."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(len(changed))
        if generator.random() < 0.5:
            changed[place] = generator.randrange(256)
        else:
            changed[place:place] = generator.choice([b'"', b"<", b"9" * 40, b"-", b"[[", b"\0", b"&lt;", b"e9"])
    return bytes(changed)
