"""Whether a network takes images of a given shape, found out without computing anything."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from senseapp.errors import InvalidSpec

MAX_IMAGE_SIDE = 2048


def check_side(side: int | None, *, title: str) -> None:
    """Raise InvalidSpec if images of ``side`` pixels would be too large to measure with."""
    if side is not None and side > MAX_IMAGE_SIDE:
        raise InvalidSpec(f"Images for {title} may have up to {MAX_IMAGE_SIDE} pixels a side, got {side}.")


def check_forward(module: nn.Module, input_shape: tuple[int, int, int], *, title: str) -> None:
    """Run the network's shapes, not its numbers: weights and one image on torch's ``meta`` device.

    Raises:
        InvalidSpec: an operation refuses the shapes that images of ``input_shape`` (C, H, W) lead to.
    """
    on_meta = {
        name: tensor.to("meta")
        for tensors in (module.named_parameters(), module.named_buffers())
        for name, tensor in tensors
    }
    image = torch.empty((1, *input_shape), device="meta")
    try:
        with torch.no_grad():
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
    """Return the mean (or std) for ``channels`` channels: as given, or the average over the given ones for each."""
    if len(values) == channels:
        return values
    return (sum(values) / len(values),) * channels
