"""Operators with a sliding window: convolutions, pooling, sampling at positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align

from senseapp.networks.onnx.operators.registry import Attributes, FormNotRead, operator

Ends = tuple[tuple[int, int], ...]  # what is added before and after each spatial axis
_CONVOLUTIONS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOLS: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_MEAN_POOLS: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Settings that convolutions and pools share, one number per spatial axis.

    Attributes:
        kernel: lengths of the window.
        pads: stored ends; what is used where ``automatic`` is ``NOTSET``.
        automatic: ONNX's ``auto_pad``.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Ends
    automatic: str
    ceil: bool = False

    @classmethod
    def of(cls, at: Attributes, kernel: Sequence[int]) -> Window:
        """Read the settings of a node whose window has the lengths ``kernel``."""
        rank = len(kernel)
        pads = at.ints("pads") or [0] * (2 * rank)
        if len(pads) != 2 * rank:
            raise FormNotRead(f"it has {len(pads)} pads for {rank} spatial axes.")
        return cls(
            kernel=tuple(kernel),
            strides=tuple(at.ints("strides") or [1] * rank),
            dilations=tuple(at.ints("dilations") or [1] * rank),
            pads=tuple(zip(pads[:rank], pads[rank:], strict=True)),
            automatic=at.text("auto_pad", "NOTSET"),
            ceil=bool(at.whole("ceil_mode", 0)),
        )

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        """Lengths of the window with its gaps."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def ends(self, lengths: Sequence[int]) -> Ends:
        """Return the padding of an input of spatial ``lengths``."""
        if self.automatic in ("NOTSET", ""):
            return self.pads
        if self.automatic == "VALID":
            return ((0, 0),) * self.rank
        return tuple(
            _same_ends(length, stride, reach, upper=self.automatic == "SAME_UPPER")
            for length, stride, reach in zip(lengths, self.strides, self.reach, strict=True)
        )

    def pooled(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return the lengths of a pool's output; a window that starts behind the input is left out."""
        found = []
        for length, (before, after), reach, stride in zip(
            lengths, self.ends(lengths), self.reach, self.strides, strict=True
        ):
            steps = (length + before + after - reach) / stride
            count = (math.ceil(steps) if self.ceil else math.floor(steps)) + 1
            found.append(count - 1 if self.ceil and (count - 1) * stride >= length + before else count)
        return tuple(found)


def _same_ends(length: int, stride: int, reach: int, *, upper: bool) -> tuple[int, int]:
    total = max(0, (-(-length // stride) - 1) * stride + reach - length)
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def symmetric(ends: Ends) -> tuple[int, ...] | None:
    """Return one number per axis where as much is added before as after; else None."""
    return tuple(before for before, _ in ends) if all(before == after for before, after in ends) else None


def flat(ends: Ends) -> list[int]:
    """Return ends in the order that torch's ``pad`` takes: last axis first."""
    return [length for pair in reversed(ends) for length in pair]


@operator("Conv")
def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, at: Attributes) -> Tensor:
    window = Window.of(at, weight.shape[2:])
    ends = window.ends(x.shape[2:])
    padding = symmetric(ends)
    if padding is None:
        x, padding = F.pad(x, flat(ends)), (0,) * window.rank
    result: Tensor = _CONVOLUTIONS[window.rank](
        x,
        weight,
        bias,
        window.strides,
        padding,
        window.dilations,
        at.whole("group", 1),
    )
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposedEnds:
    """Padding at the end of a transposed convolution, and crop of its full output."""

    output_padding: tuple[int, ...]
    cut: Ends


def transposed_ends(at: Attributes, window: Window, lengths: Sequence[int]) -> TransposedEnds:
    """Return how a ``ConvTranspose`` of an input of spatial ``lengths`` ends."""
    added = tuple(at.ints("output_padding") or [0] * window.rank)
    wanted = at.ints("output_shape")
    if wanted is None and window.automatic in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [length * stride for length, stride in zip(lengths, window.strides, strict=True)]
    if wanted is None:
        return TransposedEnds(output_padding=added, cut=window.ends(lengths))
    wanted = wanted[-window.rank :]
    cut = []
    for length, stride, reach, extra, target in zip(lengths, window.strides, window.reach, added, wanted, strict=True):
        total = max(0, stride * (length - 1) + extra + reach - target)
        small, large = total // 2, total - total // 2
        cut.append((small, large) if window.automatic == "SAME_UPPER" else (large, small))
    return TransposedEnds(output_padding=added, cut=tuple(cut))


@operator("ConvTranspose")
def _convolve_transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, at: Attributes) -> Tensor:
    window = Window.of(at, weight.shape[2:])
    ends = transposed_ends(at, window, x.shape[2:])
    padding = symmetric(ends.cut)
    result: Tensor = _TRANSPOSED[window.rank](
        x,
        weight,
        bias,
        window.strides,
        padding or (0,) * window.rank,
        ends.output_padding,
        at.whole("group", 1),
        window.dilations,
    )
    return result if padding is not None else cropped(result, ends=ends.cut)


def cropped(x: Tensor, *, ends: Ends) -> Tensor:
    """Return ``x`` without ``ends`` of its spatial axes."""
    return F.pad(x, [-length for length in flat(ends)])


@operator("MaxPool")
def _max_pools(x: Tensor, *, at: Attributes, num_outputs: int = 1, storage_order: int = 0) -> Any:
    window = Window.of(at, at.ints("kernel_shape") or [])
    if num_outputs == 1:
        return _max_pool(x, window)
    if storage_order:
        raise FormNotRead("it counts positions column by column.")
    return _max_pool_with_positions(x, window)


def _max_pool_with_positions(x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Return largest numbers, and their positions in the whole of ``x``."""
    padding = symmetric(window.ends(x.shape[2:]))
    if padding is None or any(2 * pad > reach for pad, reach in zip(padding, window.kernel, strict=True)):
        raise FormNotRead("it returns positions, with more padding on one side.")
    largest, places = _MAX_POOLS[window.rank](
        x, window.kernel, window.strides, padding, window.dilations, window.ceil, return_indices=True
    )
    images = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *[1] * window.rank)
    return largest, places + images * math.prod(x.shape[2:])


@operator("MaxUnpool", numbers=(2,))
def _max_unpool(x: Tensor, places: Tensor, wanted: Sequence[int] | None = None, *, at: Attributes) -> Tensor:
    """Put numbers at their positions in a whole of zeros, as a max pool counted them."""
    window = Window.of(at, at.ints("kernel_shape") or [])
    sides = zip(x.shape[2:], window.strides, window.kernel, window.pads, strict=True)
    usual = [(length - 1) * stride + kernel - sum(ends) for length, stride, kernel, ends in sides]
    shape = [*x.shape[:2], *usual]
    if wanted is not None and list(wanted) != shape:
        raise FormNotRead("it makes another size than its window does.")
    return x.new_zeros(math.prod(shape)).scatter(0, places.reshape(-1), x.reshape(-1)).reshape(shape)


def _max_pool(x: Tensor, window: Window) -> Tensor:
    ends = window.ends(x.shape[2:])
    padding = symmetric(ends)
    pool = _MAX_POOLS[window.rank]
    if padding is not None and all(2 * pad <= reach for pad, reach in zip(padding, window.kernel, strict=True)):
        return pool(x, window.kernel, window.strides, padding, window.dilations, window.ceil)  # type: ignore[no-any-return]
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    padded = F.pad(x, flat(_to_length(window, x.shape[2:], ends)), value=lowest)
    return pool(padded, window.kernel, window.strides, 0, window.dilations)  # type: ignore[no-any-return]


def _to_length(window: Window, lengths: Sequence[int], ends: Ends) -> Ends:
    """Return ends with which whole windows give exactly the pool's output."""
    counts = window.pooled(lengths)
    return tuple(
        (before, (count - 1) * stride + reach - length - before)
        for count, stride, reach, length, (before, _) in zip(
            counts, window.strides, window.reach, lengths, ends, strict=True
        )
    )


@operator("AveragePool")
def _mean_pool(x: Tensor, *, at: Attributes, count_include_pad: bool = False) -> Tensor:
    window = Window.of(at, at.ints("kernel_shape") or [])
    ends = window.ends(x.shape[2:])
    padding = symmetric(ends)
    near = padding is not None and all(2 * pad <= k for pad, k in zip(padding, window.kernel, strict=True))
    if near and set(window.dilations) == {1}:
        return _MEAN_POOLS[window.rank](x, window.kernel, window.strides, padding, window.ceil, count_include_pad)  # type: ignore[no-any-return]
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    counted = F.pad(counted, flat(ends), value=1.0 if count_include_pad else 0.0)
    whole = _to_length(window, x.shape[2:], ends)
    more = tuple((0, want - have) for (_, want), (_, have) in zip(whole, ends, strict=True))
    return _window_sums(F.pad(x, flat(whole)), window) / _window_sums(F.pad(counted, flat(more)), window)


def _window_sums(x: Tensor, window: Window) -> Tensor:
    """Return the sum in each window of a padded input."""
    ones = torch.ones((1, 1, *window.kernel), dtype=x.dtype, device=x.device)
    images = x.reshape(-1, 1, *x.shape[2:])
    sums: Tensor = _CONVOLUTIONS[window.rank](images, ones, None, window.strides, 0, window.dilations)
    return sums.reshape(*x.shape[:2], *sums.shape[2:])


@operator("LpPool")
def _lp_pool(x: Tensor, *, at: Attributes, p: int = 2) -> Tensor:
    window = Window.of(at, at.ints("kernel_shape") or [])
    ends = _to_length(window, x.shape[2:], window.ends(x.shape[2:]))
    return _window_sums(F.pad(x.abs().pow(p), flat(ends)), window).pow(1 / p)


@operator("GlobalAveragePool")
def _global_mean(x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@operator("GlobalMaxPool")
def _global_max(x: Tensor) -> Tensor:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


@operator("GlobalLpPool")
def _global_norm(x: Tensor, *, p: int = 2) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, p, tuple(range(2, x.ndim)), keepdim=True)
    return norm


@operator("GridSample")
def _grid_sample(
    x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: bool = False
) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return F.grid_sample(x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)


@operator("AffineGrid", numbers=(1,))
def _affine_grid(theta: Tensor, size: Sequence[int], *, align_corners: bool = False) -> Tensor:
    return F.affine_grid(theta, list(size), align_corners=align_corners)


@operator("RoiAlign", since=16)
def _roi_align(
    x: Tensor,
    boxes: Tensor,
    images: Tensor,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel",
) -> Tensor:
    if mode != "avg":
        raise FormNotRead("it takes maxima. Export it with mean values.")
    numbered = torch.cat([images.to(boxes.dtype).unsqueeze(1), boxes], dim=1)  # (K, 5)
    size, aligned = (output_height, output_width), coordinate_transformation_mode == "half_pixel"
    return roi_align(x, numbered, size, spatial_scale, sampling_ratio or -1, aligned)  # type: ignore[no-any-return]


operator("RoiAlign")(partial(_roi_align, coordinate_transformation_mode="output_half_pixel"))


@operator("Col2Im", numbers=(1, 2))
def _col2im(x: Tensor, image: Sequence[int], block: Sequence[int], *, at: Attributes) -> Tensor:
    window = Window.of(at, block)
    padding = symmetric(window.pads)
    if padding is None or window.rank != 2:
        raise FormNotRead("it is not of two axes with equal pads.")
    return F.fold(x, tuple(image), window.kernel, window.dilations, padding, window.strides)
