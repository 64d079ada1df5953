"""Networks of torchvision, with published or seeded random weights."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models import WeightsEnum

from senseapp.core.errors import InvalidSpec, first_line_of
from senseapp.networks.loaded import (
    IMAGE_CHANNELS,
    LoadedModel,
    Preprocessing,
    channel_statistics,
    check_side,
    is_reachable,
    seeded_weights,
    unavailable,
)
from senseapp.networks.sources.catalogue import unknown_model
from senseapp.networks.sources.detectors import detector_notes, detector_preprocessing, opened_detector
from senseapp.records.spec import ModelSpec

FAMILIES = {
    "classification": torchvision.models,
    "segmentation": torchvision.models.segmentation,
    "detection": torchvision.models.detection,
}
"""The modules that list the architectures of each task."""
# Auxiliary heads serve training only; torchvision drops those of classifiers from its published weights too.
_WITHOUT_AUXILIARY_HEADS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


@cache
def torchvision_names(task: str) -> tuple[str, ...]:
    """Return the names of torchvision's architectures of a task, sorted."""
    return tuple(sorted(torchvision.models.list_models(module=FAMILIES[task])))


def task_of(name: str) -> str:
    """Return the task of the architecture of this name; raises UnknownModel where torchvision has none."""
    for task in FAMILIES:
        if name in torchvision_names(task):
            return task
    raise unknown_model(name, library="torchvision")


def build_torchvision(spec: ModelSpec) -> LoadedModel:
    """Build a torchvision architecture with its published or with seeded random weights."""
    task = task_of(spec.name)
    check_side(spec.img_size, title=spec.title)
    weights = torchvision.models.get_model_weights(spec.name).DEFAULT
    categories = tuple(weights.meta["categories"])
    num_classes = spec.num_classes or len(categories)
    if spec.pretrained:
        _check_published(spec, weights)
    module = _create(spec, _arguments(spec, task), num_classes)
    if getattr(module, "aux_classifier", None) is not None:  # torchvision adds it to published weights
        module.aux_classifier = None  # type: ignore[assignment]
    is_detector = task == "detection"
    return LoadedModel(
        module=opened_detector(module) if is_detector else module,
        title=spec.title,
        preprocessing=prepared_for(spec, module, weights),
        num_classes=num_classes,
        pretrained=spec.pretrained,
        class_names=categories if num_classes == len(categories) else (),
        notes=detector_notes(module) if is_detector else (),
        task=task,
    )


def _arguments(spec: ModelSpec, task: str) -> dict[str, Any]:
    if spec.pretrained:
        return _size_argument(spec) | {"weights": "DEFAULT"}
    if task in ("segmentation", "detection"):
        return {"weights_backbone": None}
    return _size_argument(spec) | _WITHOUT_AUXILIARY_HEADS.get(spec.name, {})


def _check_published(spec: ModelSpec, weights: WeightsEnum) -> None:
    expected = {"num_classes": len(weights.meta["categories"]), "in_chans": IMAGE_CHANNELS}
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


def _create(spec: ModelSpec, arguments: dict[str, Any], num_classes: int) -> nn.Module:
    try:
        with seeded_weights():
            module: nn.Module = torchvision.models.get_model(spec.name, num_classes=num_classes, **arguments)
            if spec.in_chans not in (None, IMAGE_CHANNELS):
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
    """Return the keyword argument of the architecture for its image size; empty for a size-free network."""
    if spec.img_size is None:
        return {}
    if spec.name.startswith("vit_"):
        return {"image_size": spec.img_size}
    return {"input_size": (spec.img_size, spec.img_size)} if spec.name.startswith("maxvit") else {}


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


def prepared_for(spec: ModelSpec, module: nn.Module, weights: WeightsEnum) -> Preprocessing:
    """Return the preprocessing of the published weights; without a crop of their own the input is a square."""
    if task_of(spec.name) == "detection":
        return detector_preprocessing(module, spec)
    transforms = weights.transforms()
    resize = transforms.resize_size[0]
    crop = getattr(transforms, "crop_size", (resize,))[0]
    side = spec.img_size or crop
    channels = spec.in_chans or IMAGE_CHANNELS
    return Preprocessing(
        input_shape=(channels, side, side),
        mean=channel_statistics(tuple(transforms.mean), channels),
        std=channel_statistics(tuple(transforms.std), channels),
        crop_pct=crop / resize,
        interpolation=transforms.interpolation.value,
    )
