"""How well the quick scan ranks layers: Spearman with measured KL on four trained networks, by level.

    python -m benchmarks.quick_scan    train what is not in .cache yet, and print the table

The networks are the demo and three of other families, trained on the demo's training digits with fixed seeds; none
was chosen by its figure. All are measured on the held-out digits. The VGG-like network has nine layers, several of
which the measurement itself cannot tell apart at 2 bits, so one of its figures is low.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from scripts.train_demo import Recipe, top1, train
from senseapp.data.demo import load_demo_images
from senseapp.models.demo import load_demo_model
from senseapp.sensitivity import Sweep, quick_scan
from senseapp.sensitivity.session import estimate_agreement
from senseapp.spec import CompressionConfig, PruningConfig, QuantizationConfig, SensitivitySpec, SparsityConfig

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "quick_scan"
RUNS: tuple[tuple[CompressionConfig, tuple[float, ...]], ...] = (
    (SparsityConfig(), (0.5, 0.7, 0.9)),
    (QuantizationConfig(), (4, 3, 2)),
    (PruningConfig(), (0.3, 0.5)),
)
COLUMNS = (
    "network",
    "layers",
    "top-1",
    "50 %",
    "70 %",
    "90 %",
    "4 bits",
    "3 bits",
    "2 bits",
    "30 % pruned",
    "50 % pruned",
)
NUM_REQUIRED = 6  # the median and the least are those of sparsity and quantization


@dataclass(frozen=True)
class Row:
    """One network: number of layers, held-out accuracy, Spearman by run and level, processor seconds of both."""

    network: str
    layers: int
    accuracy: float
    spearman: tuple[float, ...]
    quick_seconds: float
    exact_seconds: float

    def __str__(self) -> str:
        cells = [self.network, str(self.layers), f"{self.accuracy:.3f}", *(f"{value:.3f}" for value in self.spearman)]
        return f"| {' | '.join(cells)} |"


def plain_network() -> nn.Module:
    """Return a VGG-like network: six convolutions with BatchNorm and in-place ReLU, three linear layers."""
    layers: list[nn.Module] = []
    channels = 1
    for stage in ((16,), (32,), (64, 64), (128, 128)):
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(4 * channels, 128), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(128, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))


def mobile_network() -> nn.Module:
    """Return timm's MobileNetV3-Small at half width, for one channel and ten classes."""
    network: nn.Module = timm.create_model("mobilenetv3_small_050", in_chans=1, num_classes=10)
    return network


def transformer() -> nn.Module:
    """Return a vision transformer of four blocks, 64 wide."""
    return VisionTransformer(
        img_size=32, patch_size=4, in_chans=1, num_classes=10, embed_dim=64, depth=4, num_heads=4, mlp_ratio=2
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Recipe]] = {
    "VGG-like": (plain_network, Recipe(epochs=25, learning_rate=0.003)),
    "MobileNetV3-Small ½": (mobile_network, Recipe(epochs=40, learning_rate=0.005)),
    "ViT, 4 blocks": (transformer, Recipe(epochs=40, learning_rate=0.002)),
}


def trained(name: str) -> nn.Module:
    """Return the network called ``name``, from the cache or freshly trained."""
    if name == "demo":
        return load_demo_model().module
    build, recipe = NETWORKS[name]
    path = CACHE / f"{build.__name__}.safetensors"
    if not path.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        network = train(build, load_demo_images("train"), recipe)
        safetensors.torch.save_file(network.state_dict(), path)
    network = build()
    network.load_state_dict(safetensors.torch.load_file(path))
    return network.eval()


def row(name: str) -> Row:
    """Scan and measure one network."""
    network, images = trained(name), load_demo_images("heldout")
    spearman: list[float] = []
    seconds = [0.0, 0.0]
    for compression, levels in RUNS:
        sweep = Sweep.open(network, images, SensitivitySpec(compression=compression, levels=levels))
        started = time.process_time()
        estimates = list(quick_scan(sweep))
        between = time.process_time()
        found = estimate_agreement(estimates, sweep.measure())
        seconds = [seconds[0] + between - started, seconds[1] + time.process_time() - between]
        spearman += [found.get(f"{level:g}", float("nan")) for level in levels]
    layers = len(sweep.bench.profile.layers)
    return Row(name, layers, top1(network, images), tuple(spearman), *seconds)


def rows() -> list[Row]:
    """Return one row for each network."""
    torch.set_num_threads(1)
    return [row(name) for name in ("demo", *NETWORKS)]


def table(found: list[Row]) -> str:
    """Return the rows as a Markdown table, with the median and the least of the required levels below."""
    required = [value for item in found for value in item.spearman[:NUM_REQUIRED]]
    quick, exact = (sum(getattr(item, name) for item in found) for name in ("quick_seconds", "exact_seconds"))
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}", *map(str, found), ""]
    lines.append(
        f"Sparsity and quantization: median {statistics.median(required):.3f}, least {min(required):.3f}. "
        f"Processor seconds: {quick:.0f} to scan, {exact:.0f} to measure."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(rows()))
