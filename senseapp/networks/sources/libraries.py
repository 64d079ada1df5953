"""Classification networks of timm and torchvision, with published or seeded random weights."""

from __future__ import annotations

import socket
import urllib.request
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import timm
import torch
import torchvision
from huggingface_hub import constants as hub
from huggingface_hub import try_to_load_from_cache
from timm.data import ImageNetInfo, resolve_model_data_config
from timm.models import PretrainedCfg
from torch import nn
from torch.func import functional_call
from torchvision.models import WeightsEnum

from senseapp.compat.timm_internals import weights_from
from senseapp.compat.torch_internals import restored
from senseapp.core.errors import InvalidCheckpoint, InvalidSpec, UnknownModel, first_line_of
from senseapp.networks.loaded import LoadedModel, Preprocessing, seeded_weights
from senseapp.networks.sources.catalogue import unknown_model
from senseapp.networks.sources.detectors import detector_preprocessing, opened_detector
from senseapp.records.spec import ModelSpec

_CONNECT_SECONDS = 3.0


def is_reachable(url: str) -> bool:
    """Return whether the server of ``url`` responds; True behind a proxy, where only the request itself shows it.

    This comes first because the libraries' own calls retry for most of a minute before they fail.
    """
    address = urlsplit(url)
    if address.scheme in urllib.request.getproxies():
        return True
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def unavailable(title: str) -> InvalidCheckpoint:
    """Return the error, with the alternatives that work offline."""
    return InvalidCheckpoint(
        f"The published weights of {title} could not be downloaded, and they are not in this machine's cache. "
        "Upload a checkpoint of it, measure with random weights, or try the demo, which needs no network."
    )


MAX_IMAGE_SIDE = 2048


def check_side(side: int | None, *, title: str) -> None:
    """Raise InvalidSpec if images of ``side`` pixels would be too large to measure with."""
    if side is not None and side > MAX_IMAGE_SIDE:
        raise InvalidSpec(f"Images for {title} may have up to {MAX_IMAGE_SIDE} pixels a side, got {side}.")


def check_forward(module: nn.Module, input_shape: tuple[int, int, int], *, title: str) -> None:
    """Propagate shapes only, with weights and one image on torch's ``meta`` device.

    Raises:
        InvalidSpec: an operation rejects the shapes for images of ``input_shape`` (C, H, W).
    """
    on_meta = {
        name: tensor.to("meta")
        for tensors in (module.named_parameters(), module.named_buffers())
        for name, tensor in tensors
    }
    image = torch.empty((1, *input_shape), device="meta")
    try:
        # functional_call leaves parameters of a module that is used in two places (CoaT) on the meta device
        with torch.no_grad(), restored(module.modules()):
            functional_call(module, on_meta, (image,))
    except NotImplementedError:
        return  # an operation without a shape rule says nothing about the shapes
    except (RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
        channels, height, width = input_shape
        raise InvalidSpec(
            f"{title} does not take images of {height} × {width} pixels with {channels} channels. "
            "Leave the image size and the channels empty for the architecture's own."
        ) from error


def channel_statistics(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Return the mean (or std) of ``channels`` channels: ``values``, or their average for each."""
    if len(values) == channels:
        return values
    return (sum(values) / len(values),) * channels


_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_NUM_IMAGENET_CLASSES = 1000


def build_timm(spec: ModelSpec) -> LoadedModel:
    """Build a timm architecture with its published or with seeded random weights."""
    _check_name(spec.name)
    check_side(spec.img_size, title=spec.title)
    settings: dict[str, Any] = {"num_classes": spec.num_classes, "in_chans": spec.in_chans}
    if spec.img_size is not None:
        settings["img_size"] = spec.img_size
    notes: tuple[str, ...] = ()
    if spec.pretrained:
        published = _require_published(spec)
        settings |= _weights_source(spec, published)
        notes = _check_classes(spec, published.num_classes)
    module = _create_timm(spec, settings)
    num_classes = output_width(module)
    return LoadedModel(
        module=module,
        title=spec.title,
        preprocessing=_timm_preprocessing(spec, module),
        num_classes=num_classes,
        pretrained=spec.pretrained,
        class_names=imagenet_class_names() if num_classes == _NUM_IMAGENET_CLASSES else (),
        notes=notes,
    )


def _check_name(name: str) -> None:
    if not timm.is_model(name):
        raise unknown_model(name, library="timm")
    architecture, _, tag = name.partition(".")
    tags = timm.list_pretrained(f"{architecture}.*") if tag else []
    if tag and name not in tags:
        known = ", ".join(tags[:3]) or f"{architecture} without a tag"
        raise UnknownModel(f"timm has no weights named {name!r}. Choose {known}.")


def _require_published(spec: ModelSpec) -> PretrainedCfg:
    published: PretrainedCfg | None = timm.get_pretrained_cfg(spec.name)
    if published is None or not published.has_weights:
        raise InvalidSpec(
            f"No weights were published for {spec.title}. Upload a checkpoint, or measure with random weights."
        )
    return published


def _create_timm(spec: ModelSpec, settings: dict[str, Any]) -> nn.Module:
    """Create the module; a size-free network refuses ``img_size`` and is then built without it."""
    try:
        with seeded_weights():
            module: nn.Module = timm.create_model(spec.name, pretrained=spec.pretrained, **settings)
    except TypeError as error:
        if "img_size" in settings and "img_size" in str(error):
            return _create_timm(spec, {name: value for name, value in settings.items() if name != "img_size"})
        raise InvalidSpec(f"{spec.title} cannot be built with these settings ({first_line_of(error)}).") from error
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        if spec.pretrained and isinstance(error, (OSError, RuntimeError)):
            raise unavailable(spec.title) from error
        raise InvalidSpec(
            f"{spec.title} cannot be built with image size {spec.img_size}, {spec.in_chans} channels and "
            f"{spec.num_classes} classes ({first_line_of(error)}). "
            "Leave them empty for the architecture's own."
        ) from error
    return module


def _check_classes(spec: ModelSpec, published_classes: int) -> tuple[str, ...]:
    """Refuse to discard a trained head; a network published without one gets a random one, and a note."""
    if spec.num_classes in (None, published_classes):
        return ()
    if published_classes == 0:
        return (f"{spec.title} is published without a classifier: its head has random weights.",)
    raise InvalidSpec(
        f"The published weights of {spec.title} have {published_classes} classes; {spec.num_classes} would leave its "
        "head untrained. Leave the number of classes empty, or upload a checkpoint trained for yours."
    )


def _weights_source(spec: ModelSpec, published: PretrainedCfg) -> dict[str, Any]:
    """Return the arguments for timm, which make it read its cache if the server cannot be reached.

    Raises:
        InvalidCheckpoint: neither the server nor the cache has the file.
    """
    if is_reachable(hub.ENDPOINT if published.hf_hub_id else str(published.url)):
        return {}
    names = (published.hf_hub_filename,) if published.hf_hub_filename else _WEIGHT_FILES
    for name in names:
        path = try_to_load_from_cache(published.hf_hub_id, name) if published.hf_hub_id else None
        if isinstance(path, str):
            return weights_from(path)
    raise unavailable(spec.title)


def _timm_preprocessing(spec: ModelSpec, module: nn.Module) -> Preprocessing:
    config = input_configuration(module)
    channels, height, width = config["input_size"]
    channels = spec.in_chans or channels
    if spec.img_size is not None:
        height = width = spec.img_size
    interpolation = config["interpolation"]
    return Preprocessing(
        input_shape=(channels, height, width),
        mean=channel_statistics(tuple(config["mean"]), channels),
        std=channel_statistics(tuple(config["std"]), channels),
        crop_pct=config["crop_pct"],
        interpolation=interpolation if interpolation in ("bilinear", "bicubic", "nearest") else "bilinear",
    )


def input_configuration(module: nn.Module) -> dict[str, Any]:
    """Return timm's image configuration of a network it built: ``input_size`` (C, H, W), ``mean``, ``std``, …."""
    configuration: dict[str, Any] = resolve_model_data_config(module)  # type: ignore[no-untyped-call]
    return configuration


def output_width(module: nn.Module) -> int:
    """Return the number of classes of a network that timm built; 0 if it returns features."""
    return int(module.num_classes)  # type: ignore[arg-type]


def imagenet_class_names() -> tuple[str, ...]:
    """Return the names of the 1,000 ImageNet classes, in the order of the outputs."""
    described = ImageNetInfo()
    return tuple(described.index_to_description(index) for index in range(_NUM_IMAGENET_CLASSES))


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


@cache
def detector_names() -> tuple[str, ...]:
    """Return the names of torchvision's detectors, sorted."""
    return tuple(sorted(torchvision.models.list_models(module=torchvision.models.detection)))


def build_torchvision(spec: ModelSpec) -> LoadedModel:
    """Build a torchvision architecture with its published or with seeded random weights."""
    if spec.name not in (*torchvision_names(), *detector_names()):
        raise unknown_model(spec.name, library="torchvision")
    check_side(spec.img_size, title=spec.title)
    weights = torchvision.models.get_model_weights(spec.name).DEFAULT
    categories = tuple(weights.meta["categories"])
    num_classes = spec.num_classes or len(categories)
    if spec.pretrained:
        _check_published(spec, weights)
    module = _create_torchvision(spec, weights, num_classes)
    if spec.name in detector_names():
        module = opened_detector(module)
    return LoadedModel(
        module=module,
        title=spec.title,
        preprocessing=(
            detector_preprocessing(module, spec)
            if spec.name in detector_names()
            else _torchvision_preprocessing(spec, weights)
        ),
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


def _create_torchvision(spec: ModelSpec, weights: WeightsEnum, num_classes: int) -> nn.Module:
    arguments: dict[str, Any] = _size_argument(spec)
    arguments |= {"weights": "DEFAULT"} if spec.pretrained else _WITHOUT_AUXILIARY_HEADS.get(spec.name, {})
    if spec.name in detector_names() and not spec.pretrained:
        arguments |= {"weights_backbone": None}
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
    """Return the keyword argument of the architecture for its image size; empty for a size-free network."""
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


def _torchvision_preprocessing(spec: ModelSpec, weights: WeightsEnum) -> Preprocessing:
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


@lru_cache(maxsize=8)
def architecture_shapes(library: str, name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an architecture's state dict, by name, as its library builds it."""
    return {key: tuple(tensor.shape) for key, tensor in build_on_meta(library, name).state_dict().items()}


def build_on_meta(library: str, name: str, **overrides: int) -> nn.Module:
    """Build an architecture on torch's ``meta`` device: its weights have shapes, but no storage."""
    try:
        with torch.device("meta"):
            return _build(library, name, overrides)
    except (RuntimeError, InvalidSpec) as error:
        if "meta tensor" not in str(error):
            raise
        return _build(library, name, overrides).to("meta")  # it computes its widths with tensors, like RegNet


def _build(library: str, name: str, overrides: dict[str, int]) -> nn.Module:
    if library == "timm":
        module: nn.Module = timm.create_model(name, **overrides)  # type: ignore[arg-type]
    else:
        spec = replace(ModelSpec(library="torchvision", name=name), **overrides)  # type: ignore[arg-type]
        module = build_torchvision(spec).module
    return module.eval()
