"""Decode picture files to eight bits per channel.

Cameras and scanners store 10, 12 or 14 bits at the lower end of 16: the eight highest of 16 would be next to black. So
values are scaled to eight bits by as many as the largest one needs, all pictures of a set alike. Of colours Pillow
keeps the eight highest bits, so a picture of colours that does not use them is refused.

Networks of other numbers of channels than one and three get every channel as it is. Pillow opens grey with
transparency, colour with transparency and printing colours. TIFF files of any number of channels are read by tifffile,
since Pillow drops those beyond the colours, or does not open the file.
"""

import io
import struct
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pillow_heif
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from senseapp.core.texts import plural
from senseapp.data.contents import Unreadable
from senseapp.data.geometry import TURNS, UPRIGHT, EvalTransform, Geometry

MAX_PIXELS = 64_000_000
"""A larger picture is left out unread; a file of a few bytes can announce any size."""
MAX_SCAN_PIXELS = 1_000_000_000
"""Each scan of a progressive JPEG passes over all pixels; ordinary ones have up to 15 scans, hostile ones thousands."""

ChannelMode: TypeAlias = Literal["L", "RGB", "bands", "index"]
"""Grey, colour, all channels that there are, or the class numbers of a label image."""
Remark: TypeAlias = Literal["animated", "transparent", "rotated", "turned", "CMYK"]

# the formats of PICTURE_SUFFIXES and no others: some of Pillow's readers start programs or are rarely attacked
_FORMATS = ("BMP", "GIF", "HEIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)
_REASONS = (
    (UnidentifiedImageError, "not a picture"),
    (Image.DecompressionBombError, "too many pixels"),
    (MemoryError, "takes too much memory to decode"),
)
_LOSSY = ("HEIF", "JPEG", "MPO", "WEBP")
_LARGEST_CLASS = 255  # label images are kept in 8 bits for each pixel
_START_OF_SCAN = b"\xff\xda"
_CONTAINER_BITS = 16  # of a stored value
_SHOWN_BITS = 8  # of a prepared picture
_SENSOR_BITS = (8, 10, 12, 14)  # a largest value above the last one fills the container
_DEEP_MODES = ("16B", "16L", "16N")  # ends of Pillow's raw modes
MAX_CHANNELS = 64
"""Satellite and medical networks take up to some tens; each is a whole picture in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A decoded picture with remarks for the user.

    Attributes:
        picture: as it is in the file, or prepared where that was asked for.
        size: (width, height) in pixels, as it is in the file, or turned upright where that was asked for.
        bits: used of 16 per channel; 0 for pictures with fewer.
        more: of ``bands`` the channels behind the first, which is ``picture``, each a grey one.
        geometry: of a prepared picture.
    """

    picture: Image.Image
    size: tuple[int, int]
    remarks: tuple[Remark, ...]
    bits: int = 0
    more: tuple[Image.Image, ...] = ()
    geometry: Geometry | None = None


def decoded_picture(file: bytes, mode: ChannelMode, transform: EvalTransform | None = None) -> Decoded:
    """Decode a picture to grey (``L``) or colour (``RGB``), as torchvision's image folders do, or all its channels.

    The first frame of an animation is taken, transparency dropped, and a camera's rotation mark ignored unless the
    ``transform`` follows it: this is what networks are trained and tested on. Of 16 bits per channel those that are
    used are scaled to eight, not clipped. A label image (``index``) is returned as its values are stored, uint8. Raises
    Unreadable where it is not a picture, damaged, too large, or of a kind without a known range of values.
    """
    if not file:
        raise Unreadable("empty file")
    _check_parts(file)
    try:
        if mode == "bands" and is_tiff(file):
            return _tiff_bands(file, transform)
        image = Image.open(io.BytesIO(file), formats=_FORMATS)  # reads the header only
        width, height = image.size
        _check_size(width, height)
        if image.format in ("JPEG", "MPO"):
            _check_scans(file, width * height)
        elif isinstance(image, TiffImagePlugin.TiffImageFile):
            tags = image.tag_v2
            if tags.get(TiffImagePlugin.COMPRESSION) in (6, 7):  # values of the tag for its compression
                _check_scans(file, _pixels_of_part(tags, width, height))
        return _label_image(image) if mode == "index" else _decode(image, mode, transform)
    except Unreadable:
        raise
    except Exception as error:  # on damaged files Pillow's readers raise whatever their parsing runs into
        raise Unreadable(next((said for kind, said in _REASONS if isinstance(error, kind)), "damaged")) from error


def _decode(image: Image.Image, mode: ChannelMode, transform: EvalTransform | None) -> Decoded:
    with image:
        is_deep = _has_deep_colours(image)
        animated = image.format != "MPO" and getattr(image, "is_animated", False)  # MPO: a photo with its preview
        image.load()
        # of TIFF, Pillow has followed and removed it
        orientation = image.getexif().get(ExifTags.Base.Orientation, UPRIGHT)
        upright = transform is not None and transform.upright
        remarks = tuple(_remarks(image, orientation, animated=animated, upright=upright))
        if image.mode.startswith("I"):
            values, bits = _in_eight_bits(np.asarray(image))
            picture = Image.fromarray(values)
        else:
            picture, bits = _eight_bits(image), _CONTAINER_BITS * is_deep
            if is_deep and int(np.asarray(image).max()) < 1 << (max(_SENSOR_BITS) - _SHOWN_BITS):
                raise Unreadable("16 bits per channel, of which only the 8 highest can be read and hardly any is used")
        if mode == "bands":
            bands = (picture.convert("RGB") if picture.mode == "P" else picture).split()  # a palette's are its colours
            return _prepared(_of_bands(bands, remarks, bits), transform, orientation)
        picture = picture if picture.mode == mode else picture.convert(mode)
        found = Decoded(picture=picture, size=picture.size, remarks=remarks, bits=bits)
        return _prepared(found, transform, orientation)


def _prepared(found: Decoded, transform: EvalTransform | None, orientation: int = UPRIGHT) -> Decoded:
    if transform is None:
        return found
    geometry, resampling = transform.geometry(found.size, orientation), transform.resampling
    return replace(
        found,
        picture=geometry.picture(found.picture, resampling),
        more=tuple(geometry.picture(band, resampling) for band in found.more),
        size=geometry.upright_size,
        geometry=geometry,
    )


def _label_image(image: Image.Image) -> Decoded:
    """Return the values of a label image as they are stored: grey, the indices of a palette, or colours."""
    with image:
        if image.format in _LOSSY:
            raise Unreadable(f"a {image.format} file, which may change class numbers")
        image.load()
        values = np.asarray(image)  # (H, W) of a palette's indices, or (H, W, bands)
        colours = sum(band != "A" for band in image.getbands())
    if values.ndim == 3 and bool((values[..., :colours] == values[..., :1]).all()):  # grey, stored as colours
        values = values[..., 0]
    if values.ndim == 3 and colours == 3 and values.dtype == np.uint8 and image.mode.startswith("RGB"):
        return Decoded(picture=Image.fromarray(values[..., :3]), size=image.size, remarks=())
    if values.ndim != 2 or values.dtype.kind not in "bui":
        raise Unreadable("colours instead of class numbers")
    if values.dtype.kind != "b" and (int(values.min()) < 0 or int(values.max()) > _LARGEST_CLASS):
        raise Unreadable(f"class numbers above {_LARGEST_CLASS}")
    return Decoded(picture=Image.fromarray(values.astype(np.uint8)), size=image.size, remarks=())


def _of_bands(bands: Sequence[Image.Image], remarks: tuple[Remark, ...], bits: int) -> Decoded:
    told = tuple(remark for remark in remarks if remark not in ("transparent", "CMYK"))  # nothing is dropped
    return Decoded(picture=bands[0], size=bands[0].size, remarks=told, bits=bits, more=tuple(bands[1:]))


def is_tiff(file: bytes) -> bool:
    """Return whether a file begins as TIFF or BigTIFF files do."""
    return file[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def _tiff_bands(file: bytes, transform: EvalTransform | None) -> Decoded:
    """Decode all channels of the first image of a TIFF file, whose numbers are whole and of up to 16 bits."""
    from tifffile import PLANARCONFIG, TiffFile  # a tenth of a second, for few

    with TiffFile(io.BytesIO(file)) as tiff:
        page: Any = tiff.pages.first
        width, height, channels = int(page.imagewidth), int(page.imagelength), int(page.samplesperpixel)
        if not 1 <= channels <= MAX_CHANNELS:
            raise Unreadable(f"{channels} channels, more than {MAX_CHANNELS}")
        _check_size(width, height)
        try:
            values = page.asarray()
        except ValueError as error:
            if "imagecodecs" not in str(error):
                raise
            name = page.compression.name
            raise Unreadable(f"a TIFF of several channels compressed by {name}, not plain or Deflate") from error
        if values.ndim == 3 and int(page.planarconfig) == PLANARCONFIG.SEPARATE:
            values = np.moveaxis(values, 0, -1)
        turn = TURNS.get(int(getattr(page.tags.get(ExifTags.Base.Orientation), "value", UPRIGHT)))
    values, bits = _in_eight_bits(values) if values.dtype == np.uint16 else (values, 0)
    if values.dtype != np.uint8:
        raise Unreadable(f"numbers of the type {values.dtype}, whose range is not known")
    planes = np.moveaxis(values.reshape(height, width, channels), -1, 0)
    bands = [Image.fromarray(np.ascontiguousarray(plane)) for plane in planes]
    bands = [band if turn is None else band.transpose(turn) for band in bands]  # as Pillow does for TIFF
    return _prepared(_of_bands(bands, (), bits), transform)


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise Unreadable("no pixels")
    if width * height > MAX_PIXELS:
        raise Unreadable(f"{width:,} × {height:,} pixels, more than {MAX_PIXELS // 1_000_000} million")
    if max(width, height) > 50 * min(width, height):  # resizing its shorter side to the network's would blow it up
        raise Unreadable(f"a strip of {width:,} × {height:,} pixels")


def _check_scans(file: bytes, pixels: int) -> None:
    """Count the markers before libjpeg decodes each scan; in the data of a scan these two bytes never follow."""
    if (scans := file.count(_START_OF_SCAN)) * pixels > MAX_SCAN_PIXELS:
        raise Unreadable(f"a JPEG of {scans:,} scans, which takes far more work than its pixels")


def _check_parts(file: bytes) -> None:
    """Count the strips or tiles that the first directory of a TIFF names, before Pillow reads it."""
    order, big = {b"II": "<", b"MM": ">"}.get(file[:2]), file[2:4] in (b"+\0", b"\0+")
    if order is None or not (big or is_tiff(file)):
        return
    counts, entries, size, numbers = ("Q", "HHQ", 20, 8) if big else ("H", "HHL", 12, 4)
    parts = 0
    with suppress(struct.error):  # a damaged one is Pillow's to refuse
        (start,) = struct.unpack_from(order + ("Q" if big else "L"), file, numbers)
        (number,) = struct.unpack_from(order + counts, file, start)
        first = start + struct.calcsize(order + counts)
        for place in range(first, first + size * min(number, 65_535), size):  # of a directory, which has some twenty
            tag, _, values = struct.unpack_from(order + entries, file, place)
            if tag in (TiffImagePlugin.STRIPOFFSETS, TiffImagePlugin.TILEOFFSETS):
                parts = max(parts, values)
    if parts > 131_072:  # Pillow makes an object for each; 64 million pixels have up to 100,000 rows
        raise Unreadable(f"a TIFF of {parts:,} parts, which takes far more work than its pixels")


def _pixels_of_part(tags: MutableMapping[int, Any], width: int, height: int) -> int:
    """Return the pixels of one tile or strip of a TIFF, which holds a JPEG of its own."""
    if TiffImagePlugin.TILEWIDTH in tags and TiffImagePlugin.TILELENGTH in tags:
        return int(tags[TiffImagePlugin.TILEWIDTH]) * int(tags[TiffImagePlugin.TILELENGTH])
    return width * min(height, int(tags.get(TiffImagePlugin.ROWSPERSTRIP, height)))


def _remarks(image: Image.Image, orientation: int, *, animated: bool, upright: bool) -> Iterator[Remark]:
    """Yield what is unusual in a loaded image."""
    if animated:
        yield "animated"
    if image.has_transparency_data:
        yield "transparent"
    if image.mode == "CMYK":
        yield "CMYK"
    if orientation in TURNS:
        yield "turned" if upright else "rotated"


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return the image in a mode that converts to grey and colour by the usual rules."""
    if image.mode == "F":
        raise Unreadable("fractional numbers, whose range is not known")
    if image.mode in ("P", "PA") and image.has_transparency_data:
        return image.convert("RGBA")  # otherwise Pillow warns about each of them
    return image


# ---- 16 bits


def _has_deep_colours(image: Image.Image) -> bool:
    """Return whether an image that is not loaded yet has several channels of 16 bits, which Pillow cuts to 8."""
    tiles: list[Any] = getattr(image, "tile", [])
    modes = [str(tile.args if isinstance(tile.args, str) else tile.args[0]) for tile in tiles]
    return len(image.getbands()) > 1 and any(mode.endswith(_DEEP_MODES) for mode in modes)


def _in_eight_bits(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], int]:
    """Return whole numbers of up to 16 bits scaled to eight, and the bits of the largest; raises Unreadable."""
    if values.min() < 0 or int(values.max()) >> _CONTAINER_BITS:
        raise Unreadable("whole numbers of more than 16 bits")
    largest = int(values.max())
    bits = next((bits for bits in _SENSOR_BITS if largest < 1 << bits), _CONTAINER_BITS)
    return (values >> (bits - _SHOWN_BITS)).astype(np.uint8), bits


def bits_note(bits: int, count: int) -> str:
    """Return the note that so many pictures were scaled from as many bits as the brightest needs."""
    scaled = f"{plural(count, 'picture')} scaled from {bits} to 8 bits per channel"
    if bits == _CONTAINER_BITS:
        return f"{scaled}."
    return f"{scaled}: none of their values, of 16 bits each, is above {(1 << bits) - 1:,}."
