"""Channels of unusual pictures: of 16 bits each, and of other numbers than one and three.

Cameras and scanners store 10, 12 or 14 bits at the lower end of 16: the eight highest of 16 would be next to black. So
values are scaled to eight bits by as many as the largest one needs, all pictures of a set alike. Of colours Pillow
keeps the eight highest bits, so a picture of colours that does not use them is refused.

Networks of other numbers of channels get every channel as it is. Pillow opens grey with transparency, colour with
transparency and printing colours. TIFF files of any number of channels are read by tifffile, since Pillow drops those
beyond the colours, or does not open the file.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from senseapp.core.texts import plural
from senseapp.data.contents import Unreadable
from senseapp.data.geometry import UPRIGHT

CONTAINER_BITS = 16  # of a stored value
_SHOWN_BITS = 8  # of a prepared picture
_SENSOR_BITS = (8, 10, 12, 14)  # a largest value above the last one fills the container
_DEEP_MODES = ("16B", "16L", "16N")  # ends of Pillow's raw modes


def has_deep_colours(image: Image.Image) -> bool:
    """Return whether an image that is not loaded yet has several channels of 16 bits, which Pillow cuts to 8."""
    tiles: list[Any] = getattr(image, "tile", [])
    modes = [str(tile.args if isinstance(tile.args, str) else tile.args[0]) for tile in tiles]
    return len(image.getbands()) > 1 and any(mode.endswith(_DEEP_MODES) for mode in modes)


def require_high_bits(image: Image.Image) -> None:
    """Raise Unreadable for a loaded image of deep colours whose values need the bits that Pillow has cut off."""
    if int(np.asarray(image).max()) < 1 << (max(_SENSOR_BITS) - _SHOWN_BITS):
        raise Unreadable("16 bits per channel, of which only the 8 highest can be read and hardly any is used")


def in_eight_bits(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], int]:
    """Return whole numbers of up to 16 bits scaled to eight, and how many bits the largest of them needs.

    Raises:
        Unreadable: some are negative, or need more than 16 bits.
    """
    if values.min() < 0 or int(values.max()) >> CONTAINER_BITS:
        raise Unreadable("whole numbers of more than 16 bits")
    largest = int(values.max())
    bits = next((bits for bits in _SENSOR_BITS if largest < 1 << bits), CONTAINER_BITS)
    return (values >> (bits - _SHOWN_BITS)).astype(np.uint8), bits


def bits_note(bits: int, count: int) -> str:
    """Return the note that so many pictures were scaled from as many bits as the brightest needs."""
    scaled = f"{plural(count, 'picture')} scaled from {bits} to 8 bits per channel"
    if bits == CONTAINER_BITS:
        return f"{scaled}."
    return f"{scaled}: none of their values, of 16 bits each, is above {(1 << bits) - 1:,}."


# ---- many channels

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
            self._channels = int(page.samplesperpixel)
        self._file = file
        if not 1 <= self._channels <= MAX_CHANNELS:
            raise Unreadable(f"{self._channels} channels, more than {MAX_CHANNELS}")

    def load(self) -> tuple[list[Image.Image], int]:
        """Return one grey image for each channel, and of 16 bits per channel how many are used; 0 for others.

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
        bits = 0
        if values.dtype == np.uint16:
            values, bits = in_eight_bits(values)
        if values.dtype != np.uint8:
            raise Unreadable(f"numbers of the type {values.dtype}, whose range is not known")
        width, height = self.size
        values = values.reshape(height, width, self._channels)
        return [Image.fromarray(np.ascontiguousarray(values[..., place])) for place in range(self._channels)], bits
