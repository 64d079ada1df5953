"""Segmentation: estimates and measurements, and what the grid of pixels costs: ``python -m benchmarks.segmentation``.

LR-ASPP of torchvision is trained on pictures of rectangles for some minutes, or taken from ``--weights``; an untrained
one has statistics of the images, as otherwise what early layers do is rounded away.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

from benchmarks.results import keep
from senseapp.data.images import TensorImages
from senseapp.descriptions import get
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.metrics.segmentation import DIVERGENCE
from senseapp.networks.sources.load import load_model
from senseapp.records.measurement import Status
from senseapp.records.resolution import spearman
from senseapp.records.spec import ModelSpec, SensitivitySpec
from senseapp.tasks import SEGMENTATION
from tests.toy_rectangles import scene

TITLE = "Segmentation (`python -m benchmarks.segmentation`)"
CLASSES, SIDE, IMAGES, STEPS = 3, 64, 32, 250
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SETTINGS = (("quantization", (8.0, 4.0, 3.0), "bits"), ("sparsity", (0.5, 0.7), "zeros"))


def scenes(first: int, count: int, side: int = SIDE) -> tuple[Tensor, Tensor]:
    """Return pictures, float32 (N, 3, side, side), and their masks, uint8 (N, side, side)."""
    found = [scene(number, (side, side)) for number in range(first, first + count)]
    pictures = torch.stack([torch.from_numpy(each.picture) for each in found]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(each)[:, None, None] for each in (_MEAN, _STD))
    return (pictures - mean) / std, torch.stack([torch.from_numpy(each.mask) for each in found])


def network() -> nn.Module:
    """Return LR-ASPP with random weights."""
    spec = ModelSpec(
        library="torchvision", name="lraspp_mobilenet_v3_large", num_classes=CLASSES, task=SEGMENTATION.name
    )
    return load_model(spec).module


def with_statistics_of(module: nn.Module, images: Tensor) -> nn.Module:
    """Return the network with the statistics of ``images`` in its norms."""
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.reset_running_stats()
            each.momentum = None
    module.train()
    with torch.no_grad():
        for part in images.split(32):
            module(part)
    return module.eval()


def trained() -> nn.Module:
    """Train LR-ASPP on 800 pictures."""
    torch.manual_seed(0)
    module = torchvision.models.get_model(
        "lraspp_mobilenet_v3_large", weights=None, weights_backbone=None, num_classes=CLASSES
    ).train()
    images, masks = scenes(10_000, 800)
    optimizer = torch.optim.AdamW(module.parameters(), 2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    for _ in range(STEPS):
        chosen = torch.randint(0, len(images), (16,))
        loss = nn.functional.cross_entropy(
            module(images[chosen])["out"], masks[chosen].long(), weight=torch.tensor([1.0, 3.0, 3.0])
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return with_statistics_of(module, images[:320])


def ranked(title: str, module: nn.Module) -> None:
    """Keep a row for each level: how estimates and measurements of all layers agree."""
    for kind, levels, unit in SETTINGS:
        spec = SensitivitySpec(compression=get(kind).config(), levels=levels, num_samples=IMAGES, device="cpu")
        sweep = Sweep.open(copy.deepcopy(module), TensorImages(scenes(0, IMAGES)[0]), spec, task=SEGMENTATION)
        started = time.perf_counter()
        estimates = {item.key: item.change(DIVERGENCE.name) for item in quick_scan(sweep)}
        scan = time.perf_counter() - started
        found = [item for item in sweep.measure() if item.status is Status.MEASURED]
        measure = time.perf_counter() - started - scan
        for level in levels:
            pairs = [
                (estimate.delta, change.delta)
                for item in found
                if item.level == level and (estimate := estimates.get(item.key)) and (change := item.change("pixel_kl"))
            ]
            agreement = spearman([one for one, _ in pairs], [other for _, other in pairs])
            ratios = sorted(one / other for one, other in pairs if other > 0)
            cells: dict[str, object] = {"network": title, "level": f"{level:g} {unit}", "layers": len(pairs)}
            cells |= {"Spearman": f"{agreement:.3f}", "median ratio": f"{ratios[len(ratios) // 2]:.2f}"}
            keep("segmentation", {**cells, "scan": f"{scan:.1f} s", "exact": f"{measure:.1f} s"}, named_by=2)


def grid_cost(module: nn.Module, side: int = 256) -> None:
    """Keep a row for each layer of some: KL over all pixels, and over the grid that runs keep."""
    images = scenes(0, 8, side)[0]
    with torch.inference_mode():
        before = module(images)["out"]
    layers = [name for name, each in module.named_modules() if isinstance(each, nn.Conv2d)]
    for name in layers[:: len(layers) // 5]:
        changed = copy.deepcopy(module)
        weight = changed.get_submodule(name).get_parameter("weight")
        with torch.no_grad():
            weight.copy_((weight / weight.abs().max() * 3).round() * weight.abs().max() / 3)
        with torch.inference_mode():
            after = changed(images)["out"]
        first, second = before.double().log_softmax(1), after.double().log_softmax(1)
        exact = float((first.exp() * (first - second)).sum(1).mean())
        kept = (SEGMENTATION.predictions(each) for each in (before, after))
        found = DIVERGENCE.change(DIVERGENCE.moments(*kept, None)).delta
        figures = {
            "all pixels": f"{exact:.3g}",
            "grid": f"{found:.3g}",
            "difference": f"{100 * (found / exact - 1):+.2f} %",
        }
        keep("segmentation_grid", {"layer": name, **figures})


def main() -> None:
    """Measure LR-ASPP (MobileNetV3-Large), all 66 layers one at a time, without masks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, help="of a trained LR-ASPP, instead of training one")
    asked = parser.parse_args()
    if asked.weights:
        good = network()
        good.load_state_dict(torch.load(asked.weights, weights_only=True))
    else:
        good = trained()
    ranked("trained", good)
    ranked("untrained, with statistics of the images", with_statistics_of(network(), scenes(0, IMAGES)[0]))
    grid_cost(good)


if __name__ == "__main__":
    main()
