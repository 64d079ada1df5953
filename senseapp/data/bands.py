"""Pictures of other numbers of channels than one and three, for networks that take as many: every channel as it is.

Pillow opens grey with transparency, colour with transparency and printing colours. TIFF files of any number of channels
are read by tifffile, since Pillow drops those beyond the colours, or does not open the file.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from senseapp.data.bit_depth import Depth, depth_of, eight_bits
from senseapp.data.contents import Unreadable
from senseapp.data.geometry import UPRIGHT

MAX_CHANNELS = 64  # satellite and medical networks take up to some tens; each is a whole picture in memory
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_tiff(file: bytes) -> bool:
    """Return whether a file begins as TIFF or BigTIFF files do."""
    return file[:4] in _TIFF_STARTS


class TiffBands:
    """The first image of a TIFF file, whose header is read and whose pixels are not yet.

    Attributes:
        size: (width, height) in pixels.
        orientation: as in EXIF, from 1 to 8.

    Raises:
        Unreadable: there are too many channels.
    """

    def __init__(self, file: bytes) -> None:
        from tifffile import TiffFile  # a tenth of a second, for few

        with TiffFile(io.BytesIO(file)) as tiff:
            page: Any = tiff.pages.first
            self.size: tuple[int, int] = (int(page.imagewidth), int(page.imagelength))
            self.orientation = int(getattr(page.tags.get(ExifTags.Base.Orientation), "value", UPRIGHT))
            self._stated = _stated_bits(page)
            self._channels = int(page.samplesperpixel)
        self._file = file
        if not 1 <= self._channels <= MAX_CHANNELS:
            raise Unreadable(f"{self._channels} channels, more than {MAX_CHANNELS}")

    def load(self) -> tuple[list[Image.Image], Depth | None]:
        """Return one grey image for each channel, and of 16 bits per channel those that are used.

        Raises:
            Unreadable: the numbers are not whole, or of more than 16 bits, or the compression is an unusual one.
        """
        from tifffile import PLANARCONFIG, TiffFile

        with TiffFile(io.BytesIO(self._file)) as tiff:
            page: Any = tiff.pages.first
            try:
                values = page.asarray()
            except ValueError as error:
                if "imagecodecs" not in str(error):
                    raise
                name = page.compression.name
                raise Unreadable(f"a TIFF of several channels compressed by {name}, not plain or Deflate") from error
            if values.ndim == 3 and int(page.planarconfig) == PLANARCONFIG.SEPARATE:
                values = np.moveaxis(values, 0, -1)
        width, height = self.size
        return scaled_bands(values.reshape(height, width, self._channels), self._stated)


def scaled_bands(values: npt.NDArray[Any], stated: int | None) -> tuple[list[Image.Image], Depth | None]:
    """Return each channel of ``values``, (H, W, C), in eight bits, and of 16 bits per channel those that are used."""
    depth = None
    if values.dtype == np.uint16:
        depth = depth_of(values, stated)
        values = eight_bits(values, depth)
    if values.dtype != np.uint8:
        raise Unreadable(f"numbers of the type {values.dtype}, whose range is not known")
    return [Image.fromarray(np.ascontiguousarray(values[..., place])) for place in range(values.shape[2])], depth


def _stated_bits(page: Any) -> int | None:
    if int(page.bitspersample) not in (8, 16):
        return int(page.bitspersample)
    value = getattr(page.tags.get(ExifTags.Base.MaxSampleValue), "value", 0)
    largest = max(value) if isinstance(value, tuple) else value
    return int(largest).bit_length() or None
