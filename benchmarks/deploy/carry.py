"""Whether choices made on few images carry over: files chosen on some photographs, measured on others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor, nn

from benchmarks.deploy.simulation import random_network
from benchmarks.real.network import ARCHITECTURE, load_network
from benchmarks.real.photographs import MADE_FROM, SCORED_ON, Half, tensors
from benchmarks.real.rows import Row
from senseapp.compressions import QuantizationConfig
from senseapp.core.steps import OptionalSteps, Progress
from senseapp.data.images import TensorImages
from senseapp.measure.context import MeasurementContext
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.int8_files import Int8Search
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.prove.proof_images import ProofImages
from senseapp.records.deployment import DeploySettings
from senseapp.records.measurement import RunResult
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.runtimes.call_times import TURNS, ratio
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.runtime import machine
from senseapp.tasks import CLASSIFICATION

NETWORKS = (
    *(ARCHITECTURE, "lcnet_050", "mobilenetv3_small_050", "resnet18", "convnext_atto", "vit_tiny_patch16_224"),
    "swin_tiny_patch4_window7_224",
)
_MADE_FROM, _SCORED, _SIDE = 96, 140, 96
_MOST_BYTES = 1.5  # times those of all-int8
_MOST_LESS = 0.2  # of the gain on the images that choose may be missing on other photographs
INTRO = (
    f"{machine()}. Ranges, weights and nodes in float are chosen on {_MADE_FROM} crops of every other picture, and the "
    f"files are measured on {_SCORED} crops of {_SIDE} pixels of the other pictures. {ARCHITECTURE} has ImageNet "
    "weights; the others have random weights, residual branches that are not zero, and a classifier that is fitted to "
    "tell the pictures apart. The gain is the share of the KL divergence of onnxruntime's own best setting that is "
    "gone. Of the files that a search offers, that one is shown that does least harm on the images that choose, takes "
    "no longer than that setting's, and is at most half as large again as all-int8."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Our files and onnxruntime's own ("default"), on the images that chose and on others; by name.

    Attributes:
        best: of our files, the one that does least harm on the images that choose, of those that are quick and small.
        titles: which of our files it is.
        times: as multiples of that of onnxruntime's own file.
        times_of_float: as multiples of that of the float file.
        sizes: as multiples of that of all-int8.
    """

    best: str
    titles: dict[str, str]
    chose: dict[str, Judgement]
    others: dict[str, Judgement]
    times: dict[str, float]
    times_of_float: dict[str, float]
    sizes: dict[str, float]


def rows(*names: str) -> Iterator[Row]:
    """Yield gains on the images that chose and on other photographs, and what is left beside onnxruntime's own."""
    for name in names or NETWORKS:
        curves, others = _crops(_MADE_FROM, first=0, seed=0), _crops(_SCORED, first=1, seed=1)
        found = measured(_network(name), name, curves, others)
        best = found.best
        here, there = (1 - each[best].damage / each["default"].damage for each in (found.chose, found.others))
        ours, own, all_int8 = (found.others[each] for each in (best, "default", "int8"))
        yield Row(
            what=f"{name}: gain in KL on other photographs, on the images that chose",
            wanted=f"at most {100 * _MOST_LESS:.0f} % less",
            found=f"{there:.2f}, {here:.2f}",
            holds=there >= (1 - _MOST_LESS) * here,
        )
        yield Row(
            what=f"{name}: KL, disagreement and time on other photographs, as shares of onnxruntime's own best setting",
            wanted="≤ 0.10, ≤ 0.35, ≤ 1.0",
            found=f"{ours.damage / own.damage:.2f}, {share(ours, own):.2f}, {found.times[best]:.2f} "
            f"({found.titles[best]}; {found.times_of_float[best]:.2f} of float, {found.sizes[best]:.2f} of the bytes "
            "of all-int8)",
            holds=ours.damage <= 0.1 * own.damage and share(ours, own) <= 0.35 and found.times[best] <= 1,
        )
        yield Row(
            what=f"{name}: agreement on other photographs, all in int8, and the file above",
            wanted="≥ 97 %, ≥ 99 %",
            found=f"{100 * (1 - all_int8.share_changed):.1f} %, {100 * (1 - ours.share_changed):.1f} %; "
            f"onnxruntime's own {100 * (1 - own.share_changed):.1f} %",
            holds=all_int8.share_changed <= 0.03 and ours.share_changed <= 0.01,
        )


def share(ours: Judgement, own: Judgement) -> float:
    """Return the answers that a file of ours changes, as a multiple of those that onnxruntime's own changes."""
    return ours.share_changed / own.share_changed if own.share_changed else float(ours.share_changed > 0)


def _network(name: str) -> nn.Module:
    return load_network() if name == ARCHITECTURE else random_network(name, side=_SIDE)


def _crops(count: int, *, first: int, seed: int) -> Tensor:
    """Return crops of every other picture, of both of its halves."""
    halves: list[Half] = [half for pair in zip(MADE_FROM[first::2], SCORED_ON[first::2], strict=True) for half in pair]
    return tensors(count, halves, seed=seed, side=_SIDE)


def measured(network: nn.Module, title: str, curves: Tensor, others: Tensor) -> Measured:
    """Return what a search on ``curves`` offers, with ``others`` to measure it on, both (N, C, H, W)."""
    profile = MeasurementContext.prepare(network, TensorImages(curves[:2]), task=CLASSIFICATION).profile
    profile = replace(profile, title=title)
    spec = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8.0,)))
    result = RunResult(spec=spec, profile=profile, metric="kl", baseline={}, measurements=(), num_samples=len(curves))
    size = curves.shape[1:]
    prepared = Preprocessing(input_shape=(size[0], size[1], size[2]), mean=(0.5,) * size[0], std=(0.5,) * size[0])
    model = LoadedModel(
        module=network, title=title, preprocessing=prepared, num_classes=profile.num_classes, pretrained=True
    )
    images = ProofImages(curves=TensorImages(curves), proof=TensorImages(others), note="")
    evaluator = ScheduleEvaluator.open(result, model=model, images=images)
    content = evaluator.original_file(OPERATIONS)
    layers = OPERATIONS.layers_of_nodes(content, {layer.name for layer in profile.layers})
    search = Int8Search(evaluator, OPERATIONS, content, {}, DeploySettings(), OptionalSteps(Progress()))
    found = search.found({"original": content, "file": content}, layers)
    titles = {"file": "the file asked for"} | {each.name: each.notes[0] for each in found.variants}
    ours = {"file": found.files["file"]} | {each.name: each.content for each in found.variants}
    files = {each: found.files[each] for each in ("original", "default", "int8")} | ours
    opened = [OPERATIONS.open(each, threads=1) for each in files.values()]
    spent = dict(zip(files, OPERATIONS.times(opened, others[:1], turns=TURNS), strict=True))
    times, of_float = (
        {each: ratio(spent[each], spent[reference]).value for each in files} for reference in ("default", "original")
    )

    def judged(batches: list[Tensor]) -> dict[str, Judgement]:
        reference = OPERATIONS.open(content)
        judge = Judge(CLASSIFICATION, JudgingImages.of_batches(batches), reference, num_outputs=profile.num_classes)
        return {each: judge.judged(OPERATIONS.open(file)) for each, file in files.items() if each != "original"}

    chose = judged(search.judging)
    sizes = {each: len(file) / len(files["int8"]) for each, file in files.items()}
    small = [each for each in ours if sizes[each] <= _MOST_BYTES]
    quick = [each for each in small if times[each] <= 1] or small
    return Measured(
        best=min(quick, key=lambda each: chose[each].damage),
        titles=titles,
        chose=chose,
        others=judged(list(others.split(28))),
        times=times,
        times_of_float=of_float,
        sizes=sizes,
    )
