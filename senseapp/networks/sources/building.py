"""Requirements to build a network of any library: a reachable server, accepted image sizes."""

from __future__ import annotations

import socket
import urllib.request
from urllib.parse import urlsplit

import torch
from torch import nn

from senseapp.compat.torch_internals import restored
from senseapp.core.errors import InvalidCheckpoint, InvalidSpec, is_about_memory


def is_reachable(url: str) -> bool:
    """Return whether the server of ``url`` responds; True behind a proxy, where only the request itself shows it.

    This comes first because the libraries' own calls retry for most of a minute before they fail.
    """
    address = urlsplit(url)
    if address.scheme in urllib.request.getproxies():
        return True
    try:
        # a server that is reachable accepts well within; a page waits
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=3.0):
            return True
    except OSError:
        return False


def unavailable(title: str) -> InvalidCheckpoint:
    """Return the error, with the alternatives that work offline."""
    return InvalidCheckpoint(
        f"The published weights of {title} could not be downloaded, and they are not in this machine's cache. "
        "Upload a checkpoint of it, measure with random weights, or try the demo, which needs no network."
    )


MAX_IMAGE_SIDE = 2048  # pixels: the first feature map of ResNet-50 then has 64 × 1024² numbers, 268 MB for one image
IMAGE_CHANNELS = 3  # of networks whose library builds them for pictures


def check_side(side: int | None, *, title: str) -> None:
    """Raise InvalidSpec if images of ``side`` pixels would be too large to measure with."""
    if side is not None and side > MAX_IMAGE_SIDE:
        raise InvalidSpec(f"Images for {title} may have up to {MAX_IMAGE_SIDE} pixels a side, got {side}.")


def check_forward(module: nn.Module, input_shape: tuple[int, int, int], *, title: str) -> None:
    """Run one pass of ``module``, which is in ``eval()`` mode, on an empty image.

    A pass of shapes alone, on torch's ``meta`` device, loads torch's compiler: 1.5 s and 150 MB.

    Raises:
        InvalidSpec: an operation rejects the shapes for images of ``input_shape`` (C, H, W).
    """
    try:
        with torch.inference_mode(), restored(module.modules()):
            module(torch.zeros(1, *input_shape))
    except (RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
        if is_about_memory(error):
            raise
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
