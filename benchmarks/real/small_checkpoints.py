"""Small networks of timm, each trained with a preprocessing of its own on tinted digits, and pictures to test it on.

The digits of the demo are drawn in random colours on a coloured ground at a size of the network's own. Where the
channel order is to be found out, the colour is the class: of each digit's two classes one is drawn in reds, the
other in blues. Networks are trained on first use and kept in ``.cache``; pictures are never those of the training.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from senseapp.data.load import Split, demo_pictures, load_demo_images

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "checkpoints"
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
HALF: Normalisation = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NONE: Normalisation = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
RAW: Normalisation = ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))

_CLASSES = 10
_BATCH = 64
_NOISE = 20.0  # standard deviation, of 255: without it every preprocessing would do


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """How a small network was trained.

    Attributes:
        architecture: of timm.
        side: of its pictures, in pixels.
        mean, std: per channel.
        channels: of its input, 1 or 3.
        bgr: whether it takes blue first.
        colour_is_class: whether the colour of a digit decides its class.
    """

    architecture: str
    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3
    bgr: bool = False
    colour_is_class: bool = False
    epochs: int = 12
    learning_rate: float = 0.003
    seed: int = 0


def trained(recipe: TrainedNetwork) -> nn.Module:
    """Return the network in ``eval()`` mode; trained at the first call, on one thread."""
    key = hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]
    path = CACHE / f"{recipe.architecture}-{key}.safetensors"
    network = _build(recipe)
    if path.is_file():
        network.load_state_dict(safetensors.torch.load_file(path))
        return network.eval()
    threads, started = torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(1)
    try:
        _train(network, recipe)
    finally:
        torch.set_num_threads(threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({name: value.contiguous() for name, value in network.state_dict().items()}, path)
    print(f"       trained {recipe.architecture} in {time.perf_counter() - started:.0f} s", flush=True)
    return network.eval()


def _build(recipe: TrainedNetwork) -> nn.Module:
    torch.manual_seed(recipe.seed)
    network: nn.Module = timm.create_model(
        recipe.architecture, num_classes=_CLASSES, in_chans=recipe.channels, drop_rate=0.0, drop_path_rate=0.0
    )
    return network


def _train(network: nn.Module, recipe: TrainedNetwork) -> None:
    generator = torch.Generator().manual_seed(recipe.seed)
    pixels, labels = _drawn("train", recipe, recipe.seed)
    images = _normalised(pixels, recipe)
    steps = recipe.epochs * (len(images) // _BATCH)
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=steps)
    network.train()
    for _ in range(recipe.epochs):
        order = torch.randperm(len(images), generator=generator)
        for start in range(0, len(images) - _BATCH + 1, _BATCH):
            batch = order[start : start + _BATCH]
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(network(images[batch]), labels[batch]))
            optimizer.step()
            schedule.step()
    network.eval()


def _normalised(pixels: npt.NDArray[np.uint8], recipe: TrainedNetwork) -> Tensor:
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255  # (N, C, H, W)
    if recipe.bgr:
        images = images.flip(1)
    mean, std = (torch.tensor(values[: recipe.channels]).view(-1, 1, 1) for values in (recipe.mean, recipe.std))
    return (images - mean) / std


def _drawn(split: Split, recipe: TrainedNetwork, seed: int) -> tuple[npt.NDArray[np.uint8], Tensor]:
    """Return tinted digits, uint8 (N, H, W, C), and their classes."""
    generator = np.random.default_rng(seed)
    digits = np.stack([_resized(digit, recipe.side) for digit in demo_pictures(split)]) / 255.0  # (N, H, W)
    labels = _digit_labels(split).copy()
    ink, ground = (generator.uniform(*bounds, (len(digits), 1, 1, 3)) for bounds in ((140, 255), (0, 110)))
    if recipe.colour_is_class:
        is_blue = generator.random(len(digits)) < 0.5
        ink[is_blue] *= (0.25, 0.5, 1.0)
        ink[~is_blue] *= (1.0, 0.5, 0.25)
        labels = labels % (_CLASSES // 2) * 2 + is_blue
    if recipe.channels == 1:
        ink, ground = ink[..., :1], ground[..., :1]
    tinted = digits[..., None] * ink + (1 - digits[..., None]) * ground
    tinted += generator.normal(0, _NOISE, tinted.shape)
    return np.clip(tinted, 0, 255).astype(np.uint8), torch.from_numpy(labels)


def _resized(digit: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.fromarray(digit).resize((side, side), Image.Resampling.BILINEAR))


@cache
def _digit_labels(split: Split) -> npt.NDArray[np.int64]:
    labels = load_demo_images(split).labels
    assert labels is not None
    found: npt.NDArray[np.int64] = labels.numpy()
    return found


def write_pictures(folder: Path, recipe: TrainedNetwork, count: int, *, seed: int = 1000) -> Path:
    """Write ``count`` pictures that the network was not trained on, in class folders; return the folder."""
    pixels, labels = _drawn("heldout", recipe, seed)
    chosen = np.random.default_rng(seed).choice(len(pixels), count, replace=False)
    for index in chosen.tolist():
        home = folder / str(int(labels[index]))
        home.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[index].squeeze()).save(home / f"{index:04}.png")
    return folder
