"""What the index holds about one architecture, found out on torch's ``meta`` device: no memory, no arithmetic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from senseapp.networks.profile import compressible_weights
from senseapp.networks.sources.libraries import build_on_meta, input_configuration, output_width
from senseapp.networks.sources.torchvision_networks import prepared_for, task_of
from senseapp.records.spec import ModelSpec

OTHER_CLASSES = 1013
OTHER_CHANNELS = 5
_IMAGENET_CLASSES = 1000

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One architecture as its library builds it, and once more with other classes, channels and image size.

    Attributes:
        shapes: of the state dict, by name.
        other_shapes: the same with ``OTHER_CLASSES`` and, where they can be chosen, ``OTHER_CHANNELS`` and
            ``other_size``.
        shape_classes: number of classes behind ``shapes``; 1,000 where the architecture has none of its own.
        other_size: side of the image behind ``other_shapes``; ``input_shape``'s own where it cannot be chosen.
    """

    library: str
    name: str
    num_params: int
    macs: int | None
    input_shape: tuple[int, int, int]
    num_layers: int
    num_classes: int
    pretrained: bool
    shapes: Shapes
    other_shapes: Shapes
    shape_classes: int
    other_size: int
    task: str = "classification"


def survey_architecture(library: str, name: str) -> Survey:
    """Build the architecture twice on the ``meta`` device and run one image through it."""
    module = build_on_meta(library, name)
    config = _config(library, name, module)
    shapes = _shapes(module)
    shape_classes = config["num_classes"]
    num_params = sum(parameter.numel() for parameter in module.parameters())
    num_layers = sum(1 for _ in compressible_weights(module))
    macs = count_macs(module, config["input_shape"])
    if shape_classes == 0:
        shape_classes = _IMAGENET_CLASSES
        shapes = _shapes(build_on_meta(library, name, num_classes=shape_classes))
    other_shapes, other_size = _build_other(library, name, config["input_shape"][-1])
    return Survey(
        library=library,
        name=name,
        num_params=num_params,
        macs=macs,
        num_layers=num_layers,
        shapes=shapes,
        other_shapes=other_shapes,
        shape_classes=shape_classes,
        other_size=other_size,
        **config,
    )


def _build_other(library: str, name: str, side: int) -> tuple[Shapes, int]:
    """Return the shapes with everything chosen differently that can be, and the image side behind them."""
    attempts: tuple[dict[str, int], ...] = (
        {"num_classes": OTHER_CLASSES, "in_chans": OTHER_CHANNELS, "img_size": 2 * side},
        {"num_classes": OTHER_CLASSES, "in_chans": OTHER_CHANNELS},
        {"num_classes": OTHER_CLASSES},
    )
    for attempt in attempts:
        with contextlib.suppress(TypeError, ValueError, RuntimeError, AssertionError):
            return _shapes(build_on_meta(library, name, **attempt)), attempt.get("img_size", side)
    raise RuntimeError(f"{library}/{name} does not take another number of classes.")


def _shapes(module: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _config(library: str, name: str, module: nn.Module) -> dict[str, Any]:
    if library == "timm":
        published = timm.get_pretrained_cfg(name)
        return {
            "input_shape": tuple(input_configuration(module)["input_size"]),
            "num_classes": output_width(module),
            "pretrained": published is not None and bool(published.has_weights),
        }
    weights = torchvision.models.get_model_weights(name).DEFAULT
    return {
        "input_shape": prepared_for(ModelSpec(library=library, name=name), module, weights).input_shape,
        "num_classes": len(weights.meta["categories"]),
        "pretrained": True,
        "task": task_of(name),
    }


def count_macs(module: nn.Module, input_shape: tuple[int, int, int]) -> int | None:
    """Return half of what torch's own counter finds in one image; None if the architecture cannot run on ``meta``.

    Source: ``torch.utils.flop_counter``, which counts a multiply-accumulate as two operations.
    """
    module.requires_grad_(False)  # the counter hooks what has gradients, and trips over tokens that are parameters
    counter = FlopCounterMode(display=False)
    try:
        with torch.no_grad(), plain_attention(), counter:
            module(torch.empty((1, *input_shape), device="meta"))
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError):
        return None
    return counter.get_total_flops() // 2


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Turn off the fused kernel of ``nn.MultiheadAttention``, which has no shape rule."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
