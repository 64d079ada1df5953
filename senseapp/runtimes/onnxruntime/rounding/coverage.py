"""Share of the values of each tensor on some images that lie beyond its range on others."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import torch
from torch import Tensor

from senseapp.records.calibration import TensorCoverage
from senseapp.runtimes.onnxruntime.rounding.calibration import ranges, tensors_of
from senseapp.runtimes.onnxruntime.rounding.choice import rounded_tensors


def coverage(
    network: bytes, int8: bytes, calibration: Sequence[Tensor], others: Sequence[Tensor]
) -> list[TensorCoverage]:
    """Return the coverage of each tensor of a float ``network`` that its ``int8`` file rounds.

    Ranges are the least and largest values on ``calibration``; values of ``others`` are counted one by one.
    """
    found = ranges(network, calibration, rounded_tensors(int8), ["minmax"])["minmax"]
    ends = {name: torch.tensor([float("inf"), -float("inf")]) for name in found}
    outside, values = dict.fromkeys(found, 0), dict.fromkeys(found, 0)
    for tensors in tensors_of(network, others, list(found)):
        for name, tensor in tensors.items():
            low, high = found[name]
            outside[name] += int(((tensor < low) | (tensor > high)).sum())
            values[name] += tensor.numel()
            least, most = ends[name]
            ends[name] = torch.stack([least.minimum(tensor.amin()), most.maximum(tensor.amax())])
    images = sum(map(len, others))
    makers = {name: node.name for node in onnx.load_from_string(network).graph.node for name in node.output}
    return [
        TensorCoverage(
            node=makers.get(name, ""),
            low=low,
            high=high,
            seen_low=float(ends[name][0]),
            seen_high=float(ends[name][1]),
            beyond=outside[name] / max(values[name], 1),
            values=values[name] // max(images, 1),
        )
        for name, (low, high) in found.items()
    ]
