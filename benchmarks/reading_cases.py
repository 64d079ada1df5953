"""Pairs of an ONNX file and labelled pictures, and the figure that is right for each, without senseapp's own reading.

Each case is a layout of outputs, a preparation, names and numbers of classes, and a form of labels. The right figure is
pycocotools' mAP@.5:.95 of what the network in torch finds (scores from .02, non-maximum suppression by class at IoU
.5, 100 boxes), the mean IoU, or the share of right answers.
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor, nn
from torchvision.models._meta import _COCO_CATEGORIES
from torchvision.ops import batched_nms

from benchmarks.reading_networks import IMAGENET, NAMES, Preparation, Scene, placed, scene, trained

PICTURES = 32
Values = Mapping[str, Tensor]
Head = Callable[[Tensor, Tensor, Tensor, Tensor, int], Values]
"""From corners in pixels, class logits, further channels, features and the side to named outputs."""
COCO_IDS = {name: number for number, name in enumerate(_COCO_CATEGORIES) if number and name != "N/A"}
_LIVE_80 = {0: 0, 2: 1, 16: 2, 56: 3, 74: 4}  # places of the trained classes among COCO's 80


def _middle(boxes: Tensor) -> Tensor:
    return torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], dim=-1)


def _rows(*parts: Tensor) -> Tensor:
    return torch.cat(parts, dim=-1)


def _points(boxes: Tensor, sure: Tensor) -> Tensor:
    """Return three points of each box with a visibility: its middle and two corners."""
    return _rows(_middle(boxes)[..., :2], sure, boxes[..., :2], sure, boxes[..., 2:], sure)


_S = torch.sigmoid
HEADS: dict[str, Head] = {
    "columns": lambda b, c, f, m, s: {"output0": _rows(_middle(b), _S(c)).transpose(1, 2)},
    "rows": lambda b, c, f, m, s: {"output0": _rows(_middle(b), _S(c))},
    "object": lambda b, c, f, m, s: {"output0": _rows(_middle(b), _S(f[..., :1]), _S(c))},
    "corners": lambda b, c, f, m, s: {"output0": _rows(b, _S(c))},
    "corner columns": lambda b, c, f, m, s: {"output0": _rows(b, _S(c)).transpose(1, 2)},
    "shares": lambda b, c, f, m, s: {"output0": _rows(_middle(b) / s, _S(c)).transpose(1, 2)},
    "shares of corners": lambda b, c, f, m, s: {"output0": _rows(b / s, _S(c))},
    "first is background": lambda b, c, f, m, s: {"logits": _rows(c[..., :1] * 0, c), "boxes": b / s},
    "last is background": lambda b, c, f, m, s: {"logits": _rows(c, c[..., :1] * 0), "pred_boxes": _middle(b) / s},
    "softmax, first": lambda b, c, f, m, s: {"boxes": b, "scores": _rows(c[..., :1] * 0, c).softmax(-1)},
    "sigmoid pair": lambda b, c, f, m, s: {"logits": c, "pred_boxes": _middle(b) / s},
    "sure pair": lambda b, c, f, m, s: {"boxes": b, "scores": _S(c)},
    "any": lambda b, c, f, m, s: {"output0": _rows(_middle(b), _S(f[..., :1]), _S(c))},
    "masks": lambda b, c, f, m, s: {
        "output0": _rows(_middle(b), _S(c), f[..., 1:]).transpose(1, 2),
        "output1": m[:, :32],
    },
    "masks alone": lambda b, c, f, m, s: {"output0": _rows(_middle(b), _S(c), f[..., 1:]).transpose(1, 2)},
    "points": lambda b, c, f, m, s: {
        "output0": _rows(_middle(b), _S(c), _points(b, _S(f[..., :1]))).transpose(1, 2)
    },
    "angle": lambda b, c, f, m, s: {
        "output0": _rows(_middle(b), _S(c), f[..., 1:2].tanh() * 0.2).transpose(1, 2)
    },
}  # fmt: skip
_SOFTMAX = {"first is background", "last is background", "softmax, first"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """How labels are written.

    Attributes:
        form: coco, yolo or voc; masks or greys of a segmentation; folders of a classification.
        ids: number of each class: from 0, 1 or with gaps; ``set`` has the name of the set as 0.
        names: of the model's classes, other names, or none.
        only: places of the classes that are annotated; in YOLO's files their order is that of the names.
        unused: further categories without objects.
        columns: what lines of YOLO have besides: points, seen points, tracks or polygons.
        broken: whether one annotation of COCO has no box.
    """

    form: str = "coco"
    ids: str = "one"
    names: str = "model"
    only: tuple[int, ...] = ()
    unused: tuple[str, ...] = ()
    columns: str = ""
    broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pair. ``live`` is the trained class at each place of the head; ``told`` whether the file has metadata."""

    name: str
    task: str = "detection"
    head: str = "columns"
    live: tuple[int | None, ...] = (0, 1, 2, 3, 4)
    told: str = ""
    side: int = 96
    size: tuple[int, int] = (96, 96)
    preparation: Preparation = field(default_factory=Preparation)
    labels: Labels = field(default_factory=Labels)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the head's classes."""
        if len(self.live) == 80:
            return tuple(COCO_IDS)
        any_first = ("thing",) if self.head == "any" else ()
        return any_first + tuple(NAMES[each] if each is not None else f"unseen {i}" for i, each in enumerate(self.live))


def _of(*names: str) -> tuple[int, ...]:
    return tuple(NAMES.index(name) for name in names)


_EIGHTY = tuple(_LIVE_80.get(place) for place in range(80))
_BYTES, _AROUND = Preparation(scale=255.0), Preparation(mean=(0.5,) * 3, std=(0.5,) * 3)
_BGR, _BGR_BYTES, _BOXED = Preparation(bgr=True), Preparation(scale=255.0, bgr=True), Preparation(letterbox=True)
_YOLO, _BARE_YOLO, _VOC = Labels(form="yolo"), Labels(form="yolo", names=""), Labels(form="voc")
_BARE = Labels(names="", ids="zero")
_TWO, _THREE, _ONE = (0, 2), (0, 1, 2), (1,)
_LAYOUTS = (
    Case(name="yolo8 told, coco", told="detect"),
    Case(name="yolo8, coco"),
    Case(name="yolo8, yolo files", labels=_YOLO),
    Case(name="yolo8, yolo files without names", labels=_BARE_YOLO),
    Case(name="yolo8 told, voc", told="detect", labels=_VOC),
    Case(name="yolo8, voc", labels=_VOC),
    Case(name="yolo8 of 80 told, coco", told="detect", live=_EIGHTY, labels=Labels(ids="coco")),
    Case(name="yolo8 of 80, coco", live=_EIGHTY, labels=Labels(ids="coco")),
    Case(name="yolo8 of one class", live=_ONE),
    Case(name="yolo8 rows", head="rows"),
    Case(name="yolo5 told", head="object", told="detect"),
    Case(name="yolo5", head="object"),
    Case(name="yolo5 of one class", head="object", live=_ONE),
    Case(name="corners", head="corners"),
    Case(name="shares", head="shares"),
    Case(name="pair, first is background", head="first is background", preparation=IMAGENET),
    Case(name="pair, last is background", head="last is background", preparation=IMAGENET),
    Case(name="pair, sigmoid", head="sigmoid pair", labels=Labels(ids="zero")),
    Case(name="pair, sigmoid, 0 to 255", head="sure pair", preparation=_BYTES),
    Case(name="a class for any object", head="any", labels=Labels(ids="zero")),
    Case(name="yolo8-seg told", head="masks", told="segment"),
    Case(name="yolo8-seg", head="masks alone"),
    Case(name="yolo8-pose told", head="points", told="pose", live=_ONE, labels=Labels(form="yolo", columns="seen")),
    Case(name="yolo8-pose of five classes", head="points"),
    Case(name="yolo8-obb told", head="angle", told="obb", labels=_YOLO),
    Case(name="yolo8-obb", head="angle"),
    Case(name="fewer anchors than columns", live=_EIGHTY, side=64, size=(64, 64), labels=Labels(ids="coco")),
    Case(name="fewer anchors than columns, rows", head="rows", live=_EIGHTY, side=64, size=(64, 64),
         told="detect", labels=Labels(ids="coco")),
    Case(name="2 classes at 64 pixels", live=_TWO, side=64, size=(64, 64)),
    Case(name="3 classes at 96 pixels", live=_THREE),
    Case(name="2 classes at 192 pixels, rows", head="rows", live=_TWO, side=192, size=(192, 192)),
)  # fmt: skip
_PREPARED = (
    Case(name="0 to 255", preparation=_BYTES),
    Case(name="ImageNet's", preparation=IMAGENET, labels=_YOLO),
    Case(name="-1 to 1", preparation=_AROUND),
    Case(name="BGR of 0 to 255", preparation=_BGR_BYTES, told="detect"),
    Case(name="letterbox told", preparation=_BOXED, size=(160, 96), side=160, told="detect"),
    Case(name="letterbox", preparation=_BOXED, size=(96, 160), side=160, labels=_YOLO),
    Case(name="stretched", size=(160, 96), side=128),
)
_ANNOTATED = (
    Case(name="coco from 0 without names", labels=_BARE),
    Case(name="five sigmoids, labels 0 to 3", live=(0, 1, 2, 3, None),
         labels=Labels(form="yolo", names="", only=(0, 1, 2, 3))),
    Case(name="coco, 0 is the set", labels=Labels(ids="set")),
    Case(name="coco with gaps", labels=Labels(ids="gaps")),
    Case(name="coco, unused categories, told", told="detect", labels=Labels(unused=("cat", "dog", "owl"))),
    Case(name="coco, unused categories", labels=Labels(unused=("cat", "dog"))),
    Case(name="coco, one without a box", labels=Labels(broken=True)),
    Case(name="yolo files with seen points", labels=Labels(form="yolo", columns="seen")),
    Case(name="yolo files with tracks", labels=Labels(form="yolo", columns="tracks")),
    Case(name="yolo files with polygons", labels=Labels(form="yolo", columns="polygons")),
    Case(name="yolo files of a subset, other order", told="detect",
         labels=Labels(form="yolo", only=_of("blue", "red", "yellow"))),
    Case(name="coco of a subset, other order", told="detect", labels=Labels(only=_of("yellow", "green"))),
)  # fmt: skip
_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "maps": lambda x: x,
    "maps last": lambda x: x.permute(0, 2, 3, 1),
    "classes": lambda x: x.argmax(1),
    "classes, one channel": lambda x: x.argmax(1, keepdim=True),
    "classes as float": lambda x: x.argmax(1, keepdim=True).float(),
    "answers": lambda x: x,
    "answers at 1 × 1": lambda x: x[:, :, None, None],
    "answers of a sequence": lambda x: x[:, None],
    "answers last": lambda x: x[:, None, None],
}
_FOUR, _MASKS = (
    {"task": "segmentation", "side": 64, "size": (64, 64), "live": (None, 0, 1, 2)},
    Labels(form="masks", ids="zero"),
)
_FIVE = {"task": "classification", "side": 64, "size": (64, 64), "labels": Labels(form="folders")}
_OTHERS = (
    Case(name="maps", head="maps", labels=_MASKS, **_FOUR),
    Case(name="maps last, 0 to 255", head="maps last", labels=_MASKS, preparation=_BYTES, **_FOUR),
    Case(name="argmax", head="classes", labels=_MASKS, **_FOUR),
    Case(name="argmax, one channel", head="classes, one channel", labels=_MASKS, preparation=IMAGENET, **_FOUR),
    Case(name="argmax as float", head="classes as float", labels=_MASKS, **_FOUR),
    Case(name="masks of 1 to 4", head="maps", labels=Labels(form="masks", ids="one"), **_FOUR),
    Case(name="masks of greys", head="maps", labels=Labels(form="masks", ids="greys"), **_FOUR),
    Case(name="answers at 1 × 1", head="answers at 1 × 1", **_FIVE),
    Case(name="answers of a sequence, ImageNet's", head="answers of a sequence", preparation=IMAGENET, **_FIVE),
    Case(name="answers last", head="answers last", preparation=_BYTES, **_FIVE),
)
CASES = (*_LAYOUTS, *_PREPARED, *_ANNOTATED, *_OTHERS)


class _Delivered(nn.Module):
    """A network with the outputs of a case, in their order."""

    def __init__(self, network: nn.Module, case: Case) -> None:
        super().__init__()
        self.network, self.case = network, case

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.outputs(images).values())

    def outputs(self, images: Tensor) -> Values:
        """Return the outputs by name."""
        found = self.network(images)
        if self.case.task != "detection":
            return {"output": _SHAPES[self.case.head](found)}
        return HEADS[self.case.head](*found, self.network.trunk(images), self.case.side)


def _network(case: Case, folder: Path) -> nn.Module:
    network = trained(case.task, folder)
    if case.task == "detection":
        network = network.with_classes(case.live)
    elif case.task == "segmentation":
        places = [0 if each is None else each + 1 for each in case.live]
        network.classify.weight = nn.Parameter(network.classify.weight[places])
        network.classify.bias = nn.Parameter(network.classify.bias[places])
    return case.preparation.taken_in(network)


def write_case(case: Case, folder: Path, networks: Path) -> float:
    """Write ``model.onnx``, ``data`` and ``right.json`` into ``folder``; return the figure that is right."""
    network = _network(case, networks).eval().requires_grad_(False)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    _export(_Delivered(network, case), case, folder / "model.onnx")
    generator = np.random.default_rng(sum(map(ord, case.name)))
    alive = sorted(each for each in case.live if each is not None)
    most = 1 if case.task == "classification" else 4
    scenes = [scene(generator, case.size, alive, most) for _ in range(PICTURES)]
    write_labels(case, scenes, folder / "data")
    right = _right(case, network, scenes)
    (folder / "right.json").write_text(json.dumps({"name": case.name, "task": case.task, "right": right}))
    return right


def _export(network: _Delivered, case: Case, path: Path) -> None:
    images = torch.zeros(1, 3, case.side, case.side)
    found = network.outputs(images)
    names = list(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, (images,), str(path), dynamo=False, input_names=["images"], output_names=names,
            dynamic_axes={name: {0: "batch"} for name in ("images", *names)}, opset_version=17,
        )  # fmt: skip
    model = onnx.load(path)
    for output, values in zip(model.graph.output, found.values(), strict=True):
        for axis, length in zip(output.type.tensor_type.shape.dim[1:], values.shape[1:], strict=True):
            axis.dim_value = length
    for key, value in _metadata(case).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


def _metadata(case: Case) -> Mapping[str, str]:
    """Return what Ultralytics' exporter writes."""
    if not case.told:
        return {}
    told = {"author": "Ultralytics", "task": case.told, "stride": "32", "batch": "1", "imgsz": str([case.side] * 2)}
    told["names"] = str(dict(enumerate(case.names)))
    return told | ({"kpt_shape": "[3, 3]"} if case.told == "pose" else {})


def _annotated(case: Case, found: Scene) -> list[tuple[int, NDArray[np.float64]]]:
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
    rows = [_annotated(case, found) for found in scenes] if case.task == "detection" else []
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


def _coco(case: Case, pictures: Sequence[str], rows: Sequence[list[tuple[int, NDArray[np.float64]]]]) -> object:
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


def _write_yolo(case: Case, pictures: Sequence[str], rows: Sequence[list[tuple[int, NDArray[np.float64]]]],
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


def _voc(case: Case, name: str, found: list[tuple[int, NDArray[np.float64]]]) -> str:
    objects = "".join(
        f"<object><name>{case.names[place]}</name><difficult>0</difficult><bndbox>"
        + "".join(f"<{key}>{value:.3f}</{key}>" for key, value in zip(
            ("xmin", "ymin", "xmax", "ymax"), (box[0] + 1, box[1] + 1, box[2], box[3]), strict=True))
        + "</bndbox></object>"
        for place, box in found
    )  # fmt: skip
    size = f"<size><width>{case.size[0]}</width><height>{case.size[1]}</height><depth>3</depth></size>"
    return f"<annotation><filename>{name}.png</filename>{size}{objects}</annotation>"


def _right(case: Case, network: nn.Module, scenes: Sequence[Scene]) -> float:
    images = case.preparation.images([each[0] for each in scenes], case.side)
    found = network(images)
    if case.task == "classification":
        return float((found.argmax(1).numpy() == [int(each[1][0, 0]) for each in scenes]).mean())
    if case.task == "segmentation":
        answers, truth = found.argmax(1).numpy(), np.stack([each[2] for each in scenes])
        return float(np.mean([((answers == c) & (truth == c)).sum() / ((answers == c) | (truth == c)).sum()
                              for c in np.unique(truth)]))  # fmt: skip
    return average_precision(case, found, scenes)


def average_precision(case: Case, found: tuple[Tensor, Tensor, Tensor], scenes: Sequence[Scene]) -> float:
    """Return mAP@.5:.95 of what a detector finds."""
    boxes, logits, further = found
    scores = _S(logits)
    if case.head in _SOFTMAX:
        scores = _rows(logits, logits[..., :1] * 0).softmax(-1)[..., :-1]
    elif case.head == "object":
        scores = scores * _S(further[..., :1])
    elif case.head == "any":
        scores = _rows(_S(further[..., :1]), scores)
    truth, guesses = [], []
    for index, each in enumerate(scenes):
        rows = _annotated(case, each)
        truth += [(index, place + 1, *box[:2], *(box[2:] - box[:2])) for place, box in rows]
        guesses += _detections(case, index, boxes[index], scores[index])
    return _evaluated(truth, guesses, len(scenes))


def _detections(case: Case, index: int, boxes: Tensor, scores: Tensor) -> list[tuple[float, ...]]:
    """Return image, class, left, top, width, height in the picture, and score of each detection."""
    anchors, classes = (scores >= 0.02).nonzero(as_tuple=True)
    kept = boxes.clamp(0, case.side)[anchors], scores[anchors, classes], classes
    chosen = batched_nms(*kept, 0.5)[:100]
    left, top, width, height = placed(case.size, case.side, case.preparation.letterbox)
    found = []
    for box, score, label in zip(*(each[chosen].tolist() for each in kept), strict=True):
        xs = [min(max((side - left) / width, 0), 1) * case.size[0] for side in box[::2]]
        ys = [min(max((side - top) / height, 0), 1) * case.size[1] for side in box[1::2]]
        found.append((index, label + 1, xs[0], ys[0], xs[1] - xs[0], ys[1] - ys[0], score))
    return found


def _evaluated(truth: list[tuple[float, ...]], guesses: list[tuple[float, ...]], pictures: int) -> float:
    if not guesses:
        return 0.0
    known = COCO()
    known.dataset = {
        "info": {}, "images": [{"id": index} for index in range(pictures)],
        "categories": [{"id": number} for number in {row[1] for row in truth}],
        "annotations": [
            {"id": at + 1, "image_id": row[0], "category_id": row[1], "bbox": list(row[2:]), "iscrowd": 0,
             "area": row[4] * row[5]}
            for at, row in enumerate(truth)
        ],
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        known.createIndex()
        found = known.loadRes([
            {"image_id": row[0], "category_id": row[1], "bbox": list(row[2:6]), "score": row[6]} for row in guesses
        ])  # fmt: skip
        judge = COCOeval(known, found, "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return float(judge.stats[0])
