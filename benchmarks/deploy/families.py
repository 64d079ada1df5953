"""Small trained networks of five families in int8: all of it, and with parts in float.

``SENSEAPP_TRAINED`` is a folder in which trained weights are kept; without it each run trains them anew.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.deploy.carried import Carried, loaded
from benchmarks.deploy.carry import Measured, measured, share
from benchmarks.real.rows import Row
from scripts.train_demo import Recipe, augment, top1, train
from senseapp.data.images import TensorImages
from senseapp.data.load import load_demo_images
from senseapp.runtimes.onnxruntime.runtime import machine

_CLASSES, _SIDE = 10, 64
_CURVES = 192  # digits that fit and choose; the rest of those that training did not see is scored
_VARIED = Recipe(seed=7)
"""Digits that choose and are scored are turned, scaled and moved as those of the training are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """One architecture of timm and how it learns the digits; ``arguments`` make it small."""

    title: str
    name: str
    recipe: Recipe
    arguments: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        network: nn.Module = timm.create_model(self.name, num_classes=_CLASSES, in_chans=1, **self.arguments)
        return network


_USUAL = Recipe(epochs=30, learning_rate=0.002)
_QUICK = Recipe(epochs=20, learning_rate=0.005)
FAMILIES = (
    _Family(
        title="ViT (12 blocks of 96)",
        name="vit_tiny_patch16_224",
        recipe=_USUAL,
        arguments={"img_size": _SIDE, "embed_dim": 96, "num_heads": 3},
    ),
    _Family(
        title="ConvNeXt (9 blocks of 24 to 96)",
        name="convnext_atto",
        recipe=_USUAL,
        arguments={"depths": (2, 2, 3, 2), "dims": (24, 48, 72, 96)},
    ),
    _Family(
        title="Swin (6 blocks of 32 to 128)",
        name="swin_tiny_patch4_window7_224",
        recipe=_USUAL,
        arguments={"img_size": _SIDE, "window_size": 4, "embed_dim": 32, "depths": (2, 2, 2), "num_heads": (2, 4, 4)},
    ),
    _Family(title="MobileNetV3-Small, half width", name="mobilenetv3_small_050", recipe=_QUICK),
    _Family(title="EfficientNet (TinyNet-E)", name="tinynet_e", recipe=_QUICK),
)
INTRO = (
    f"{machine()}. Networks of timm that learnt {_CLASSES} digits here. {_CURVES} digits that training did not see fit "
    "ranges and weights, and choose what stays in float; all others are scored. They are turned, scaled and moved as "
    "those of the training are. Shares are of onnxruntime's own best setting."
)


def rows(*names: str) -> Iterator[Row]:
    """Yield, for each family, agreement all in int8 and mixed, and the shares of KL and disagreement that are left."""
    for family in FAMILIES:
        if names and family.name not in names:
            continue
        network = trained(family)
        curves, others = digits()
        accuracy = top1(network, others)
        network.requires_grad_(True)
        model = loaded(network, family.title, curves.images)
        found = measured(Carried(model=model, curves=curves.images, others=others.images))
        yield from _rows(family.title, found, accuracy, len(others))


def _rows(title: str, found: Measured, accuracy: float, count: int) -> Iterator[Row]:
    own, all_int8, file, best = (found.others[each] for each in ("default", "int8", "file", found.best))
    agreements = [100 * (1 - each.share_changed) for each in (all_int8, file, own)]
    yield Row(
        what=f"{title}: agreement, all in int8 and partly",
        wanted="≥ 97 %, ≥ 99 %",
        found=f"{agreements[0]:.1f} %, {agreements[1]:.1f} % of {count}; onnxruntime's own {agreements[2]:.1f} % "
        f"(float: {100 * accuracy:.1f} % right)",
        holds=agreements[0] >= 97 and agreements[1] >= 99,
    )
    yield Row(
        what=f"{title}: KL, disagreement and time, as shares of onnxruntime's own best setting",
        wanted="≤ 0.10, ≤ 0.35, ≤ 1.0",
        found=f"{best.damage / own.damage:.2f}, {share(best, own):.2f}, {found.times[found.best]:.2f} "
        f"({found.titles[found.best]}; {found.time_of_float:.2f} of float)",
        holds=best.damage <= 0.1 * own.damage and share(best, own) <= 0.35 and found.times[found.best] <= 1,
    )


def trained(family: _Family) -> nn.Module:
    """Return the network after its training on the demo's digits, with a fixed seed."""
    kept = Path(os.environ.get("SENSEAPP_TRAINED") or tempfile.gettempdir()) / f"{family.name}.digits.safetensors"
    network = family.build()
    if os.environ.get("SENSEAPP_TRAINED") and kept.is_file():
        network.load_state_dict(safetensors.torch.load_file(kept))
        return network.eval()
    started = time.process_time()
    digits = load_demo_images("train")
    images = TensorImages(_resized(digits.images), digits.labels)
    network = train(family.build, images, family.recipe)
    print(f"       {family.title}: trained in {time.process_time() - started:.0f} s of the processor", flush=True)
    if os.environ.get("SENSEAPP_TRAINED"):
        safetensors.torch.save_file({name: each.contiguous() for name, each in network.state_dict().items()}, kept)
    return network


def _resized(images: Tensor) -> Tensor:
    return functional.interpolate(images, _SIDE, mode="bilinear", antialias=True)


def digits() -> tuple[TensorImages, TensorImages]:
    """Return digits that fit and choose, and those that are scored."""
    held_out = load_demo_images("heldout")
    assert held_out.labels is not None
    images = augment(_resized(held_out.images), _VARIED, torch.Generator().manual_seed(_VARIED.seed))
    split = (slice(None, _CURVES), slice(_CURVES, None))
    curves, others = (TensorImages(images[part], held_out.labels[part]) for part in split)
    return curves, others
