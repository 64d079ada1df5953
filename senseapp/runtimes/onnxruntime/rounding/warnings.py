"""Warnings about calibration images: too few of them, or unlike the images that the file is tested on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from senseapp.core.texts import plural
from senseapp.runtimes.onnxruntime.qdq import BEFORE
from senseapp.runtimes.onnxruntime.rounding.ranges import AT_ONCE, tensors_of

_FEW = 32  # images: the loss of files calibrated on draws of fewer depended on the draw
_NOTABLE, _UNLIKE = 0.01, 5.0  # of the values that are clipped; times as many as of the calibration images


def calibration_warnings(
    network: bytes, int8: bytes, calibration: Sequence[Tensor], held_out: Sequence[Tensor]
) -> tuple[str, ...]:
    """Return a sentence where calibration images are few, and one where held-out images exceed their ranges.

    Args:
        network: in float.
        int8: its QDQ file.
        calibration: batches (N, C, H, W) that the ranges of the file are from.
        held_out: other images.
    """
    found, count = list[str](), sum(map(len, calibration))
    if count < _FEW:
        found.append(
            f"Ranges and weights were fitted to only {plural(count, 'image')}: the loss depends on which they are. "
            f"Bring {_FEW} or more."
        )
    clipped, own = (_share_clipped(network, int8, each) for each in (held_out, calibration))
    if clipped > max(_NOTABLE, _UNLIKE * own):
        found.append(
            f"{100 * clipped:.2g} % of the activations on held-out images lie beyond the ranges of the calibration "
            f"images, and are clipped ({100 * own:.2g} % on these). Calibrate on images like those that the file will "
            "see."
        )
    return tuple(found)


def _share_clipped(network: bytes, int8: bytes, batches: Sequence[Tensor]) -> float:
    """Return the share of values on a few images, mean over tensors, beyond the ranges of a QDQ file."""
    ends = _ranges_of(int8)
    if not batches or not ends:
        return 0.0
    values = next(tensors_of(network, [batches[0][:AT_ONCE]], list(ends)))
    shares = [((values[name] < low) | (values[name] > high)).float().mean() for name, (low, high) in ends.items()]
    return float(torch.stack(shares).mean())


def _ranges_of(int8: bytes) -> dict[str, tuple[float, float]]:
    """Return the range of each activation that a QDQ file rounds with one scale, half a step wider on each side."""
    graph = onnx.load_from_string(int8).graph
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type != "QuantizeLinear" or constants[node.input[1]].size != 1:
            continue
        scale, zero_point = (float(constants[name].reshape(-1)[0]) for name in node.input[1:3])
        limits = np.iinfo(constants[node.input[2]].dtype)
        low, high = (scale * (end - zero_point) for end in (limits.min - 0.5, limits.max + 0.5))
        found[node.input[0].removesuffix(BEFORE)] = low, high
    return found
