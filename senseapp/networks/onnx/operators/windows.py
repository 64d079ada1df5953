"""Operators with a sliding window: convolutions, pooling, sampling at positions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align

from senseapp.networks.onnx.operators.registry import FormNotRead, enter, operator
from senseapp.networks.onnx.torch_graph import Node

Ends = tuple[tuple[int, int], ...]  # what is added before and after each spatial axis
Settings = Mapping[str, Any]  # attributes of a node


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Settings that convolutions and pools share, one number per spatial axis.

    ``automatic`` is ONNX's ``auto_pad``; the stored ``pads`` are used where it is ``NOTSET``.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Ends
    automatic: str
    ceil: bool = False

    @classmethod
    def of(cls, at: Settings, kernel: Sequence[int] | None = None) -> Self:
        """Read the settings of a node; the lengths of its window are ``kernel``, else an attribute."""
        kernel = at.get("kernel_shape", ()) if kernel is None else kernel
        rank = len(kernel)
        pads = at.get("pads") or [0] * (2 * rank)
        if len(pads) != 2 * rank:
            raise FormNotRead(f"it has {len(pads)} pads for {rank} spatial axes.")
        return cls(
            kernel=tuple(kernel),
            strides=tuple(at.get("strides") or [1] * rank),
            dilations=tuple(at.get("dilations") or [1] * rank),
            pads=tuple(zip(pads[:rank], pads[rank:], strict=True)),
            automatic=at.get("auto_pad", "NOTSET"),
            ceil=bool(at.get("ceil_mode")),
        )

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    def torch(self, name: str) -> Any:
        """Return torch's function ``name`` for as many axes."""
        return getattr(F, f"{name}{self.rank}d")

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
        totals = (
            max(0, (-(-length // stride) - 1) * stride + reach - length)
            for length, stride, reach in zip(lengths, self.strides, self.reach, strict=True)
        )
        return self.halves(totals)

    def halves(self, totals: Any) -> Ends:
        """Return what is added or cut in all of each axis as its two ends; the larger one is behind for SAME_UPPER."""
        halves = ((total // 2, total - total // 2) for total in totals)
        return tuple(each if self.automatic == "SAME_UPPER" else each[::-1] for each in halves)

    def whole_ends(self, lengths: Sequence[int]) -> Ends:
        """Return ends with which whole windows give exactly the output of a pool.

        A window that starts behind the input is left out.
        """
        found = []
        sides = zip(lengths, self.ends(lengths), self.reach, self.strides, strict=True)
        for length, (before, after), reach, stride in sides:
            steps = (length + before + after - reach) / stride
            last = math.ceil(steps) if self.ceil else math.floor(steps)
            last -= self.ceil and last * stride >= length + before
            found.append((before, last * stride + reach - length - before))
        return tuple(found)

    def torch_padding(self, lengths: Sequence[int]) -> tuple[int, ...] | None:
        """Return the padding of a pool where torch's own pools have it: even, and at most half of the window."""
        padding = symmetric(self.ends(lengths))
        fits = padding is not None and all(2 * pad <= k for pad, k in zip(padding, self.kernel, strict=True))
        return padding if fits else None


def symmetric(ends: Ends) -> tuple[int, ...] | None:
    """Return one number per axis where as much is added before as after; else None."""
    return tuple(before for before, _ in ends) if all(before == after for before, after in ends) else None


def flat(ends: Ends) -> list[int]:
    """Return ends in the order that torch's ``pad`` takes: last axis first."""
    return [length for pair in reversed(ends) for length in pair]


@operator("Conv")
def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, at: Settings, group: int = 1) -> Tensor:
    window = Window.of(at, weight.shape[2:])
    ends = window.ends(x.shape[2:])
    padding = symmetric(ends)
    if padding is None:
        x, padding = F.pad(x, flat(ends)), (0,) * window.rank
    found: Tensor = window.torch("conv")(x, weight, bias, window.strides, padding, window.dilations, group)
    return found


def transposed_ends(at: Settings, window: Window, lengths: Sequence[int]) -> tuple[tuple[int, ...], Ends]:
    """Return padding at the end of a ``ConvTranspose`` of spatial ``lengths``, and what is cut from its full output."""
    added = tuple(at.get("output_padding") or [0] * window.rank)
    wanted = at.get("output_shape")
    if wanted is None and window.automatic in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [length * stride for length, stride in zip(lengths, window.strides, strict=True)]
    if wanted is None:
        return added, window.ends(lengths)
    sides = zip(lengths, window.strides, window.reach, added, wanted[-window.rank :], strict=True)
    totals = (max(0, stride * (length - 1) + extra + reach - target) for length, stride, reach, extra, target in sides)
    return added, window.halves(totals)


@operator("ConvTranspose")
def _transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, at: Settings, group: int = 1) -> Tensor:
    window = Window.of(at, weight.shape[2:])
    added, cut = transposed_ends(at, window, x.shape[2:])
    padding = symmetric(cut)
    settings = window.strides, padding or (0,) * window.rank, added, group, window.dilations
    result: Tensor = window.torch("conv_transpose")(x, weight, bias, *settings)
    return result if padding is not None else cropped(result, ends=cut)


def cropped(x: Tensor, *, ends: Ends) -> Tensor:
    """Return ``x`` without ``ends`` of its spatial axes."""
    return F.pad(x, [-length for length in flat(ends)])


@operator("MaxPool")
def _max_pool(x: Tensor, *, at: Settings, num_outputs: int = 1, storage_order: int = 0) -> Any:
    """Return largest numbers, and their positions in the whole of ``x`` where they are asked for."""
    window = Window.of(at)
    pool, padding = window.torch("max_pool"), window.torch_padding(x.shape[2:])
    if num_outputs > 1 and (storage_order or padding is None):
        raise FormNotRead("it returns positions, column by column or with more padding on one side.")
    if padding is None:
        lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        padded = F.pad(x, flat(window.whole_ends(x.shape[2:])), value=lowest)
        return pool(padded, window.kernel, window.strides, 0, window.dilations)
    found = pool(
        x, window.kernel, window.strides, padding, window.dilations, window.ceil, return_indices=num_outputs > 1
    )
    if num_outputs == 1:
        return found
    images = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *[1] * window.rank)
    return found[0], found[1] + images * math.prod(x.shape[2:])


@operator("MaxUnpool", numbers=(2,))
def _max_unpool(x: Tensor, places: Tensor, wanted: Sequence[int] | None = None, *, at: Settings) -> Tensor:
    """Put numbers at their positions in a whole of zeros, as a max pool counted them."""
    window = Window.of(at)
    sides = zip(x.shape[2:], window.strides, window.kernel, window.pads, strict=True)
    shape = [*x.shape[:2], *((length - 1) * stride + kernel - sum(ends) for length, stride, kernel, ends in sides)]
    if wanted is not None and list(wanted) != shape:
        raise FormNotRead("it makes another size than its window does.")
    return x.new_zeros(math.prod(shape)).scatter(0, places.reshape(-1), x.reshape(-1)).reshape(shape)


@operator("AveragePool")
def _mean_pool(x: Tensor, *, at: Settings, count_include_pad: bool = False) -> Tensor:
    window = Window.of(at)
    padding = window.torch_padding(x.shape[2:])
    if padding is not None and set(window.dilations) == {1}:
        return window.torch("avg_pool")(x, window.kernel, window.strides, padding, window.ceil, count_include_pad)  # type: ignore[no-any-return]
    ends, whole = window.ends(x.shape[2:]), window.whole_ends(x.shape[2:])
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    counted = F.pad(counted, flat(ends), value=1.0 if count_include_pad else 0.0)
    more = tuple((0, want - have) for (_, want), (_, have) in zip(whole, ends, strict=True))
    return _window_sums(F.pad(x, flat(whole)), window) / _window_sums(F.pad(counted, flat(more)), window)


def _window_sums(x: Tensor, window: Window) -> Tensor:
    """Return the sum in each window of a padded input."""
    ones = torch.ones((1, 1, *window.kernel), dtype=x.dtype, device=x.device)
    images = x.reshape(-1, 1, *x.shape[2:])
    sums: Tensor = window.torch("conv")(images, ones, None, window.strides, 0, window.dilations)
    return sums.reshape(*x.shape[:2], *sums.shape[2:])


enter(
    {
        "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True),
        "GlobalMaxPool": lambda x: x.amax(tuple(range(2, x.ndim)), keepdim=True),
        "GridSample": lambda x, grid, *, mode="linear", padding_mode="zeros", align_corners=False: F.grid_sample(
            x,
            grid,
            mode=f"bi{mode}" if mode in ("linear", "cubic") else mode,  # before opset 20 they are called as in torch
            padding_mode=padding_mode,
            align_corners=align_corners,
        ),
    }
)


enter(
    {"AffineGrid": lambda theta, size, *, align_corners=False: F.affine_grid(theta, size, align_corners=align_corners)},
    numbers=(1,),
)


def _lacks(node: Node) -> str:
    takes_maxima = node.attributes.get("mode", "avg") != "avg"
    return "it takes maxima. Export it with mean values." if takes_maxima else ""


@operator("RoiAlign", since=16, lacks=_lacks)
def _roi_align(
    x: Tensor,
    boxes: Tensor,
    images: Tensor,
    *,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel",
) -> Tensor:
    numbered = torch.cat([images.to(boxes.dtype).unsqueeze(1), boxes], dim=1)  # (K, 5)
    size, aligned = (output_height, output_width), coordinate_transformation_mode == "half_pixel"
    return roi_align(x, numbered, size, spatial_scale, sampling_ratio or -1, aligned)  # type: ignore[no-any-return]


operator("RoiAlign", lacks=_lacks)(partial(_roi_align, coordinate_transformation_mode="output_half_pixel"))
