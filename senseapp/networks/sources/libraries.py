"""Classification networks of timm, with published or seeded random weights, and networks without numbers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import timm
import torch
from huggingface_hub import constants as hub
from huggingface_hub import try_to_load_from_cache
from timm.data import ImageNetInfo, resolve_model_data_config
from timm.models import PretrainedCfg
from torch import nn

from senseapp.compat.vision_internals import weights_from
from senseapp.core.errors import InvalidSpec, UnknownModel, first_line_of
from senseapp.networks.loaded import (
    LoadedModel,
    Preprocessing,
    channel_statistics,
    check_side,
    is_reachable,
    seeded_weights,
    unavailable,
)
from senseapp.networks.sources.catalogue import IMAGENET_CLASSES, unknown_model
from senseapp.networks.sources.torchvision_networks import build_torchvision
from senseapp.records.spec import ModelSpec

_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def build_timm(spec: ModelSpec, arguments: Mapping[str, Any] | None = None) -> LoadedModel:
    """Build a timm architecture with its published or with seeded random weights.

    ``arguments`` are others of ``timm.create_model``; sizes in ``spec`` go before them.
    """
    _check_name(spec.name)
    check_side(spec.img_size, title=spec.title)
    given = {"num_classes": spec.num_classes, "in_chans": spec.in_chans}
    settings: dict[str, Any] = dict(arguments or {})
    settings |= {name: value for name, value in given.items() if value is not None}
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
        class_names=imagenet_class_names() if num_classes == IMAGENET_CLASSES else (),
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
            f"No weights were published for {spec.title}. Upload weights of it, or measure with random weights."
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
    """Return the arguments for timm, which reads its cache if the server cannot be reached; else InvalidCheckpoint."""
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
    return tuple(described.index_to_description(index) for index in range(IMAGENET_CLASSES))


def build_on_meta(library: str, name: str, **overrides: Any) -> nn.Module:
    """Build an architecture on torch's ``meta`` device: its weights have shapes, but no storage."""
    try:
        with torch.device("meta"):
            return _build(library, name, overrides)
    except (RuntimeError, InvalidSpec) as error:
        if "meta tensor" not in str(error):
            raise
        return _build(library, name, overrides).to("meta")  # it computes its widths with tensors, like RegNet


def _build(library: str, name: str, overrides: dict[str, Any]) -> nn.Module:
    if library == "timm":
        module: nn.Module = timm.create_model(name, **overrides)
    else:
        module = build_torchvision(replace(ModelSpec(library="torchvision", name=name), **overrides)).module
    return module.eval()
