"""Channels of unusual pictures: of 16 bits each, and of other numbers than one and three.

Cameras and scanners store 10, 12 or 14 bits at the lower end of 16: the eight highest of 16 would be next to black. So
the bits that are used are scaled to eight, as many as the file says or as its values need.

Networks of other numbers of channels get every channel as it is. Pillow opens grey with transparency, colour with
transparency and printing colours. TIFF files of any number of channels are read by tifffile, since Pillow drops those
beyond the colours, or does not open the file.
"""

from __future__ import annotations

import io
import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from senseapp.core.texts import plural
from senseapp.data.contents import Unreadable
from senseapp.data.geometry import UPRIGHT

Values = npt.NDArray[np.uint16]

_CONTAINER, _SHOWN = 16, 8  # bits of a stored value, and of a prepared picture
_GUESSED = (8, 10, 12, 14)  # bits of sensors; a largest value above the last one fills the container
_OTHER_ORDER = {"16B": "16L", "16L": "16B", "16N": "16B" if sys.byteorder == "little" else "16L"}


class Depth(NamedTuple):
    """Bits used of 16 per channel; ``stated`` where the file says so, else as many as its largest value needs."""

    bits: int
    stated: bool


def has_deep_colours(image: Image.Image) -> bool:
    """Return whether an image that is not loaded yet has several channels of 16 bits, which Pillow cuts to 8."""
    tiles: list[Any] = getattr(image, "tile", [])
    return len(image.getbands()) > 1 and any(_raw_mode(tile)[-3:] in _OTHER_ORDER for tile in tiles)


def deep_values(image: Image.Image, file: bytes, *, deep_colours: bool) -> Values | None:
    """Return the values of a loaded image with 16 bits per channel, (H, W) or (H, W, C); None where it has fewer.

    Of ``deep_colours`` Pillow keeps the high bytes. Read in the other byte order, it keeps the low ones; where the high
    ones show that all bits are used, these are not needed and left at 0.

    Raises:
        Unreadable: whole numbers of more than 16 bits, or low bytes that are needed and cannot be had.
    """
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or int(values.max()) >> _CONTAINER:
            raise Unreadable("whole numbers of more than 16 bits")
        return values.astype(np.uint16)
    if not deep_colours:
        return None
    high: Values = np.left_shift(np.asarray(image, dtype=np.uint16), np.uint16(_SHOWN), dtype=np.uint16)
    return high if int(high.max()) >> max(_GUESSED) else high | _low_bytes(image, file)


def _low_bytes(image: Image.Image, file: bytes) -> Values:
    with Image.open(io.BytesIO(file), formats=[image.format or ""]) as again:
        again.tile = [_swapped(tile) for tile in again.tile]
        try:
            return np.asarray(again, dtype=np.uint16)
        except ValueError as error:  # a byte order that Pillow does not read for these channels
            raise Unreadable("16 bits per channel in a form of which only the 8 highest can be read") from error


def depth_of(values: Values, stated_bits: int | None) -> Depth:
    """Return how many bits ``values`` use, where the file says ``stated_bits``."""
    largest = int(values.max())
    if stated_bits is not None and largest < 1 << stated_bits:
        return Depth(stated_bits, stated=True)
    bits = next((bits for bits in _GUESSED if largest < 1 << bits), _CONTAINER)
    return Depth(bits, stated=False)


def stated_bits(image: Image.Image, file: bytes) -> int | None:
    """Return how many bits per channel the file says are used: TIFF's tags, PNG's sBIT; None where it does not.

    Pillow has scaled the values of PGM and PPM by their maximum to 16 bits already.
    """
    if image.format == "PPM":
        return _CONTAINER
    if image.format == "PNG":
        return _significant_bits(file)
    if image.format != "TIFF":
        return None
    tags = image.tag_v2  # type: ignore[attr-defined]
    bits = [value.bit_length() for value in _numbers(tags.get(ExifTags.Base.MaxSampleValue)) if value > 0]
    bits = bits or [value for value in _numbers(tags.get(ExifTags.Base.BitsPerSample)) if value != _CONTAINER]
    return max(bits) if bits and max(bits) <= _CONTAINER else None


def eight_bits(values: Values, depth: Depth) -> npt.NDArray[np.uint8]:
    """Return ``values`` with their used bits scaled to eight."""
    if depth.bits >= _SHOWN:
        return (values >> (depth.bits - _SHOWN)).astype(np.uint8)
    return (values.astype(np.uint32) * 255 // ((1 << depth.bits) - 1)).astype(np.uint8)


def depth_note(depth: Depth, count: int) -> str:
    """Return the note on how so many pictures were scaled."""
    pictures = plural(count, "picture")
    if depth.bits == _CONTAINER:
        return f"{pictures} scaled from 16 to 8 bits per channel."
    if depth.stated:
        return (
            f"{pictures} scaled from {depth.bits} to 8 bits per channel, as many of the 16 as their files say they use."
        )
    largest = (1 << depth.bits) - 1
    return (
        f"{pictures} scaled from {depth.bits} to 8 bits per channel: none of their values, of 16 bits each, is above "
        f"{largest:,}."
    )


def mixed_depths_note(bits: int, count: int) -> str:
    """Return the note that so many pictures use few of the bits of all: dark ones, or another camera's."""
    return (
        f"No value of {plural(count, 'picture')} among these is above {(1 << bits) - 1:,}: if their cameras store "
        f"{bits} bits, they are too dark here. Measure them apart, or store all with the same number of bits."
    )


def _numbers(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, tuple) else (value,)
    return tuple(int(each) for each in values if isinstance(each, int | float))


def _significant_bits(file: bytes) -> int | None:
    """Return the largest number in the chunk sBIT, which lies before the pixels."""
    place = 8  # behind the signature; length, type and checksum of a chunk have 4 bytes each: PNG, 5.2 and 5.3
    while place + 12 <= len(file):
        length, kind = int.from_bytes(file[place : place + 4], "big"), file[place + 4 : place + 8]
        if kind == b"sBIT":
            bits = max(file[place + 8 : place + 8 + min(length, 4)], default=0)
            return bits if 0 < bits <= _CONTAINER else None
        if kind == b"IDAT":
            return None
        place += length + 12
    return None


def _raw_mode(tile: Any) -> str:
    return str(tile.args if isinstance(tile.args, str) else tile.args[0])


def _swapped(tile: Any) -> Any:
    mode = _raw_mode(tile)
    other = mode[:-3] + _OTHER_ORDER[mode[-3:]]
    return tile._replace(args=other if isinstance(tile.args, str) else (other, *tile.args[1:]))


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
