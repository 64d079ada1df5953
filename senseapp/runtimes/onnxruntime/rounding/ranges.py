"""Ranges of tensors in a float ONNX network, on calibration images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper
from torch import Tensor

from senseapp.compressions.quantization import ActivationObserver
from senseapp.compressions.quantization.activations import OBSERVERS
from senseapp.compressions.quantization.grid import affine_of, extremes_of, fake_quantize_input
from senseapp.core.steps import Trying
from senseapp.records.deployment import INT8_BITS
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel

Range = tuple[float, float]
AT_ONCE = 8  # images whose tensors are held
_WIDER = tuple(1 + step / 1024 for step in range(17))  # upper ends of a range of pixels: up to 1.6 % farther
_PIXELS = 2**18  # of all images, that they are compared on


def ranges(
    network: bytes,
    batches: Sequence[Tensor],
    tensors: Sequence[str],
    observers: Sequence[ActivationObserver],
    *,
    trying: Trying = lambda _improvement: nullcontext(),
) -> dict[ActivationObserver, dict[str, Range]]:
    """Return the range of each of ``tensors`` by each of ``observers``, without those of integers or not finite.

    An observer that fails is left out where ``trying`` takes its error.
    """
    generator = torch.Generator().manual_seed(0)
    watching = {name: {tensor: OBSERVERS[name]() for tensor in tensors} for name in observers}
    for values in tensors_of(network, batches, tensors):
        for tensor, output in values.items():
            if not output.is_floating_point():
                continue
            flat = output.reshape(-1)
            most = 4096 * len(output)  # of a tensor for each image, that ranges are taken from
            if len(flat) > most:
                flat = flat[torch.randint(len(flat), (most,), generator=generator)]
            for name in observers:
                watching[name][tensor].update(output if name == "minmax" else flat)
    rounding = partial(fake_quantize_input, bits=INT8_BITS)
    found: dict[ActivationObserver, dict[str, Range]] = {}
    for name, each in watching.items():
        with trying(f"ranges of activations by the observer {name}"):
            ends = {tensor: observer.value_range(rounding) for tensor, observer in each.items()}
            found[name] = {tensor: both for tensor, both in ends.items() if both}
    return found


def range_of_pixels(batches: Sequence[Tensor]) -> Range:
    """Return the range of a network's input that rounds ``batches`` best of those that clip none of their values.

    Clipping bright pixels would suit dark pictures only. Pixels have 256 values, and where these become -1 to 1, each
    lies in the middle between two steps of that range: the squared error is three times that of a range .4 % wider.
    """
    values = torch.cat([batch.reshape(-1) for batch in batches])
    low, high = extremes_of(values)
    values = values[torch.randint(len(values), (_PIXELS,), generator=torch.Generator().manual_seed(0))]

    def squared_error(upper: float) -> float:
        return float((fake_quantize_input(values, low, upper, bits=INT8_BITS) - values).square().mean())

    return low, min((high * wider for wider in _WIDER), key=squared_error)


def tensors_of(network: bytes, batches: Sequence[Tensor], wanted: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Yield what ``wanted`` tensors of ``network`` are on a few images after the other."""
    model = onnx.load_from_string(network)
    own_input, shown = model.graph.input[0].name, {each.name for each in model.graph.output}
    model.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in wanted if name not in {own_input, *shown}
    )
    opened = RuntimeModel(model.SerializeToString())
    for batch in batches:
        for part in torch.split(batch, opened.fixed_batch or AT_ONCE):
            found = opened.tensors(part)
            yield {name: part if name == own_input else found[name] for name in wanted}


def activation_grid(low: float, high: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return zero point and scale of a range of activations in 8 bits; 0 and 1 of a range of zeros alone."""
    scale, zero_point = affine_of(low, high, bits=INT8_BITS) if low or high else (1.0, 0)
    return np.array(zero_point, np.uint8), np.array(scale, np.float32)
