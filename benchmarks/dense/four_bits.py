"""Four bits of weights on average, adapted, beside four everywhere: ``python -m benchmarks.dense.four_bits [CASE …]``.

Schedules are solved on some images, and weights adapted on them; others choose between the ways to carry a schedule
out, and what is lost is measured on a third part. CASE is ``detector`` (that of the third demo), ``map`` (LR-ASPP,
trained here on rectangles), or a file: ``characters=ddddocr/common_det.onnx``, ``pages=ch_PP-OCRv4_det_infer.onnx``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.dense.networks import masks_of, opened, rectangles, trained
from benchmarks.real.photographs import MADE_FROM, SCORED_ON
from benchmarks.real.scenes import characters, pages
from benchmarks.results import write_row
from benchmarks.uploaded_int8 import CASES as UPLOADED
from senseapp.data.images import ImageSet, TensorImages
from senseapp.data.shapes import load_shapes, shapes
from senseapp.descriptions import get
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.metrics.base import MetricChange
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources.demo_detector import load_detector
from senseapp.networks.sources.load import load_model
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.proof_images import ProofImages
from senseapp.prove.repair_choice import measured
from senseapp.records.measurement import RunResult, latest
from senseapp.records.schedule import ResourceBudget, Schedule
from senseapp.records.spec import Mode, ModelSpec, RunSpec, SensitivitySpec
from senseapp.solve.methods import make_schedule
from senseapp.tasks import task_named

TITLE = "Dense networks: four bits of weights (`python -m benchmarks.dense.four_bits`)"
HEAD = (
    "What is lost on images that chose nothing, in points; weights alone are rounded. *Adapted* is what a proof would "
    "deliver: the kindest of the schedule alone, repaired and adapted, by other images. Wanted: at most half of what "
    "four bits everywhere lose.",
    "",
    "| network, bits | metric | before | four bits everywhere | the same, adapted | optimal | optimal, adapted | "
    "share of four everywhere | holds |",
    "|---|---|---|---|---|---|---|---|---|",
)
BITS = (8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)
_SIDE = 64
_SCORED_FROM, _SCORED = 50_000, 256  # pictures of the demo's kind, neither shown nor trained on


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, and images for curves, to choose and to score."""

    model: LoadedModel
    images: tuple[ImageSet, ImageSet, ImageSet]
    metrics: tuple[str, ...]
    mode: Mode = "exact"


def detector() -> Case:
    """Return the detector of the third demo."""
    model = load_detector()
    known = load_shapes(model.preprocessing, None, with_boxes=True)
    curves, proof = (known.subset(list(part)) for part in (range(96), range(96, len(known))))
    scenes = [shapes(number) for number in range(_SCORED_FROM, _SCORED_FROM + _SCORED)]
    pictures = torch.stack([torch.from_numpy(picture).permute(2, 0, 1) for picture, _ in scenes]) / 255
    boxes = [torch.tensor(found, dtype=torch.float32).reshape(-1, 5) for _, found in scenes]
    targets = tuple({"boxes": each[:, 1:], "labels": each[:, 0].long()} for each in boxes)
    scored = TensorImages((pictures - 0.5) / 0.25, targets)
    return Case(model=model, images=(curves, proof, scored), metrics=("agreement_map", "map", "objects_f1"))


def dense_map() -> Case:
    """Return LR-ASPP, trained on rectangles."""
    name = "lraspp_mobilenet_v3_large"
    module = opened(name, trained(name, _SIDE, steps=250, pictures=800, batch=16))
    found = []
    for first, count in ((0, 64), (1000, 64), (2000, 256)):
        images, targets = rectangles(first, count, _SIDE)
        found.append(TensorImages(images, masks_of(targets, _SIDE)))
    preparation = Preprocessing(input_shape=(3, _SIDE, _SIDE), mean=(0.5,) * 3, std=(0.25,) * 3)
    model = LoadedModel(
        module=module, title=name, preprocessing=preparation, num_classes=4, pretrained=True, task="segmentation"
    )
    return Case(model=model, images=(found[0], found[1], found[2]), metrics=("miou_agreement", "miou"))


def uploaded(kind: str, path: str) -> Case:
    """Return an uploaded ONNX file with pictures of its kind."""
    case, made = UPLOADED[kind], characters if kind == "characters" else pages
    model = load_model(ModelSpec(library="onnx", checkpoint=path, task=case.task, img_size=case.size))
    found = []
    for count, halves, seed in (
        (8, MADE_FROM, 1),
        (8, MADE_FROM, 3),
        (30 if kind == "characters" else 8, SCORED_ON, 2),
    ):
        found.append(TensorImages(torch.cat(case.tensors(made(count, halves, seed=seed)))))
    return Case(model=model, images=(found[0], found[1], found[2]), metrics=case.metrics, mode="quick")


def evaluator_of(case: Case) -> ScheduleEvaluator:
    """Measure the curves, and return what schedules are made and judged by."""
    spec = SensitivitySpec(
        compression=get("quantization").config(),
        levels=BITS,
        num_samples=len(case.images[0]),
        device="cpu",
        mode=case.mode,  # type: ignore[arg-type]
    )
    sweep = Sweep.open(case.model.module, case.images[0], spec, task=task_named(case.model.task))
    estimates = tuple(quick_scan(sweep)) if case.mode == "quick" else ()
    result = RunResult(
        spec=RunSpec(model=ModelSpec(task=case.model.task), sensitivity=spec),
        profile=replace(sweep.context.profile, title=case.model.title),
        metric=sweep.metric,
        baseline={},
        measurements=estimates or latest(sweep.measure()),
        estimates=estimates,
        num_samples=len(case.images[0]),
    )
    images = ProofImages(curves=case.images[0], proof=case.images[1], note="")
    return ScheduleEvaluator.open(result, model=case.model, images=images)


def rows(title: str, case: Case, bits: float) -> list[str]:
    """Return a row for each metric."""
    evaluator = evaluator_of(case)
    found: list[dict[str, MetricChange]] = []
    for method in ("uniform", "optimal"):
        budget = ResourceBudget(kind="bits", target=bits)
        schedule: Schedule = make_schedule(
            evaluator.result, budget=budget, metric=evaluator.result.metric, method=method
        )
        applied = evaluator.reconstruction.apply(schedule)
        judged = partial(evaluator.judged, applied, case.images[2])
        found.append({change.metric: change for change in judged().changes})
        measured(evaluator, applied, schedule.metric, repair=True, images=evaluator.images.proof, adapting="minutes")
        found.append({change.metric: change for change in judged().changes})
    lines = []
    for metric in case.metrics:
        changes = [each[metric] for each in found]
        share = changes[3].delta / changes[0].delta if changes[0].delta > 0 else 1.0
        lost = " | ".join(map(_points, changes))
        lines.append(
            f"| {title}, {bits:g} bits | {metric} | {changes[0].baseline:.3f} | {lost} | {share:.2f} | "
            f"{'yes' if share <= 0.5 else 'no'} |"
        )
    return lines


def _points(change: MetricChange) -> str:
    return f"{100 * change.delta:.2f} ({100 * change.ci_low:.2f} to {100 * change.ci_high:.2f})"


def main() -> None:
    """Measure and write rows of ``RESULTS.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["detector", "map"])
    parser.add_argument("--bits", type=float, default=4.0)
    asked = parser.parse_args()
    made: dict[str, Callable[[], Case]] = {"detector": detector, "map": dense_map}
    for name in asked.cases:
        kind, _, path = name.partition("=")
        started = time.process_time()
        case = uploaded(kind, path) if path else made[kind]()
        titles = {"detector": "detector of the third demo", "map": "LR-ASPP, trained on rectangles"}
        for row in rows(titles.get(name) or path.rpartition("/")[2], case, asked.bits):
            print(row, f"{time.process_time() - started:.0f} s", flush=True)
            write_row(TITLE, HEAD, row, named_by=2)


if __name__ == "__main__":
    main()
