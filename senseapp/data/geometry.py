"""Where the pixels of a picture go when it is prepared for a network, as one value for the picture and its annotation.

:class:`EvalTransform` is the geometric part of a network's preprocessing: the turn that a camera's rotation mark asks
for, resize of the shorter side, centre crop, and padding where the resized picture is smaller than the crop. For a
picture of one size it is a :class:`Geometry`, which is applied to the picture, to masks on its pixel grid and to
coordinates in it. No module here imports torch or timm: pictures are resized in the processes that decode them.

Detectors see the whole picture instead, with borders or stretched.

Source: timm ``transforms_imagenet_eval`` and torchvision ``Resize`` and ``CenterCrop``, whose pixels are reproduced
bit for bit.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

ValueT = TypeVar("ValueT", bound=np.generic)
Size = tuple[int, int]
"""(width, height) in pixels."""

UPRIGHT = 1  # Exif 2.32, tag 0x0112: the first row is the top, the first column the left
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture with this rotation mark upright; Exif 2.32, tag 0x0112."""
_GREY = 114  # of the borders that YOLO networks are trained with
_SWAPS_AXES = (5, 6, 7, 8)  # the marks with a quarter turn: stored rows are columns of the upright picture
_FROM_RIGHT, _FROM_BELOW = (2, 3, 6, 7), (3, 4, 7, 8)  # upright x (y) runs against the stored axis that it comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The turn, resize and crop of one picture.

    Coordinates are in pixels from the upper left corner; the centre of the first pixel is (0.5, 0.5).

    Attributes:
        size: of the picture as its file stores it.
        orientation: EXIF orientation that is undone, 1 to 8; 1 leaves the picture as stored.
        resized: size after the turn and the resize.
        corner: (x, y) of the upper left corner of the crop in the resized picture; negative where that is padded.
        output: size of the crop.
        grey: whether padding of 8-bit pictures is grey, as that of letterboxes; else black.
    """

    size: Size
    orientation: int
    resized: Size
    corner: Size
    output: Size
    grey: bool = False

    @property
    def upright_size(self) -> Size:
        """Size after the turn, before the resize."""
        return self.size[::-1] if self.orientation in _SWAPS_AXES else self.size

    def picture(self, picture: Image.Image, resampling: Image.Resampling) -> Image.Image:
        """Return the prepared picture, with :attr:`grey` or black padding."""
        if self.orientation in TURNS:
            picture = picture.transpose(TURNS[self.orientation])
        if picture.size != self.resized:
            picture = picture.resize(self.resized, resampling)
        left, top = self.corner
        if self.grey and picture.size != self.output and picture.mode in ("L", "RGB"):
            boxed = Image.new(
                picture.mode, self.output, (_GREY,) * len(picture.mode) if len(picture.mode) > 1 else _GREY
            )
            boxed.paste(picture, (-left, -top))
            return boxed
        return picture.crop((left, top, left + self.output[0], top + self.output[1]))

    def mask(self, values: npt.NDArray[ValueT], *, fill: int) -> npt.NDArray[ValueT]:
        """Return a map of values on the picture's pixel grid, (H, W), on that of the output, (H', W').

        Each output pixel takes the value at its centre; ``fill`` is for padding. Raises ValueError where the map has
        another size than the picture.
        """
        if values.shape != self.size[::-1]:
            raise ValueError(
                f"{values.shape[1]:,} × {values.shape[0]:,} pixels, and the picture has "
                f"{self.size[0]:,} × {self.size[1]:,}"
            )
        columns, rows = (self._sources(axis) for axis in (0, 1))
        upright = values.T if self.orientation in _SWAPS_AXES else values
        upright = upright[:, ::-1] if self.orientation in _FROM_RIGHT else upright
        upright = upright[::-1] if self.orientation in _FROM_BELOW else upright
        inside = np.ix_(rows.clip(0), columns.clip(0))
        return np.where((rows[:, None] < 0) | (columns < 0), values.dtype.type(fill), upright[inside])

    def points(self, points: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return where points (..., 2) of the stored picture, as (x, y), lie in the output; some may lie outside."""
        stored = np.asarray(points, dtype=np.float64)
        x, y = stored[..., 0], stored[..., 1]
        if self.orientation in _SWAPS_AXES:
            x, y = y, x
        width, height = self.upright_size
        x = width - x if self.orientation in _FROM_RIGHT else x
        y = height - y if self.orientation in _FROM_BELOW else y
        scale = self.resized[0] / width, self.resized[1] / height
        return np.stack([x * scale[0] - self.corner[0], y * scale[1] - self.corner[1]], axis=-1)

    def boxes(self, boxes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return boxes (n, 4), as (left, top, right, bottom), in the output and cut at its edges.

        A box outside of the crop has no width or no height.
        """
        corners = self.points(np.asarray(boxes, dtype=np.float64).reshape(-1, 2, 2))
        limits = np.asarray(self.output, dtype=np.float64)
        return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).clip(0, [*limits, *limits])

    def _sources(self, axis: int) -> npt.NDArray[np.int64]:
        """Return the column (row) of the upright picture below each output column (row); -1 for padding."""
        places = np.arange(self.output[axis]) + self.corner[axis]
        resized, whole = self.resized[axis], self.upright_size[axis]
        sources = (2 * places + 1) * whole // (2 * resized)  # the centre of the pixel, in whole numbers
        return np.where((places >= 0) & (places < resized), sources, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTransform:
    """The resize and centre crop that networks are evaluated with, as timm makes them.

    Attributes:
        width, height: of one input.
        crop_pct: share of the resized shorter side that the crop keeps.
        interpolation: ``bilinear``, ``bicubic``, ``nearest`` or another of Pillow's filters.
        upright: whether the rotation mark of a camera is followed.
        fit: ``crop``, ``letterbox`` (the whole picture, with borders), ``corner`` (the same at the upper left) or
            ``stretch`` (the whole picture, in the proportions of the input); only ``crop`` has a ``crop_pct``.
    """

    width: int
    height: int
    crop_pct: float
    interpolation: str
    upright: bool = False
    fit: str = "crop"

    @property
    def resampling(self) -> Image.Resampling:
        """Pillow's filter."""
        return Image.Resampling[self.interpolation.upper()]

    def geometry(self, size: Size, orientation: int = UPRIGHT) -> Geometry:
        """Return the geometry of a picture of this ``size``, whose rotation mark is ``orientation``."""
        turn = orientation if self.upright and orientation in TURNS else UPRIGHT
        resized = self._resized(size[::-1] if turn in _SWAPS_AXES else size)
        output = self.width, self.height
        centred = _centred(resized[0], output[0]), _centred(resized[1], output[1])
        corner = (0, 0) if self.fit == "corner" else centred
        grey = self.fit in ("letterbox", "corner")
        return Geometry(size=size, orientation=turn, resized=resized, corner=corner, output=output, grey=grey)

    def _resized(self, size: Size) -> Size:
        if self.fit == "stretch":
            return self.width, self.height
        if self.fit in ("letterbox", "corner"):
            scale = min(self.width / size[0], self.height / size[1])
            return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
        wanted = math.floor(self.width / self.crop_pct), math.floor(self.height / self.crop_pct)
        if wanted[0] == wanted[1]:  # torchvision's Resize of one number
            shorter = min(size)
            return wanted[0] * size[0] // shorter, wanted[0] * size[1] // shorter
        ratio = min(size[1] / wanted[1], size[0] / wanted[0])  # timm's ResizeKeepRatio
        return round(size[0] / ratio), round(size[1] / ratio)


def _centred(resized: int, wanted: int) -> int:
    """Return where a crop begins; torchvision rounds halves to even, and pads more on the far side."""
    return -((wanted - resized) // 2) if resized < wanted else round((resized - wanted) / 2)
