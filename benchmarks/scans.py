"""Networks, images and curves that several benchmarks of schedules share: ``.cache/scans`` keeps the curves.

A real network on photographs, and small networks that are trained here on digits. Curves are measured on some images,
others judge between ways to carry a schedule out, and nothing is made from a third part, which scores. Delete the
folder to measure anew.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache

import torch

from benchmarks.networks import CACHE, NETWORKS, trained
from benchmarks.real.network import ARCHITECTURE, load_network
from benchmarks.real.photographs import MADE_FROM, SCORED_ON, tensors
from senseapp.core.codec import dumps, loads
from senseapp.data.images import ImageSet, TensorImages
from senseapp.data.load import load_demo_images
from senseapp.descriptions import CompressionConfig
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources.demo import DEMO_PREPROCESSING
from senseapp.networks.sources.load import load_model
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.records.measurement import RunResult, latest
from senseapp.records.spec import Mode, ModelSpec, RunSpec, SensitivitySpec
from senseapp.tasks import CLASSIFICATION

_SCANS = CACHE.parent / "scans"
DEMO = "demo"
ADAPTED_ON, PROOFS, SCORED = 64, 56, 112
"""Photographs: of curves, and to adapt weights on; to judge on; to score on."""
DIGITS = (256, 192)
"""For curves and adapting, and to judge on; the other held-out ones score."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """One compression of one network, and what is measured of it."""

    network: str
    config: CompressionConfig
    levels: tuple[float, ...]
    adapted: bool = False
    mode: Mode = "quick"

    def evaluator(self) -> ScheduleEvaluator:
        """Return the network with its curves, found now or before."""
        model, images = opened(self.network)
        spec = SensitivitySpec(
            compression=self.config, levels=self.levels, metric="kl", adapted=self.adapted, mode=self.mode
        )
        path = _SCANS / f"{self.network}-{hashlib.sha256(repr(spec).encode()).hexdigest()[:12]}.json"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dumps(scanned(model, images.curves, spec)))
        return ScheduleEvaluator.open(loads(path.read_text(), RunResult), model=model, images=images)


@cache
def opened(network: str) -> tuple[LoadedModel, ProofImages]:
    """Return the network, and the images of its curves and to judge on."""
    if network == ARCHITECTURE:
        module, title, classes = load_network(), ARCHITECTURE, 1000
        preparation = Preprocessing(input_shape=(3, 224, 224), mean=(0.5,) * 3, std=(0.5,) * 3)
        curves, proof = TensorImages(tensors(ADAPTED_ON, MADE_FROM)), TensorImages(tensors(PROOFS, MADE_FROM, seed=1))
    else:
        demo = network == DEMO
        module, title = (load_model(ModelSpec()).module, DEMO) if demo else (trained(network), NETWORKS[network].title)
        classes, preparation = 10, DEMO_PREPROCESSING
        curves, proof, _ = _digits()
    model = LoadedModel(
        module=module, title=title, preprocessing=preparation, num_classes=classes, pretrained=True
    )  # fmt: skip
    return model, ProofImages(curves=curves, proof=proof, note="")


@cache
def _digits() -> tuple[TensorImages, TensorImages, TensorImages]:
    held_out = load_demo_images("heldout")
    order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0)).tolist()
    first, second = DIGITS
    parts = order[:first], order[first : first + second], order[first + second :]
    curves, proof, scored = (held_out.subset(sorted(part)) for part in parts)
    return curves, proof, scored


@cache
def unseen(network: str) -> ImageSet:
    """Return the images that nothing is made from."""
    return TensorImages(tensors(SCORED, SCORED_ON)) if network == ARCHITECTURE else _digits()[2]


def scanned(model: LoadedModel, images: ImageSet, spec: SensitivitySpec) -> RunResult:
    """Return what a run of ``spec`` on ``images`` finds."""
    sweep = Sweep.open(model.module, images, spec, task=CLASSIFICATION)
    found = tuple(quick_scan(sweep)) if spec.mode == "quick" else ()
    return RunResult(
        spec=RunSpec(sensitivity=spec),
        profile=replace(sweep.context.profile, title=model.title),
        metric="kl",
        baseline={},
        measurements=found or latest(sweep.measure()),
        estimates=found,
        num_samples=len(images),
        recorded=sweep.baseline.recorded() if spec.mode == "exact" else None,
    )
