"""Classification architectures of torchvision."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models import WeightsEnum

from senseapp.errors import InvalidSpec, first_line_of
from senseapp.models.input_size import channel_statistics, check_side
from senseapp.models.loaded import LoadedModel, Preprocessing
from senseapp.models.names import unknown_model
from senseapp.models.published import is_reachable, unavailable
from senseapp.models.seeded import seeded_weights
from senseapp.spec import ModelSpec

_IMAGE_CHANNELS = 3
# Auxiliary heads serve training only; torchvision drops them from its published weights too.
_WITHOUT_AUXILIARY_HEADS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


@cache
def torchvision_names() -> tuple[str, ...]:
    """Return the names of torchvision's classification architectures, sorted."""
    return tuple(sorted(torchvision.models.list_models(module=torchvision.models)))


def build_torchvision(spec: ModelSpec) -> LoadedModel:
    """Build a torchvision architecture with its published or with seeded random weights.

    Raises:
        UnknownModel: torchvision has no such classification architecture.
        InvalidSpec: the architecture does not take these classes, channels or image size.
        InvalidCheckpoint: the published weights could not be fetched.
    """
    if spec.name not in torchvision_names():
        raise unknown_model(spec.name, library="torchvision")
    check_side(spec.img_size, title=spec.title)
    weights = torchvision.models.get_model_weights(spec.name).DEFAULT
    categories = tuple(weights.meta["categories"])
    num_classes = spec.num_classes or len(categories)
    if spec.pretrained:
        _check_published(spec, weights)
    module = _create(spec, weights, num_classes)
    return LoadedModel(
        module=module,
        title=spec.title,
        preprocessing=_preprocessing(spec, weights),
        num_classes=num_classes,
        pretrained=spec.pretrained,
        class_names=categories if num_classes == len(categories) else (),
    )


def _check_published(spec: ModelSpec, weights: WeightsEnum) -> None:
    expected = {"num_classes": len(weights.meta["categories"]), "in_chans": _IMAGE_CHANNELS}
    for what, published in expected.items():
        wanted = getattr(spec, what)
        if wanted not in (None, published):
            raise InvalidSpec(
                f"The published weights of {spec.title} have {what} {published}, got {wanted}. "
                "Leave it empty, or upload a checkpoint trained for yours."
            )
    cached = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rsplit("/", 1)[-1]
    if not cached.exists() and not is_reachable(weights.url):
        raise unavailable(spec.title)


def _create(spec: ModelSpec, weights: WeightsEnum, num_classes: int) -> nn.Module:
    arguments: dict[str, Any] = _size_argument(spec)
    arguments |= {"weights": "DEFAULT"} if spec.pretrained else _WITHOUT_AUXILIARY_HEADS.get(spec.name, {})
    try:
        with seeded_weights():
            module: nn.Module = torchvision.models.get_model(spec.name, num_classes=num_classes, **arguments)
            if spec.in_chans not in (None, _IMAGE_CHANNELS):
                _replace_first_convolution(module, int(spec.in_chans or 0))
    except OSError as error:
        raise unavailable(spec.title) from error
    except (ValueError, RuntimeError, AssertionError) as error:
        raise InvalidSpec(
            f"{spec.title} does not take images of {spec.img_size} pixels ({first_line_of(error)}). "
            "Leave the image size empty for the architecture's own."
        ) from error
    return module


def _size_argument(spec: ModelSpec) -> dict[str, Any]:
    """Return how the architecture is told its image size; nothing for a size-free network."""
    if spec.img_size is None:
        return {}
    if spec.name.startswith("vit_"):
        return {"image_size": spec.img_size}
    if spec.name.startswith("maxvit"):
        return {"input_size": (spec.img_size, spec.img_size)}
    return {}


def _replace_first_convolution(module: nn.Module, in_chans: int) -> None:
    name, first = next((name, child) for name, child in module.named_modules() if isinstance(child, nn.Conv2d))
    replacement = nn.Conv2d(
        in_chans,
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        first.stride,  # type: ignore[arg-type]
        first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    module.set_submodule(name, replacement)


def _preprocessing(spec: ModelSpec, weights: WeightsEnum) -> Preprocessing:
    transforms = weights.transforms()
    crop, resize = transforms.crop_size[0], transforms.resize_size[0]
    side = spec.img_size or crop
    channels = spec.in_chans or _IMAGE_CHANNELS
    return Preprocessing(
        input_shape=(channels, side, side),
        mean=channel_statistics(tuple(transforms.mean), channels),
        std=channel_statistics(tuple(transforms.std), channels),
        crop_pct=crop / resize,
        interpolation=transforms.interpolation.value,
    )
