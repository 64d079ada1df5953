"""Ranges of tensors in a float ONNX network, on calibration images, and why rounding to them harms.

Causes are one scale for values of unlike ranges, and calibration images that are few or of another domain. The remedy
of the first is to leave the part in float. Activations of 16 bits are none: onnxruntime 1.32 has no integer kernels for
them on processors and computes in float between roundings.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import NodeProto, helper
from torch import Tensor

from senseapp.compressions.quantization import ActivationObserver
from senseapp.compressions.quantization.activations import OBSERVERS, MinMaxObserver
from senseapp.compressions.quantization.grid import affine_of, fake_quantize_input
from senseapp.core.texts import plural
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.records.deployment import INT8_BITS
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.runtimes.quantizers import RoundingCause

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
            found = opened.arrays(opened.output_names, part)
            yield {name: part if name == own_input else torch.from_numpy(found[name]) for name in wanted}


def activation_grid(low: float, high: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return zero point and scale of a range of activations in 8 bits; 0 and 1 of a range of zeros alone."""
    scale, zero_point = affine_of(low, high, bits=INT8_BITS) if low or high else (1.0, 0)
    return np.array(zero_point, np.uint8), np.array(scale, np.float32)


_CURVED = {"Sigmoid": 0.25, "Softmax": 0.25, "HardSigmoid": 0.2, "Tanh": 1.0, "Exp": 1.0}
"""Operators by the most that a step of their input moves their output, for each unit."""
_FEW_STEPS = 4  # that the values of a channel span
_FEW = 32  # images: the loss of files calibrated on draws of fewer depended on the draw
_NOTABLE, _UNLIKE = 0.01, 5.0  # of the values that are clipped; times as many as of the calibration images


def causes(
    network: bytes, ranges: Mapping[str, Range], batches: Sequence[Tensor], nodes: Collection[str] | None = None
) -> list[RoundingCause]:
    """Return what speaks against rounding the tensors that ``nodes`` read and make, what is lost most first.

    ``ranges`` are of the tensors that are rounded; of ``batches`` two images are looked at.
    """
    steps = {name: float(activation_grid(*ends)[1]) for name, ends in ranges.items()}
    looked_at = [node for node in OnnxGraph(network).nodes if nodes is None or node.name in nodes]
    wanted = sorted({node.output[0] for node in looked_at} & steps.keys())
    # enough to see whole parts lost; all tensors of both images are held
    values = next(iter(tensors_of(network, [batches[0][:2]], wanted))) if wanted else {}
    found = (each for node in looked_at for each in (_of_curve(node, steps), _of_channels(node, values, steps)))
    worst = {cause.tensor: cause for cause in sorted(filter(None, found), key=lambda each: each.lost)}
    return sorted(worst.values(), key=lambda each: -each.lost)


def _of_curve(node: NodeProto, steps: Mapping[str, float]) -> RoundingCause | None:
    """Return a cause where one step of the input moves the output, between 0 and 1, by more than .05."""
    tensor = next(iter(node.input), "")
    move = _CURVED.get(node.op_type, 0) * steps.get(tensor, 0) / 2
    if move <= 0.05:
        return None
    return RoundingCause(
        node=node.name,
        tensor=tensor,
        lost=min(1.0, move),
        sentence=f"“{tensor}” goes into a {node.op_type} in steps of {steps[tensor]:.2g}, which moves its output by up "
        f"to {move:.2g}.",
    )


def _of_channels(node: NodeProto, values: Mapping[str, Tensor], steps: Mapping[str, float]) -> RoundingCause | None:
    """Return a cause where channels, along the axis that torch and ONNX share, span a few steps of the tensor's."""
    tensor = node.output[0]
    if tensor not in values or values[tensor].ndim < 3 or not values[tensor].is_floating_point():
        return None
    axis = 1 if values[tensor].ndim == 4 else -1
    flat = values[tensor].movedim(axis, 0).flatten(1)
    widths = flat.amax(1) - flat.amin(1)
    alive = widths > 0
    few = alive & (widths < _FEW_STEPS * steps[tensor])
    share = float(few.sum()) / max(1, int(alive.sum()))
    # share of the channels, from which one scale for all is named as the cause
    if share < 0.25 or not bool((~few & alive).any()):
        return None
    times = float(widths.max() / widths[alive].median())
    return RoundingCause(
        node=node.name,
        tensor=tensor,
        lost=share / 2,  # a few steps are left
        sentence=f"One scale of “{tensor}” leaves {int(few.sum())} of its {len(widths)} channels fewer than "
        f"{_FEW_STEPS} of 256 steps: the widest channel is {times:.0f} times as wide as the median one.",
    )


def calibration_warnings(
    network: bytes, ranges: Mapping[str, Range], calibration: Sequence[Tensor], held_out: Sequence[Tensor]
) -> tuple[str, ...]:
    """Return a sentence where calibration images, (N, C, H, W), are few, and one where others exceed their ranges."""
    found, count = list[str](), sum(map(len, calibration))
    if count < _FEW:
        found.append(
            f"Ranges and weights were fitted to only {plural(count, 'image')}: the loss depends on which they are. "
            f"Bring {_FEW} or more."
        )
    clipped, own = (_share_clipped(network, ranges, each) for each in (held_out, calibration))
    if clipped > max(_NOTABLE, _UNLIKE * own):
        found.append(
            f"{100 * clipped:.2g} % of the activations on held-out images lie beyond the ranges of the calibration "
            f"images, and are clipped ({100 * own:.2g} % on these). Calibrate on images like those that the file will "
            "see."
        )
    return tuple(found)


def _share_clipped(network: bytes, ranges: Mapping[str, Range], batches: Sequence[Tensor]) -> float:
    """Return the share of values on a few images, mean over tensors, beyond their range and half a step more."""
    if not batches or not ranges:
        return 0.0
    values = next(tensors_of(network, [batches[0][:AT_ONCE]], list(ranges)))
    shares = []
    for name, (low, high) in ranges.items():
        step = float(activation_grid(low, high)[1]) / 2
        shares.append(((values[name] < min(low, 0) - step) | (values[name] > max(high, 0) + step)).float().mean())
    return float(torch.stack(shares).mean())
