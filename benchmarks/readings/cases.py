"""The pairs: each is a layout of outputs, a preparation, names and numbers of classes, and a form of labels."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torchvision.models._meta import _COCO_CATEGORIES

from benchmarks.readings.networks import IMAGENET, NAMES, Preparation, trained

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


def scores_of(head: str, logits: Tensor, further: Tensor) -> Tensor:
    """Return the scores that a head means, (N, A, C)."""
    if head in _SOFTMAX:
        return _rows(logits, logits[..., :1] * 0).softmax(-1)[..., :-1]
    if head == "any":
        return _S(_rows(further[..., :1], logits))
    return _S(logits) * (_S(further[..., :1]) if head == "object" else 1)


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


def network_of(case: Case, folder: Path) -> nn.Module:
    """Return the trained network with the classes of the case, for images prepared as it says."""
    network = trained(case.task, folder)
    if case.task == "detection":
        network = network.with_classes(case.live)
    elif case.task == "segmentation":
        places = [0 if each is None else each + 1 for each in case.live]
        network.classify.weight = nn.Parameter(network.classify.weight[places])
        network.classify.bias = nn.Parameter(network.classify.bias[places])
    return case.preparation.taken_in(network).requires_grad_(False)


def write_model(network: nn.Module, case: Case, images: Tensor, path: Path) -> None:
    """Write the network as the case delivers it, and make sure that onnxruntime computes the same of ``images``."""
    delivered = _Delivered(copy.deepcopy(network), case)  # the exporter folds norms into the network that it is given
    found = {name: values.clone() for name, values in delivered.outputs(images).items()}
    names = list(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            delivered, (images[:1],), str(path), dynamo=False, input_names=["images"], output_names=names,
            dynamic_axes={name: {0: "batch"} for name in ("images", *names)}, opset_version=17,
        )  # fmt: skip
    model = onnx.load(path)
    for output, values in zip(model.graph.output, found.values(), strict=True):
        for axis, length in zip(output.type.tensor_type.shape.dim[1:], values.shape[1:], strict=True):
            axis.dim_value = length
    for key, value in _metadata(case).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    run = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"images": images.numpy()})
    for one, other in zip(run, found.values(), strict=True):
        assert torch.allclose(torch.from_numpy(one), other, atol=1e-2, rtol=1e-3), f"{path} differs from the network"


def _metadata(case: Case) -> Mapping[str, str]:
    """Return what Ultralytics' exporter writes."""
    if not case.told:
        return {}
    told = {"author": "Ultralytics", "task": case.told, "stride": "32", "batch": "1", "imgsz": str([case.side] * 2)}
    told["names"] = str(dict(enumerate(case.names)))
    return told | ({"kpt_shape": "[3, 3]"} if case.told == "pose" else {})
