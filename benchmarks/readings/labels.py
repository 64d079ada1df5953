"""Labels of the pairs as COCO, Ultralytics' YOLO, Pascal VOC, masks and folders of classes have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.readings.cases import COCO_IDS, Case
from benchmarks.readings.networks import NAMES, Scene

Rows = Sequence[tuple[int, NDArray[np.float64]]]
"""Annotated objects of a picture: place of the class in the head, and left, top, right and bottom."""


def annotated(case: Case, found: Scene) -> Rows:
    """Return the annotated objects of a picture, by the place of their class in the head."""
    places = {each: place for place, each in enumerate(case.live) if each is not None}
    shift = 1 if case.head == "any" else 0
    rows = [(places[int(row[0])] + shift, row[1:]) for row in found[1]]
    rows += [(0, row[1:]) for row in found[1] if shift]
    return [row for row in rows if not case.labels.only or row[0] in case.labels.only]


def write_labels(case: Case, scenes: Sequence[Scene], folder: Path) -> None:
    """Write pictures and labels."""
    labels, pictures = case.labels, [f"picture-{number:02d}" for number in range(len(scenes))]
    if labels.form == "folders":
        for name, (picture, boxes, _) in zip(pictures, scenes, strict=True):
            (folder / NAMES[int(boxes[0, 0])]).mkdir(exist_ok=True)
            Image.fromarray(picture).save(folder / NAMES[int(boxes[0, 0])] / f"{name}.png")
        return
    (folder / "images").mkdir(exist_ok=True)
    for name, (picture, _, classes) in zip(pictures, scenes, strict=True):
        Image.fromarray(picture).save(folder / "images" / f"{name}.png")
        if labels.form == "masks":
            (folder / "masks").mkdir(exist_ok=True)
            values = classes * 85 if labels.ids == "greys" else classes + (labels.ids == "one")
            Image.fromarray(values.astype(np.uint8)).save(folder / "masks" / f"{name}.png")
    rows = [annotated(case, found) for found in scenes] if case.task == "detection" else []
    if labels.form == "coco":
        (folder / "annotations.json").write_text(json.dumps(_coco(case, pictures, rows)))
    elif labels.form == "yolo":
        _write_yolo(case, pictures, rows, folder)
    elif labels.form == "voc":
        for name, found in zip(pictures, rows, strict=True):
            (folder / "images" / f"{name}.xml").write_text(_voc(case, name, found))


def _id_of(case: Case, place: int) -> int:
    gaps = (3, 7, 8, 15, 21)
    ids = {"zero": place, "one": place + 1, "set": place + 1, "gaps": gaps[place % 5]}
    return COCO_IDS[case.names[place]] if case.labels.ids == "coco" else ids[case.labels.ids]


def _coco(case: Case, pictures: Sequence[str], rows: Sequence[Rows]) -> object:
    labels, (width, height) = case.labels, case.size
    places = labels.only or range(len(case.names))
    number = {place: _id_of(case, place) for place in places}
    categories = [{"id": number[place], "name": case.names[place]} for place in places]
    if labels.ids == "set":
        categories.insert(0, {"id": 0, "name": "coloured-things"})
    categories += [{"id": 40 + index, "name": name} for index, name in enumerate(labels.unused)]
    annotations = [
        {"id": 1000 * index + at, "image_id": index, "category_id": number[place], "iscrowd": 0,
         "bbox": [*box[:2], *(box[2:] - box[:2])], "area": float(np.prod(box[2:] - box[:2]))}
        for index, found in enumerate(rows)
        for at, (place, box) in enumerate(found)
    ]  # fmt: skip
    if labels.broken:
        annotations.append({"id": 10**6, "image_id": 0, "category_id": number[0], "iscrowd": 0, "bbox": []})
    listed = [
        {"id": index, "file_name": f"{name}.png", "width": width, "height": height}
        for index, name in enumerate(pictures)
    ]
    told = {"categories": categories} if labels.names else {}
    return {"images": listed, "annotations": annotations, **told}


def _write_yolo(case: Case, pictures: Sequence[str], rows: Sequence[Rows],
                folder: Path) -> None:  # fmt: skip
    labels, sides = case.labels, np.tile(case.size, 2)
    order = labels.only or tuple(range(len(case.names)))
    (folder / "labels").mkdir(exist_ok=True)
    for name, found in zip(pictures, rows, strict=True):
        lines = [_line(order.index(place), box / sides, labels.columns, at) for at, (place, box) in enumerate(found)]
        (folder / "labels" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    if labels.names:
        named = "\n".join(f"  {number}: {case.names[place]}" for number, place in enumerate(order))
        points = {"points": "kpt_shape: [3, 2]\n", "seen": "kpt_shape: [3, 3]\n"}.get(labels.columns, "")
        (folder / "data.yaml").write_text(f"path: .\ntrain: images\nval: images\n{points}names:\n{named}\n")


def _line(number: int, box: NDArray[np.float64], columns: str, at: int) -> str:
    middle, sides = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
    corners = [box[0], box[1], box[2], box[1], box[2], box[3], box[0], box[3]]
    points = [middle, box[:2] + sides / 4, box[2:] - sides / 4]
    further = {
        "": [], "tracks": [at + 1], "polygons": [],
        "points": [each for point in points for each in point],
        "seen": [each for point in points for each in (*point, 2)],
    }[columns]  # fmt: skip
    values = corners if columns == "polygons" else [*middle, *sides, *further]
    return " ".join([str(number), *(f"{each:.6g}" for each in values)])


def _voc(case: Case, name: str, found: Rows) -> str:
    objects = "".join(
        f"<object><name>{case.names[place]}</name><difficult>0</difficult><bndbox>"
        + "".join(f"<{key}>{value:.3f}</{key}>" for key, value in zip(
            ("xmin", "ymin", "xmax", "ymax"), (box[0] + 1, box[1] + 1, box[2], box[3]), strict=True))
        + "</bndbox></object>"
        for place, box in found
    )  # fmt: skip
    size = f"<size><width>{case.size[0]}</width><height>{case.size[1]}</height><depth>3</depth></size>"
    return f"<annotation><filename>{name}.png</filename>{size}{objects}</annotation>"
