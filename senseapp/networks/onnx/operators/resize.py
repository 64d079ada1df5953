"""Resize and Upsample: the nearest pixel by its position, all else in the ways that torch has a kernel for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import FormNotRead, operator
from senseapp.networks.onnx.torch_graph import Node

_ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "round_prefer_floor": lambda x: torch.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: torch.floor(x + 0.5),
    "floor": torch.floor,
    "ceil": torch.ceil,
}
_KERNELS = {("linear", 3): "linear", ("linear", 4): "bilinear", ("linear", 5): "trilinear", ("cubic", 4): "bicubic"}
_Changes = Mapping[int, tuple[int, float]]  # new length of an axis, and its ratio to the old one


_EXPORT = "Export it with the mode nearest, or linear in half_pixel or align_corners."


def _lacks(node: Node) -> str:
    at = node.attributes
    if at.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "it keeps the proportions of the image. Export it with the size that it resizes to."
    if at.get("antialias") or at.get("exclude_outside") or at.get("cubic_coeff_a", -0.75) != -0.75:
        return "it interpolates with antialiasing, without the border or with a coefficient of its own. " + _EXPORT
    return ""


@operator("Resize", since=11, numbers=(1, 2, 3), lacks=_lacks)
def _resize(
    x: Tensor,
    _region: object = None,
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    axes: Any = None,
) -> Tensor:
    places = list(range(x.ndim)) if axes is None else [each % x.ndim for each in axes]
    lengths = [x.shape[axis] for axis in places]
    if sizes:
        ratios = [size / length for length, size in zip(lengths, sizes, strict=True)]
    else:
        ratios = list(scales or [])
        sizes = [math.floor(length * ratio) for length, ratio in zip(lengths, ratios, strict=True)]
    wanted = dict(zip(places, zip(sizes, ratios, strict=True), strict=True))
    changed = {axis: new for axis, new in wanted.items() if new != (x.shape[axis], 1)}
    if not changed:
        return x
    if mode == "nearest":
        return _nearest(x, changed, coordinate_transformation_mode, _ROUNDINGS[nearest_mode])
    return _interpolated(x, changed, mode, coordinate_transformation_mode)


@operator("Resize", "Upsample", numbers=(1,))
def _resize_10(x: Tensor, given: Sequence[float] | None = None, *, mode: str = "nearest", scales: Any = None) -> Tensor:
    """Resize before version 11, with a pixel's corner as its place."""
    ratios = scales if given is None else given
    mode = mode.replace("bilinear", "linear")
    return _resize(x, None, ratios, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _nearest(x: Tensor, changed: _Changes, coordinates: str, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    shown = {}  # which old pixel each new one shows
    for axis, (size, ratio) in changed.items():
        # Rounding at .5 must not depend on the last bit of a quotient.
        exact = torch.round(_positions(coordinates, x.shape[axis], size, ratio) * 2**20) / 2**20
        shown[axis] = rounding(exact).clamp(0, x.shape[axis] - 1).to(torch.int64)
    usual = {axis: torch.arange(len(each)) * x.shape[axis] // len(each) for axis, each in shown.items()}  # torch's
    is_usual = all(torch.equal(each, usual[axis]) for axis, each in shown.items())
    if is_usual and 3 <= x.ndim <= 5 and min(changed) >= 2 and x.is_floating_point():
        return F.interpolate(x, [changed.get(axis, (x.shape[axis], 1))[0] for axis in range(2, x.ndim)])
    for axis, places in shown.items():
        x = x.index_select(axis, places.to(x.device))
    return x


def _positions(coordinates: str, length: int, wanted: int, scale: float) -> Tensor:
    """Return where the ``wanted`` new pixels lie on an axis of ``length`` old ones; float64."""
    x = torch.arange(wanted, dtype=torch.float64)
    match coordinates:
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if wanted > 1 else torch.zeros_like(x)
        case "align_corners":
            return x * (length - 1) / (wanted - 1) if wanted > 1 else torch.zeros_like(x)
        case "asymmetric":
            return x / scale
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
    raise FormNotRead(f"its coordinates “{coordinates[:40]}” are not read.")


def _interpolated(x: Tensor, changed: _Changes, mode: str, coordinates: str) -> Tensor:
    kernel = _KERNELS.get((mode, x.ndim))
    aligned = coordinates == "align_corners"
    sides = [changed.get(axis, (x.shape[axis], 1.0)) for axis in range(2, x.ndim)]
    halves = coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and min(sides)[0] > 1)
    if kernel is None or min(changed) < 2 or not (aligned or halves):
        raise FormNotRead(f"torch does not interpolate {mode[:20]} in coordinates {coordinates[:40]} here. {_EXPORT}")
    sizes, ratios = zip(*sides, strict=True)
    if all(math.floor(length * ratio) == size for length, size, ratio in zip(x.shape[2:], sizes, ratios, strict=True)):
        return F.interpolate(x, scale_factor=ratios, mode=kernel, align_corners=aligned)
    return F.interpolate(x, sizes, mode=kernel, align_corners=aligned)
