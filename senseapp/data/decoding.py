"""Decode picture files to eight bits per channel, with a limit on the pixels decoded at the same time."""

from __future__ import annotations

import io
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Condition
from typing import Any, Literal, Protocol, TypeAlias

import pillow_heif
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from senseapp.data.bands import TiffBands, is_tiff
from senseapp.data.bit_depth import Depth, deep_values, depth_of, eight_bits, has_deep_colours, stated_bits
from senseapp.data.contents import Unreadable


class PixelBudget(Protocol):
    """Room for the pixels of pictures that are decoded at the same time."""

    def hold(self, pixels: int, /) -> AbstractContextManager[None]:
        """Wait until there is room for ``pixels``, and keep it inside the block."""
        ...


class PixelSemaphore:
    """Limits the pixels that threads decode at the same time; a picture above the limit is decoded alone."""

    def __init__(self, pixels: int) -> None:
        self._total = self._free = pixels
        self._released = Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for ``pixels``, and keep it inside the block."""
        held = min(pixels, self._total)
        with self._released:
            self._released.wait_for(lambda: self._free >= held)
            self._free -= held
        try:
            yield
        finally:
            with self._released:
                self._free += held
                self._released.notify_all()


MAX_PIXELS = 64_000_000
"""A larger picture is left out unread; a file of a few bytes can announce any size."""
MAX_SCAN_PIXELS = 1_000_000_000
"""Each scan of a progressive JPEG passes over all pixels; ordinary ones have up to 15 scans, hostile ones thousands."""
MAX_ASPECT = 50
"""Resizing the shorter side of a longer strip to the network's would blow it up."""

ChannelMode: TypeAlias = Literal["L", "RGB", "bands"]
Remark: TypeAlias = Literal["animated", "transparent", "rotated", "turned", "CMYK"]

# the formats of PICTURE_SUFFIXES and no others: some of Pillow's readers start programs or are rarely attacked
_FORMATS = ("BMP", "GIF", "HEIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)
_ORIENTATION = 0x0112
_UPRIGHT = 1
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture with this mark upright; Exif 2.32, tag 0x0112."""
_START_OF_SCAN = b"\xff\xda"
_JPEG_IN_TIFF = (6, 7)  # values of the tag for its compression


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """The resize that a preparation begins with: the shorter side in pixels, and the name of Pillow's filter."""

    shorter_side: int
    resampling: str

    def of(self, picture: Image.Image) -> Image.Image:
        """Return the resized picture, as torchvision's ``Resize`` of one number makes it."""
        shorter = min(picture.size)
        size = tuple(self.shorter_side * side // shorter for side in picture.size)
        return picture.resize((size[0], size[1]), Image.Resampling[self.resampling])


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A picture and what a person may want to know about it.

    Attributes:
        picture: as it is in the file, or resized where that was asked for.
        size: (width, height) in pixels, as it is in the file.
        depth: bits used, of those with 16 bits per channel; None for others.
        more: of ``bands`` the channels behind the first, which is ``picture``, each a grey one.
    """

    picture: Image.Image
    size: tuple[int, int]
    remarks: tuple[Remark, ...]
    depth: Depth | None = None
    more: tuple[Image.Image, ...] = ()


@contextmanager
def decoded_picture(file: bytes, mode: ChannelMode, budget: PixelBudget, *, upright: bool = False) -> Iterator[Decoded]:
    """Decode a picture to grey (``L``) or colour (``RGB``), as torchvision's image folders do, or all its channels.

    The first frame of an animation is taken, transparency dropped, and a camera's rotation mark ignored unless
    ``upright`` asks for it: this is what networks are trained and tested on. Of 16 bits per channel those that are used
    are scaled to eight, not clipped.
    The picture's share of ``budget`` is held until the block ends.

    Raises:
        Unreadable: not a picture, damaged, too large, or of a kind without a known range of values.
    """
    if not file:
        raise Unreadable("empty file")
    if mode == "bands" and is_tiff(file):
        yield from _tiff_bands(file, budget)
        return
    with _as_unreadable():
        image = Image.open(io.BytesIO(file), formats=_FORMATS)  # reads the header only
    width, height = image.size
    _check_size(width, height)
    if image.format in ("JPEG", "MPO"):
        _check_scans(file, width * height)
    elif isinstance(image, TiffImagePlugin.TiffImageFile):
        tags = image.tag_v2
        if tags.get(TiffImagePlugin.COMPRESSION) in _JPEG_IN_TIFF:
            _check_scans(file, _pixels_of_part(tags, width, height))
    with budget.hold(width * height):
        with _as_unreadable():
            decoded = _decode(image, file, mode, upright=upright)
        del image  # its pixels, where they were converted
        yield decoded


@contextmanager
def _as_unreadable() -> Iterator[None]:
    """Turn whatever goes wrong while a picture is read into the reason why it is left out."""
    try:
        yield
    except Unreadable:
        raise
    except UnidentifiedImageError as error:
        raise Unreadable("not a picture") from error
    except Image.DecompressionBombError as error:
        raise Unreadable("too many pixels") from error
    except MemoryError as error:
        raise Unreadable("takes too much memory to decode") from error
    except Exception as error:  # on damaged files Pillow's readers raise whatever their parsing runs into
        raise Unreadable("damaged") from error


def _decode(image: Image.Image, file: bytes, mode: ChannelMode, *, upright: bool) -> Decoded:
    with image:
        is_deep, stated, animated = has_deep_colours(image), stated_bits(image, file), _is_animated(image)
        image.load()
        remarks = (*animated, *_remarks(image, upright=upright))
        values, depth = deep_values(image, file, deep_colours=is_deep), None
        if values is not None:
            depth = depth_of(values, stated)
            picture = Image.frombytes(image.mode if is_deep else "L", image.size, eight_bits(values, depth).tobytes())
        else:
            picture = _eight_bits(image)
        if upright and (turn := _TURNS.get(image.getexif().get(_ORIENTATION, _UPRIGHT))) is not None:
            picture = picture.transpose(turn)
        if mode == "bands":
            return _of_bands(_own_bands(picture), remarks, depth)
        picture = picture if picture.mode == mode else picture.convert(mode)
        return Decoded(picture=picture, size=picture.size, remarks=remarks, depth=depth)


def _own_bands(picture: Image.Image) -> Sequence[Image.Image]:
    """Return the channels that are stored: those of a palette are its colours."""
    return (picture.convert("RGB") if picture.mode == "P" else picture).split()


def _of_bands(bands: Sequence[Image.Image], remarks: tuple[Remark, ...], depth: Depth | None) -> Decoded:
    told = tuple(remark for remark in remarks if remark not in ("transparent", "CMYK"))  # nothing is dropped
    return Decoded(picture=bands[0], size=bands[0].size, remarks=told, depth=depth, more=tuple(bands[1:]))


def _tiff_bands(file: bytes, budget: PixelBudget) -> Iterator[Decoded]:
    with _as_unreadable():
        tiff = TiffBands(file)
    _check_size(*tiff.size)
    with budget.hold(tiff.size[0] * tiff.size[1]):
        with _as_unreadable():
            bands, depth = tiff.load()
            turn = _TURNS.get(tiff.orientation)
            bands = [band if turn is None else band.transpose(turn) for band in bands]  # as Pillow does for TIFF
        yield _of_bands(bands, (), depth)


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise Unreadable("no pixels")
    if width * height > MAX_PIXELS:
        raise Unreadable(f"{width:,} × {height:,} pixels, more than {MAX_PIXELS // 1_000_000} million")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise Unreadable(f"a strip of {width:,} × {height:,} pixels")


def _check_scans(file: bytes, pixels: int) -> None:
    """Count the markers before libjpeg decodes each scan; in the data of a scan these two bytes never follow."""
    if (scans := file.count(_START_OF_SCAN)) * pixels > MAX_SCAN_PIXELS:
        raise Unreadable(f"a JPEG of {scans:,} scans, which takes far more work than its pixels")


def _pixels_of_part(tags: MutableMapping[int, Any], width: int, height: int) -> int:
    """Return the pixels of one tile or strip of a TIFF, which holds a JPEG of its own."""
    if TiffImagePlugin.TILEWIDTH in tags and TiffImagePlugin.TILELENGTH in tags:
        return int(tags[TiffImagePlugin.TILEWIDTH]) * int(tags[TiffImagePlugin.TILELENGTH])
    return width * min(height, int(tags.get(TiffImagePlugin.ROWSPERSTRIP, height)))


def _is_animated(image: Image.Image) -> tuple[Remark, ...]:
    is_so = image.format != "MPO" and getattr(image, "is_animated", False)  # MPO: a photo with its preview
    return ("animated",) if is_so else ()


def _remarks(image: Image.Image, *, upright: bool) -> tuple[Remark, ...]:
    """Return what is unusual in a loaded image; of TIFF, Pillow has followed the mark already, and removed it."""
    remarks: list[Remark] = []
    if image.has_transparency_data:
        remarks.append("transparent")
    if image.mode == "CMYK":
        remarks.append("CMYK")
    if image.getexif().get(_ORIENTATION, _UPRIGHT) in _TURNS:
        remarks.append("turned" if upright else "rotated")
    return tuple(remarks)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return the image in a mode that converts to grey and colour by the usual rules."""
    if image.mode == "F":
        raise Unreadable("fractional numbers, whose range is not known")
    if image.mode in ("P", "PA") and image.has_transparency_data:
        return image.convert("RGBA")  # otherwise Pillow warns about each of them
    return image
