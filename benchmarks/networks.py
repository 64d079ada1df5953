"""Small networks of several families, trained on the demo's digits on first use and kept in ``.cache``.

Each has its own recipe of :mod:`scripts.train_demo`, chosen for held-out accuracy alone, before anything was
compressed. Convolutions lie channels-last, which halves the time of training.
"""

from __future__ import annotations

import hashlib
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import timm
import torch
from timm.models.convnext import ConvNeXt
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from scripts.train_demo import Recipe, train
from senseapp.data.load import load_demo_images

BITS = (8.0, 6.0, 5.0, 4.0, 3.0, 2.0)
PRUNED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "networks"


def vgg() -> nn.Module:
    """Six convolutions with BatchNorm and in-place ReLU, three linear layers."""
    layers: list[nn.Module] = []
    channels = 1
    for stage in ((16,), (32,), (64, 64), (128, 128)):
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(4 * channels, 128), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(128, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))


def resnet() -> nn.Module:
    """ResNet-18 at half its width: 2.8 million weights, eight residual blocks."""
    network: nn.Module = timm.create_model("resnet18", in_chans=1, num_classes=10, channels=(32, 64, 128, 256))
    return network


def mobilenet() -> nn.Module:
    """MobileNetV3-Small with a stem for small pictures: 1.5 million weights, 52 layers."""
    network: nn.Module = timm.create_model("mobilenetv3_small_100", in_chans=1, num_classes=10)
    network.conv_stem.stride = (1, 1)
    return network


def vit() -> nn.Module:
    """A vision transformer of six blocks over 16 patches: 0.7 million weights, LayerNorm only."""
    return VisionTransformer(img_size=32, patch_size=8, in_chans=1, num_classes=10, embed_dim=96, depth=6, num_heads=4)


def convnext() -> nn.Module:
    """A ConvNeXt of eight blocks over patches of 2 × 2: 0.9 million weights, depthwise 7 × 7, LayerNorm only."""
    return ConvNeXt(in_chans=1, num_classes=10, depths=(2, 2, 2, 2), dims=(24, 48, 96, 192), patch_size=2)


@dataclass(frozen=True)
class Network:
    title: str
    build: Callable[[], nn.Module]
    recipe: Recipe


NETWORKS = {
    "vgg": Network("VGG-like", vgg, Recipe(epochs=25, learning_rate=0.003)),
    "resnet": Network("ResNet-18 ½", resnet, Recipe(epochs=25, learning_rate=0.005)),
    "mobilenet": Network("MobileNetV3-Small", mobilenet, Recipe(epochs=60, learning_rate=0.005)),
    "vit": Network("ViT, 6 blocks", vit, Recipe(epochs=100, learning_rate=0.002)),
    "convnext": Network("ConvNeXt, 8 blocks", convnext, Recipe(epochs=60, learning_rate=0.004)),
}


def trained(name: str, *, seed: int = 1, known: Network | None = None) -> nn.Module:
    """Return the network called ``name``, in ``eval()`` mode; on one thread, so that a machine repeats itself.

    It is one of :data:`NETWORKS`, or ``known``.
    """
    known = NETWORKS[name] if known is None else known
    recipe = replace(known.recipe, seed=seed)
    key = hashlib.sha256(
        (repr(recipe) + inspect.getsource(getattr(known.build, "func", known.build))).encode()
    ).hexdigest()[:12]
    path = CACHE / f"{name}-{key}.safetensors"
    if not path.is_file():
        _train(known, recipe, path)
    network = known.build()
    network.load_state_dict(safetensors.torch.load_file(path))
    return network.eval()


def _train(known: Network, recipe: Recipe, path: Path) -> None:
    threads, started = torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(1)
    try:
        network = train(lambda: known.build().to(memory_format=torch.channels_last), load_demo_images("train"), recipe)
    finally:
        torch.set_num_threads(threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    safetensors.torch.save_file(state, path)
    print(f"trained {known.title} in {time.perf_counter() - started:.0f} s", flush=True)
