"""What the index holds about one architecture, found out on torch's ``meta`` device: no memory, no arithmetic."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from senseapp.errors import InvalidSpec
from senseapp.layers import compressible_weights
from senseapp.models.timm_library import input_configuration, output_width
from senseapp.models.torchvision_library import build_torchvision
from senseapp.spec import ModelSpec

__all__ = ["OTHER_CHANNELS", "OTHER_CLASSES", "Survey", "build_on_meta", "survey_architecture"]

OTHER_CLASSES = 1013
OTHER_CHANNELS = 5
_IMAGENET_CLASSES = 1000
_CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
_TRANSPOSED = {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}

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


def survey_architecture(library: str, name: str) -> Survey:
    """Build the architecture twice on the ``meta`` device and run one image through it."""
    module = build_on_meta(library, name)
    config = _config(library, name, module)
    shapes = _shapes(module)
    shape_classes = config["num_classes"]
    num_params = sum(parameter.numel() for parameter in module.parameters())
    num_layers = sum(1 for _ in compressible_weights(module))
    macs = _count_macs(module, config["input_shape"])
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


def build_on_meta(library: str, name: str, **overrides: int) -> nn.Module:
    """Build an architecture with random weights that take no memory."""
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
        spec = dataclasses.replace(ModelSpec(library="torchvision", name=name), **overrides)  # type: ignore[arg-type]
        module = build_torchvision(spec).module
    return module.eval()


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
    crop = weights.transforms().crop_size[0]
    return {"input_shape": (3, crop, crop), "num_classes": len(weights.meta["categories"]), "pretrained": True}


def _count_macs(module: nn.Module, input_shape: tuple[int, int, int]) -> int | None:
    counter = _MacCounter()
    try:
        with torch.no_grad(), _plain_attention(), counter:
            module(torch.empty((1, *input_shape), device="meta"))
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError):
        return None
    return counter.macs


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Turn off the fused kernel of ``nn.MultiheadAttention``, which has no shape rule."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _MacCounter(TorchFunctionMode):
    """Adds up positions times weight size over all convolutions and linear maps, also those called as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func in _CONVOLUTIONS or func in _TRANSPOSED:
            weight = _argument(args, kwargs, 1, "weight")
            counted = _argument(args, kwargs, 0, "input") if func in _TRANSPOSED else output
            self.macs += counted.numel() // weight.shape[0] * weight.numel()
        elif func is F.linear:
            weight = _argument(args, kwargs, 1, "weight")
            self.macs += output.numel() // weight.shape[0] * weight.numel()
        elif func is F.multi_head_attention_forward:
            query = _argument(args, kwargs, 0, "query")
            positions = query.numel() // query.shape[-1]
            weights = (_argument(args, kwargs, 5, "in_proj_weight"), _argument(args, kwargs, 11, "out_proj_weight"))
            self.macs += positions * sum(math.prod(weight.shape) for weight in weights)
        return output


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Tensor:
    value: Tensor = args[position] if len(args) > position else kwargs[name]
    return value
