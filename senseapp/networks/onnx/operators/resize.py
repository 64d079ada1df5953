"""Resize and Upsample: every axis by itself, from the coordinates that the specification defines."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
_TORCH_MODES = {("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic"}
_TORCH_CUBIC = -0.75  # torch's coefficient, and that of the specification


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How values between pixels are found."""

    mode: str
    coordinates: str
    rounding: str
    cubic: float
    outside_excluded: bool
    antialias: bool

    def positions(self, length: int, wanted: int, scale: float) -> Tensor:
        """Return where the ``wanted`` new pixels lie on an axis of ``length`` old ones; float64."""
        x = torch.arange(wanted, dtype=torch.float64)
        match self.coordinates:
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
        raise FormNotRead(f"its coordinates “{self.coordinates[:40]}” are not read.")

    def nearest(self, length: int, wanted: int, scale: float) -> Tensor:
        """Return which old pixel each new one shows."""
        # Rounding at .5 must not depend on the last bit of a quotient.
        exact = torch.round(self.positions(length, wanted, scale) * 2**20) / 2**20
        return _ROUNDINGS[self.rounding](exact).clamp(0, length - 1).to(torch.int64)

    def weights(self, length: int, wanted: int, scale: float) -> Tensor:
        """Return the (wanted, length) matrix that resizes an axis.

        With :attr:`antialias` the kernel is as wide as a new pixel. Border pixels go on beyond the image.
        """
        narrowing = min(1.0, scale) if self.antialias else 1.0
        beyond = 0 if self.outside_excluded else math.ceil((2 if self.mode == "cubic" else 1) / narrowing) + 1
        places = torch.arange(-beyond, length + beyond)
        positions = self.positions(length, wanted, scale)
        shares = self._share((positions.unsqueeze(1) - places).abs() * narrowing)
        matrix = torch.zeros(wanted, length, dtype=torch.float64)
        matrix.index_add_(1, places.clamp(0, length - 1), shares)
        return matrix / matrix.sum(1, keepdim=True)

    def _share(self, distance: Tensor) -> Tensor:
        if self.mode == "linear":
            return (1 - distance).clamp(min=0)
        a, d = self.cubic, distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return torch.where(d <= 1, near, torch.where(d < 2, far, 0.0))


def _lacks(node: Node) -> str:
    keeps = node.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    return "it keeps the proportions of the image. Export it with the size that it resizes to." if keeps else ""


@operator("Resize", since=11, numbers=(1, 2, 3), lacks=_lacks)
def _resize(
    x: Tensor,
    _region: object = None,
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    *,
    at: Mapping[str, Any],
) -> Tensor:
    way = _Way(
        mode=at.get("mode", "nearest"),
        coordinates=at.get("coordinate_transformation_mode", "half_pixel"),
        rounding=at.get("nearest_mode", "round_prefer_floor"),
        cubic=at.get("cubic_coeff_a", _TORCH_CUBIC),
        outside_excluded=bool(at.get("exclude_outside")),
        antialias=bool(at.get("antialias")),
    )
    places = [each % x.ndim for each in at.get("axes") or range(x.ndim)]
    lengths = [x.shape[axis] for axis in places]
    if sizes:
        ratios = [size / length for length, size in zip(lengths, sizes, strict=True)]
    else:
        ratios = list(scales or [])
        sizes = [math.floor(length * ratio) for length, ratio in zip(lengths, ratios, strict=True)]
    return _resized(x, dict(zip(places, zip(sizes, ratios, strict=True), strict=True)), way)


@operator("Resize", "Upsample", numbers=(1,))
def _resize_10(x: Tensor, scales: Sequence[float], *, mode: str = "nearest") -> Tensor:
    """Resize before version 11, with a pixel's corner as its place."""
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resize(x, None, scales, at={"mode": mode.replace("bilinear", "linear"), **how})


def _resized(x: Tensor, wanted: dict[int, tuple[int, float]], way: _Way) -> Tensor:
    """Return ``x`` with axes of other lengths; ``wanted`` has the length and the ratio of each."""
    changed = {axis: (size, ratio) for axis, (size, ratio) in wanted.items() if size != x.shape[axis] or ratio != 1}
    if not changed:
        return x
    if 3 <= x.ndim <= 5 and min(changed) >= 2 and not way.antialias:
        quick = _by_torch(x, changed, way)
        if quick is not None:
            return quick
    for axis, (size, ratio) in changed.items():
        if way.mode == "nearest":
            x = x.index_select(axis, way.nearest(x.shape[axis], size, ratio).to(x.device))
        else:
            weights = way.weights(x.shape[axis], size, ratio).to(x.device, x.dtype)
            x = torch.matmul(x.movedim(axis, -1), weights.T).movedim(-1, axis)
    return x


def _by_torch(x: Tensor, changed: dict[int, tuple[int, float]], way: _Way) -> Tensor | None:
    """Return what torch's own kernel gives, where it means the same; else None."""
    size = [changed.get(axis, (x.shape[axis], 1.0))[0] for axis in range(2, x.ndim)]
    if way.mode == "nearest":
        # torch shows old pixel ⌊i · old / new⌋
        alike = all(
            torch.equal(way.nearest(x.shape[axis], wanted, ratio), torch.arange(wanted) * x.shape[axis] // wanted)
            for axis, (wanted, ratio) in changed.items()
        )
        return F.interpolate(x, size) if alike and x.is_floating_point() else None
    exact = all(math.isclose(wanted, x.shape[axis] * ratio) for axis, (wanted, ratio) in changed.items())
    aligned = way.coordinates == "align_corners"
    halves = way.coordinates == "half_pixel" or (way.coordinates == "pytorch_half_pixel" and min(size) > 1)
    mode = _TORCH_MODES.get((way.mode, x.ndim - 2))
    if mode is None or not (halves or aligned) or not (exact or aligned) or way.outside_excluded:
        return None
    if way.mode == "cubic" and way.cubic != _TORCH_CUBIC:
        return None
    return F.interpolate(x, size, mode=mode, align_corners=aligned)
