"""Ranges of tensors in a float ONNX network, on calibration images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper
from torch import Tensor

from senseapp.compressions.quantization import ActivationObserver
from senseapp.compressions.quantization.activations import OBSERVERS, MinMaxObserver
from senseapp.compressions.quantization.grid import affine_of, fake_quantize_input
from senseapp.records.deployment import INT8_BITS
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel

Range = tuple[float, float]
TensorReader = Callable[[bytes, Sequence[Tensor], Sequence[str]], Iterator[dict[str, Tensor]]]
"""Runs a file on batches, and yields what tensors of these names are on a few images after the other."""
AT_ONCE = 8  # images whose tensors are held


def ranges(
    network: bytes, batches: Sequence[Tensor], tensors: Sequence[str], observer: ActivationObserver
) -> dict[str, Range]:
    """Return the range of each of ``tensors`` by an observer, without those of integers or not finite."""
    images = onnx.load_from_string(network).graph.input[0].name
    return observed_ranges(tensors_of(network, batches, tensors), observer, images=images)


def observed_ranges(
    read: Iterable[Mapping[str, Tensor]], observer: ActivationObserver, *, images: str
) -> dict[str, Range]:
    """Return the range of each tensor that is ``read`` by an observer, without those of integers or not finite.

    That of ``images`` clips none of their values: clipping bright pixels would suit dark pictures only.
    """
    generator, watching = torch.Generator().manual_seed(0), dict[str, MinMaxObserver]()
    for values in read:
        for tensor, output in values.items():
            if not output.is_floating_point():
                continue
            most = 4096 * len(output)  # of a tensor for each image, that ranges are taken from
            if observer != "minmax" and tensor != images and output.numel() > most:
                output = output.reshape(-1)[torch.randint(output.numel(), (most,), generator=generator)]
            watching.setdefault(tensor, OBSERVERS[observer]()).update(output)
    rounding = partial(fake_quantize_input, bits=INT8_BITS)
    ends = {
        tensor: each.extremes if tensor == images else each.value_range(rounding) for tensor, each in watching.items()
    }
    return {tensor: both for tensor, both in ends.items() if both}


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
