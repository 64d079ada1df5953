"""Inputs of a notebook: a network, one batch of its arguments, and settings in fasterai's words."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compressions.base import COLUMN, DEPTH, GROUP, INPUT, OUTPUT, ROW
from senseapp.core.errors import InvalidCheckpoint, InvalidDataset, InvalidSpec, UnsupportedModel
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.onnx import open as onnx_files
from senseapp.networks.onnx.modules import ImageInput
from senseapp.networks.onnx.upload import read_file
from senseapp.records.profile import LayerProfile

Criteria = str | Callable[..., Any]
"""A name, an object of fasterai's class Criteria, or a function from a weight to the importance of each number."""

_CRITERIA = {
    "large_final": "magnitude",
    "squared_final": "squared_magnitude",
    "abs": "magnitude",  # functions, by name
    "square": "squared_magnitude",
    "randn_like": "random",
}


def open_onnx(
    path: str | Path, *, outputs: Sequence[str] | None = None, size: tuple[int, int] | None = None
) -> onnx_files.OpenedOnnx:
    """Return the network of an ONNX file; its ``network`` is a module for :func:`analyze_sensitivity`.

    It is called on what the file declares; if that is several images at a time, it takes any number of them. ``path``
    is that of one file, or of a folder or zip of one and the files with its weights. ``outputs`` are names of values to
    return, ``size`` is height and width where the file leaves them free; the usual ones if None.

    Raises InvalidCheckpoint if the file cannot be read, and what :func:`senseapp.networks.onnx.open.open_onnx` raises.
    """
    try:
        content = read_file(Path(path))
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}. Check the path.") from error
    opened = onnx_files.open_onnx(content, outputs=outputs, size=size)
    if opened.batch is not None and len(opened.input_shape) == 4 and not opened.other_inputs:
        opened.network.images = ImageInput(dtype=opened.input_dtype, batch=opened.batch)
    return opened


_OUTPUTS = (GROUP, OUTPUT)
_SPANNED: dict[str, tuple[int, ...]] = {
    "shared_weight": _OUTPUTS,
    "channel": (INPUT,),
    "shared_channel": (*_OUTPUTS, INPUT),
    "shared_column": (*_OUTPUTS, ROW),
    "shared_row": (*_OUTPUTS, COLUMN),
    "vertical_slice": (INPUT, ROW),
    "horizontal_slice": (INPUT, COLUMN),
    "shared_vertical_slice": (*_OUTPUTS, INPUT, ROW),
    "shared_horizontal_slice": (*_OUTPUTS, INPUT, COLUMN),
    "shared_kernel": (*_OUTPUTS, DEPTH, ROW, COLUMN),
    "layer": (*_OUTPUTS, INPUT, DEPTH, ROW, COLUMN),
}
_SPANNED_IN_MATRICES: dict[str, tuple[int, ...]] = {"column": _OUTPUTS, "row": (INPUT,)}


def spanned(granularity: str) -> Callable[[LayerProfile], tuple[int, ...] | None]:
    """Return, for a layer, the axes along which fasterai zeroes weights together; None where ours of the name does."""

    def axes(layer: LayerProfile) -> tuple[int, ...] | None:
        matrix = len(layer.weight_shape) <= 3  # of a weight (O, I, K), or two
        return (_SPANNED_IN_MATRICES.get(granularity) if matrix else None) or _SPANNED.get(granularity)

    return axes


def usual_granularity(granularity: str) -> str:
    """Return the name of a granularity that settings know, for what :func:`spanned` does not answer."""
    return "weight" if granularity in _SPANNED else granularity


def criterion_of(criteria: Criteria) -> tuple[str, Callable[[Tensor], Tensor] | None]:
    """Return the criterion's name in the settings, and a function of weights if it is none of the known ones.

    An object of fasterai scores with its ``f``, against the weights at the start, which are those of now; one that
    looks at data scores as Wanda does.
    """
    if isinstance(criteria, str):
        return _CRITERIA.get(criteria, criteria), None
    score = getattr(criteria, "f", criteria)
    if not callable(score):
        raise InvalidSpec(
            f"criteria must be a name, fasterai's object, or a function of a weight; got {type(criteria).__name__}."
        )
    if getattr(criteria, "needs_data", False):
        return "wanda", None
    combine = getattr(criteria, "output_fn", None)
    named = _CRITERIA.get(getattr(score, "__name__", ""))
    if named and combine is None:
        return named, None
    return "magnitude", lambda weight: combine(score(weight), score(weight)) if combine else score(weight)


def require_reachable(model: Any) -> None:
    """Check that the layers of ``model`` can be changed and watched.

    Raises UnsupportedModel if it is no module, has no parameters, or is compiled to one piece.
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

    Raises InvalidDataset if it holds no tensor, or images of several sizes.
    """
    if isinstance(sample, list) and sample and all(isinstance(each, Tensor) and each.dim() == 3 for each in sample):
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
        return value if name == next(iter(inspect.signature(model.forward).parameters), None) else sample
    return sample


def raised_inside(model: nn.Module, error: BaseException) -> bool:
    """Return whether ``error`` was raised by the network, not by the code that calls it."""
    modules, traceback = {id(module) for module in model.modules()}, error.__traceback__
    while traceback is not None:
        if id(traceback.tb_frame.f_locals.get("self")) in modules:
            return True
        traceback = traceback.tb_next
    return False
