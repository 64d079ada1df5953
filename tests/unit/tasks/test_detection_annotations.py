"""Files of boxes: which pictures they belong to, where boxes land, which class they mean, and damaged ones."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from senseapp.core.errors import InvalidDataset
from senseapp.data.images import PreparedImages, follow
from senseapp.data.load import load_images
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import WITHOUT_LABELS, DataSpec
from senseapp.tasks import TASKS
from senseapp.tasks.coco import parsed_json
from senseapp.tasks.detection.annotations.boxes import read_voc
from senseapp.tasks.detection.annotations.yolo import names_of, read_yolo, told_in
from tests.pictures import encoded, random_picture, write_folder, write_zip
from tests.property.test_data_hostile_files import mutated

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
    model = {name: more.pop(name, usual) for name, usual in {"num_classes": 3, "class_names": NAMES}.items()}
    model["background"] = more.pop("background", "unknown")
    images = load_images(DataSpec(kind="archive", path=str(path), **more), preprocessing, task=DETECTION, **model)
    assert isinstance(images, PreparedImages)
    return images


def objects(number: int, *classes: int) -> list[dict[str, Any]]:
    """Return COCO objects of one picture, each in a place of its own."""
    return [{"image_id": number, "category_id": each, "bbox": [10 + 5 * each, 8, 12, 9]} for each in classes]


def classes_of(images: PreparedImages) -> list[list[int]]:
    return [target["labels"].tolist() for target in images.labels]


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


@pytest.mark.parametrize(("fit", "above"), [("letterbox", 10), ("corner", 0)])
def test_boxes_follow_the_picture(tmp_path: Path, fit: str, above: int) -> None:
    square = Preprocessing(input_shape=(3, 40, 40), mean=(0.0,) * 3, std=(1.0,) * 3, fit=fit)
    path = write_folder(tmp_path / "set", {"a.png": picture(), "boxes.json": coco()})
    images = load_images(
        DataSpec(kind="folder", path=str(path)), square, num_classes=3, task=DETECTION, class_names=NAMES
    )
    assert images.labels[0]["boxes"].tolist() == [[5.0, above + 4.0, 15.0, above + 10.0]]  # half as large
    assert set(images.batch(0, 1)[0, :, above + 20 :].mul(255).round().flatten().tolist()) == {114.0}  # grey


@pytest.mark.parametrize("form", ["coco", "yolo"])
def test_boxes_in_another_form_reach_beyond_their_pictures(tmp_path: Path, form: str) -> None:
    corners = [[50.0, 8.0, 78.0, 20.0], [30.0, 30.0, 60.0, 38.0], [4.0, 4.0, 6.0, 6.0]]
    annotations = [{"id": n, "image_id": 7, "category_id": 3, "bbox": box} for n, box in enumerate(corners)]
    shares = [[side / whole for side, whole in zip(box, (*WIDE, *WIDE), strict=True)] for box in corners]
    lines = "".join(f"1 {' '.join(map(str, box))}\n" for box in shares).encode()
    files = {"boxes.json": coco(annotations=annotations)} if form == "coco" else {"labels/a.txt": lines}
    with pytest.raises(InvalidDataset, match=r"2 of 3 boxes reach beyond their picture"):
        load({"images/a.png": picture(), **files}, tmp_path)


def test_yolo_files_with_names_in_yaml(tmp_path: Path) -> None:
    files = {
        "data.yaml": b"path: .\nnames:\n  0: cat\n  1: traffic light\n",
        "images/val/a.png": picture(),
        "labels/val/a.txt": YOLO,
        "images/val/b.png": picture(),
        "labels/val/b.txt": b"",
    }
    first, second = load(files, tmp_path, fit="stretch").labels
    np.testing.assert_allclose(first["boxes"], [list(BOX), [8, 4, 24, 20]], atol=1e-4)
    assert first["labels"].tolist() == [2, 1]
    assert len(second["boxes"]) == 0


def test_voc_files_beside_pictures(tmp_path: Path) -> None:
    (target,) = load({"a.png": picture(), "a.xml": VOC}, tmp_path, fit="stretch").labels
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


SET = {"id": 0, "name": "my-set", "supercategory": "none"}
ANIMALS = [{"id": 1, "name": "cat", "supercategory": "my-set"}, {"id": 2, "name": "dog", "supercategory": "my-set"}]
CATEGORIES: list[tuple[list[dict[str, Any]], tuple[int, ...], int, list[int]]] = [
    ([SET, *ANIMALS], (1, 2), 2, [0, 1]),  # as Roboflow writes it
    ([SET, *ANIMALS], (2,), 2, [1]),
    ([SET | {"name": "cat"}, *(each | {"supercategory": "cat"} for each in ANIMALS)], (1, 2), 2, [0, 1]),
    ([SET | {"supercategory": ""}, *ANIMALS], (1, 2), 2, [0, 1]),
    ([{"id": 0, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2, "name": "c"}], (1, 2), 3, [1, 2]),
    ([{"id": 5, "name": "a"}, {"id": 90, "name": "b"}], (90, 5), 2, [1, 0]),
]


@pytest.mark.parametrize(("categories", "used", "num_classes", "expected"), CATEGORIES)
def test_categories_of_coco(
    categories: list[dict[str, Any]], used: tuple[int, ...], num_classes: int, expected: list[int], tmp_path: Path
) -> None:
    boxes = [each | {"bbox": [10 + 20 * place, 8, 12, 9]} for place, each in enumerate(objects(7, *used))]
    files = {"a.png": picture(), "boxes.json": coco(annotations=boxes, categories=categories)}
    images = load(files, tmp_path, num_classes=num_classes, class_names=(), background="none")
    assert classes_of(images) == [expected]
    assert all(each.certain for each in images.label_orders)
    assert not any("assumed" in note for note in images.notes)
    names = {each["id"]: each["name"] for each in categories}
    assert [images.class_names[place] for place in expected] == [names[number] for number in used]


BAD = [
    {"image_id": 7, "category_id": 3},
    {"image_id": 7, "category_id": 3, "bbox": []},
    {"image_id": 7, "category_id": 3, "segmentation": {"size": [40, 80], "counts": "0"}},
    {"image_id": 7, "category_id": 3, "bbox": [1, 2, None, 4]},
    {"image_id": 7, "category_id": 3, "bbox": [1, 2, -3, 4]},
    {"image_id": 7, "category_id": None, "bbox": [1, 2, 3, 4]},
    {"category_id": 3, "bbox": [1, 2, 3, 4]},
    [],
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_one_damaged_annotation_is_left_out_with_words(bad: Any, tmp_path: Path) -> None:
    files = {"a.png": picture(), "boxes.json": coco(annotations=[bad, _WRITTEN, bad])}
    images = load(files, tmp_path, fit="stretch")
    (target,) = images.labels
    assert target["boxes"].tolist() == [list(BOX)]
    assert any(note.startswith("2 annotations in boxes.json left out: ") for note in images.notes)


def voc_of(*names: str) -> bytes:
    corners = "<bndbox><xmin>11</xmin><ymin>9</ymin><xmax>30</xmax><ymax>20</ymax></bndbox>"
    found = "".join(f"<object><name>{name}</name>{corners}</object>" for name in names)
    return f"<annotation>{found}</annotation>".encode()


def test_names_of_voc_are_those_of_the_whole_set(tmp_path: Path) -> None:
    """Whatever is drawn of a set, its names stand for the same outputs."""
    files = {name: content for n in "abc" for name, content in ((f"{n}.png", picture()), (f"{n}.xml", b""))}
    files |= {"a.xml": voc_of("zebra", "cat"), "b.xml": voc_of("cat"), "c.xml": voc_of("dog")}
    images = load(files, tmp_path, num_classes=3, class_names=())
    assert classes_of(images) == [[2, 0], [0], [1]]
    assert images.class_names == ("cat", "dog", "zebra")
    said = "Class numbers are only assumed: in their order; any other order would fit as well."
    assert said in images.notes
    one = load_images(
        DataSpec(kind="archive", path=str(tmp_path / "set.zip")),
        images.preprocessing,
        num_classes=3,
        task=DETECTION,
        num_samples=1,
        seed=1,
    )
    assert isinstance(one, PreparedImages)
    assert {tuple(each["labels"].tolist()) for each in one.labels} <= {(2, 0), (0,), (1,)}
    with pytest.raises(InvalidDataset, match="classes cat, dog, zebra, and the model has 2 outputs"):
        load(files, tmp_path, num_classes=2, class_names=())


def yolo_set(lines: Sequence[str], yaml: str = "") -> dict[str, bytes]:
    files = {f"images/{n}.png": picture() for n in range(len(lines))}
    files |= {f"labels/{n}.txt": line.encode() for n, line in enumerate(lines)}
    return files | ({"data.yaml": yaml.encode()} if yaml else {})


POSE = ["1 .25 .35 .25 .3 .2 .3 2 .3 .45 1 0 0 0"] * 3
QUADS = [f"1 {x} .5 {x + 0.25} .5 {x + 0.25} .8 {x} .8" for x in (0.125, 0.7, 0.375)]
TRACKED = ["1 .25 .35 .25 .3 7\n2 .25 .35 .25 .3 8"] * 3


@pytest.mark.parametrize(
    ("lines", "yaml", "expected"),
    [
        (POSE, "", [10, 8, 30, 20]),
        (POSE, "kpt_shape: [3, 3]", [10, 8, 30, 20]),
        ([line.replace(" 2 ", " ").replace(" 1 ", " ", 1) for line in POSE], "kpt_shape: [3, 3]", None),
        (["1 .25 .35 .25 .3 .2 .3 .3 .45"] * 3, "kpt_shape: [2, 2]", [10, 8, 30, 20]),
        (["1 .25 .35 .25 .3 .2 .3 .3 .45"] * 3, "", None),
        (QUADS, "", [10, 20, 30, 32]),
        (TRACKED, "", [10, 8, 30, 20]),
        (["1 .25 .35 .25 .3 .91"] * 3, "", [10, 8, 30, 20]),
    ],
)
def test_lines_of_a_yolo_set(lines: list[str], yaml: str, expected: list[int] | None, tmp_path: Path) -> None:
    if expected is None:
        with pytest.raises(InvalidDataset, match="of unknown meaning"):
            load(yolo_set(lines, yaml), tmp_path, fit="stretch", num_classes=3, class_names=())
        return
    images = load(yolo_set(lines, yaml), tmp_path, fit="stretch", num_classes=3, class_names=())
    np.testing.assert_allclose(images.labels[0]["boxes"][0], expected, atol=1e-4)
    assert any(note.startswith("Lines of ") for note in images.notes)


def test_images_have_every_reading_of_their_class_numbers(tmp_path: Path) -> None:
    lines = ["0 .25 .35 .25 .3\n1 .5 .5 .2 .2", "3 .25 .35 .25 .3", "2 .25 .35 .25 .3"]
    images = load(yolo_set(lines), tmp_path, num_classes=5, class_names=(), background="none")
    assert classes_of(images) == [[0, 1], [3], [2]]
    assert [order.words for order in images.label_orders] == ["as written", "one above those in the files"]
    assert not any(order.certain for order in images.label_orders)
    assert follow(images, images.label_orders[0].pairs)
    assert not follow(images, images.label_orders[1].pairs)
    chosen = load(yolo_set(lines), tmp_path, num_classes=5, class_names=(), class_map=images.label_orders[1].pairs)
    assert classes_of(chosen) == [[1, 2], [4], [3]]
    assert chosen.label_orders == ()
    behind = load(yolo_set(lines), tmp_path, num_classes=5, class_names=(), background="first")
    assert classes_of(behind) == [[1, 2], [4], [3]]
    assert "Class numbers are read one above those in the files." in behind.notes


def test_a_class_map_decides_for_boxes(tmp_path: Path) -> None:
    files = {"a.png": picture(), "a.xml": voc_of("zebra", "cat")}
    images = load(files, tmp_path, num_classes=5, class_names=(), class_map=(("zebra", 4), ("cow", 1)))
    assert classes_of(images) == [[4]]
    assert "Left out, as they mean no class of the model: cat." in images.notes
    with pytest.raises(InvalidDataset, match="The class map names cow, and the images have cat, zebra: no name is in"):
        load(files, tmp_path, num_classes=5, class_names=(), class_map=(("cow", 1),))


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
    assert names_of(told_in(text.encode())["names"]) == ("cat", "dog")


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;">]><annotation>&c;</annotation>'
)


@pytest.mark.parametrize(
    ("read", "content", "said"),
    [
        (read_voc, BOMB, "a document type or an entity"),
        (read_voc, b"<annotation>" * 300_000, "no XML"),
        (read_voc, VOC.replace(b"11", b"eleven"), "xmin must be a number, got 'eleven'"),
        (read_voc, VOC.replace(b"<xmin>11</xmin>", b""), "an object without xmin"),
        (read_voc, VOC.replace(b"<xmax>30<", b"<xmax>3<"), "a box of negative size"),
        (read_voc, VOC.replace(b"<xmax>30<", b"<xmax>1e400<"), "not finite"),
        (read_yolo, b"1 0.5 0.5 0.1", "line 1 has 4 numbers"),
        (read_yolo, b"1 0.5 0.5 0.1 7", "line 1 has a coordinate outside"),
        (read_yolo, b"1 0.5 0.5 nan 0.1", "coordinate outside"),
        (read_yolo, b"\xff\xfe\x00", "no text file"),
        (read_yolo, b"0 0.5 0.5 0.1 0.1\n" * 5_001, "up to 5,000 boxes"),
        (parsed_json, b"[" * 100_000, "nested too deeply|no JSON"),
    ],
)
def test_damaged_files_are_refused_with_words(read: Any, content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(content)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": [{"id": 7}]}, "a picture without file_name"),
        ({"annotations": [{"image_id": 7, "category_id": 1}]}, "an annotation without bbox"),
        ({"annotations": [{"image_id": 7, "category_id": -1, "bbox": [1, 2, 3, 4]}]}, "a whole number from 0 to 9999"),
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
