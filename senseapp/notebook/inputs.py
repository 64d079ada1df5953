"""What a notebook hands over: a network whose layers can be reached, and one batch of what it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidDataset, UnsupportedModel
from senseapp.networks.trace import tensors_in

_IMAGE_DIMENSIONS = 3


def require_reachable(model: Any) -> None:
    """Check that the layers of ``model`` can be changed and watched.

    Raises:
        UnsupportedModel: it is no module, has no parameters, or is compiled to one piece.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModel(
            "The model is a TorchScript module: its layers are compiled into one graph and cannot be changed one by "
            "one. Give the nn.Module that it was scripted or traced from."
        )
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(
            f"The model must be a torch.nn.Module, got {type(model).__name__}. Give the network itself; an exported "
            "program or a function has no layers to change."
        )
    if next(model.parameters(), None) is None:
        raise UnsupportedModel("The model has no parameters, so there is nothing to compress.")


def batch_of(model: nn.Module, sample: Any, what: str = "sample") -> Any:
    """Return ``sample`` as the model is called with it: one tensor where there is only one.

    A list of images, (C, H, W) each, becomes a batch; so does a dict or tuple that holds one tensor for the first
    argument.

    Raises:
        InvalidDataset: it holds no tensor, or images of several sizes.
    """
    if isinstance(sample, list) and sample and all(_is_image(item) for item in sample):
        shapes = sorted({tuple(item.shape) for item in sample})
        if len(shapes) > 1:
            raise InvalidDataset(
                f"The images in {what} have several shapes ({', '.join(map(str, shapes[:3]))}), so they make no batch. "
                "Resize them to one shape, or give one tensor of shape (N, C, H, W)."
            )
        return torch.stack(sample)
    if next(tensors_in(sample), None) is None:
        raise InvalidDataset(
            f"{what} holds no tensor, got {type(sample).__name__}. Give a tensor of shape (N, C, H, W), or a tuple or "
            "dict of the tensors that the model is called with."
        )
    if isinstance(sample, (tuple, list)) and len(sample) == 1:
        return sample[0]
    if isinstance(sample, Mapping) and len(sample) == 1:
        ((name, value),) = sample.items()
        first = next(iter(inspect.signature(model.forward).parameters), None)
        return value if name == first else sample
    return sample


def _is_image(item: Any) -> bool:
    return isinstance(item, Tensor) and item.dim() == _IMAGE_DIMENSIONS


def raised_inside(model: nn.Module, error: BaseException) -> bool:
    """Tell whether ``error`` was raised by the network, not by the code that calls it."""
    modules, traceback = {id(module) for module in model.modules()}, error.__traceback__
    while traceback is not None:
        if id(traceback.tb_frame.f_locals.get("self")) in modules:
            return True
        traceback = traceback.tb_next
    return False
