"""Batch axes of the tensors that modules take and return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.networks.network import images_per_pass
from senseapp.networks.trace import tensors_in, wrapped_forwards

Shape = tuple[int, ...]


class NotPerImage(Exception):
    """The shapes inside a model do not scale with the number of images along one axis each at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAxes:
    """The batch axes of one module call's tensors; None for a tensor of the same shape for any batch."""

    module: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


def batch_axes(model: nn.Module, image: Tensor) -> tuple[CallAxes, ...]:
    """Return the batch axes of every module call, in order of their starts, for one image (1, C, H, W).

    Passes over two and over four images are compared: code may treat a single image differently (``squeeze``).

    Raises:
        NotPerImage: the calls or their shapes depend on the number of images in another way.
    """
    if (fixed := images_per_pass(model)) is not None:
        raise NotPerImage(f"each pass computes {fixed} images")
    two, four = (_shapes(model, torch.cat([image] * count)) for count in (2, 4))
    if [module for module, *_ in two] != [module for module, *_ in four]:
        raise NotPerImage("the number of images decides which modules are called")
    return tuple(
        CallAxes(module=module, inputs=_axes(few[0], many[0], module), outputs=_axes(few[1], many[1], module))
        for (module, *few), (_, *many) in zip(two, four, strict=True)
    )


def _shapes(model: nn.Module, images: Tensor) -> list[tuple[str, list[Shape], list[Shape]]]:
    calls: list[tuple[str, list[Shape], list[Shape]]] = []

    def wrap(name: str, _module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            outputs: list[Shape] = []
            calls.append((name, [tuple(tensor.shape) for tensor in tensors_in((args, kwargs))], outputs))
            output = forward(*args, **kwargs)
            outputs += [tuple(tensor.shape) for tensor in tensors_in(output)]
            return output

        return noted

    with wrapped_forwards(model, wrap):
        model(images)
    return calls


def _axes(few: list[Shape], many: list[Shape], module: str) -> tuple[int | None, ...]:
    if len(few) != len(many):
        raise NotPerImage(f"{module or 'the model'} exchanges other tensors for another number of images")
    return tuple(_axis(*pair, module) for pair in zip(few, many, strict=True))


def _axis(few: Shape, many: Shape, module: str) -> int | None:
    if few == many:
        return None
    if len(few) == len(many):
        longer = [axis for axis, lengths in enumerate(zip(few, many, strict=True)) if lengths[0] != lengths[1]]
        if len(longer) == 1 and many[longer[0]] == 2 * few[longer[0]]:
            return longer[0]
    raise NotPerImage(f"a tensor of {module or 'the model'} has shape {few} for two images and {many} for four")
