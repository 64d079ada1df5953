"""Pictures of 16 bits per channel that use fewer: eight bits as NumPy scales them, and a note that says so."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from PIL import Image

from senseapp.data.contents import Unreadable
from senseapp.data.decoding import Decoded, decoded_picture
from senseapp.data.geometry import EvalTransform
from senseapp.data.load import load_images
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import DataSpec
from senseapp.tasks import CLASSIFICATION
from tests.cases import first_of
from tests.pictures import encoded, write_folder

Values = npt.NDArray[np.uint16]
SIZE = 9
PLAIN = Preprocessing(input_shape=(1, SIZE, SIZE), mean=(0.0,), std=(1.0,))
COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}


def values_of(bits: int, channels: int = 1, seed: int = 0) -> Values:
    """Return values of so many bits, the largest of them included."""
    found = np.random.default_rng(seed).integers(0, 1 << bits, (SIZE, SIZE, channels), dtype=np.uint16)
    found[0, 0] = (1 << bits) - 1
    return found


def png16(values: Values) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, channels = values.shape
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, COLOUR_TYPES[channels], 0, 0, 0)),
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in values))),
            chunk(b"IEND", b""),
        )
    )


def tiff16(values: Values) -> bytes:
    file = io.BytesIO()
    colours = values.shape[2] > 1
    tifffile.imwrite(file, values if colours else values[..., 0], photometric="rgb" if colours else "minisblack")
    return file.getvalue()


def pgm16(values: Values, largest: int) -> bytes:
    return f"P5 {SIZE} {SIZE} {largest}\n".encode() + values[..., 0].astype(">u2").tobytes()


def decoded(file: bytes, channels: int = 1, *, upright_size: tuple[int, int] | None = None) -> Decoded:
    """Decode a picture, on request turned upright to this size and not cropped."""
    transform = None
    if upright_size is not None:
        width, height = upright_size
        transform = EvalTransform(width=width, height=height, crop_pct=1.0, interpolation="nearest", upright=True)
    return decoded_picture(file, "RGB" if channels > 1 else "L", transform)


def pixels(found: Decoded) -> npt.NDArray[np.uint8]:
    return np.asarray(found.picture).reshape(SIZE, SIZE, -1)


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("write", [png16, tiff16])
def test_the_bits_that_values_need_are_scaled_to_eight(bits: int, write) -> None:
    values = values_of(bits)
    found = decoded(write(values))
    assert found.bits == bits
    assert (pixels(found) == values // 2 ** (bits - 8)).all()


@pytest.mark.parametrize(("write", "channels"), [(png16, 2), (png16, 3), (tiff16, 3)])
def test_of_colours_the_highest_bits_are_read_or_the_picture_is_refused(write, channels: int) -> None:
    shown = 1 if channels == 2 else 3
    values = values_of(16, channels)
    found = decoded(write(values), shown)
    assert found.bits == 16
    assert (pixels(found) == values[..., :shown] >> 8).all()
    with pytest.raises(Unreadable, match="only the 8 highest"):
        decoded(write(values_of(12, channels)), shown)


@pytest.mark.parametrize("bits", [10, 12, 16])
def test_portable_grey_maps_are_scaled_by_their_maximum(bits: int) -> None:
    values, largest = values_of(bits), (1 << bits) - 1
    found = pixels(decoded(pgm16(values, largest))).astype(int)
    assert np.abs(found - values.astype(int) * 255 / largest).max() <= 1


def folder_of(path: Path, *files: bytes) -> DataSpec:
    named = {f"{number}.png": file for number, file in enumerate(files)}
    return DataSpec(kind="folder", path=str(write_folder(path, named)))


def test_pictures_of_one_set_are_scaled_alike(tmp_path: Path) -> None:
    bright, dark = values_of(12), values_of(10, seed=1)
    images = load_images(folder_of(tmp_path, png16(bright), png16(dark)), PLAIN, num_classes=2, task=CLASSIFICATION)
    found = np.rint(images.batch(0, 2).numpy()[:, 0] * 255)
    assert (found[0] == bright[..., 0] >> 4).all()
    assert np.abs(found[1] - (dark[..., 0] >> 4)).max() <= 1
    assert (
        "2 pictures scaled from 12 to 8 bits per channel: none of their values, of 16 bits each, is above 4,095."
        in (images.notes)
    )


def with_mark(mark: int, kind: str) -> bytes:
    """Return a picture with four different corners, stored so that ``mark`` tells how to turn it."""
    image = Image.fromarray(np.array([[0, 85], [170, 255]], dtype=np.uint8).repeat(8, 0).repeat(16, 1))
    exif = image.getexif()
    exif[0x0112] = mark
    return encoded(image, kind, exif=exif, **({"quality": 100} if kind == "JPEG" else {}))


UPRIGHT = {
    1: [[0, 85], [170, 255]],
    2: [[85, 0], [255, 170]],
    3: [[255, 170], [85, 0]],
    4: [[170, 255], [0, 85]],
    5: [[0, 170], [85, 255]],
    6: [[170, 0], [255, 85]],
    7: [[255, 85], [170, 0]],
    8: [[85, 255], [0, 170]],
}
"""Where the first row and column of each mark belong, by the table of Exif 2.32."""


@pytest.mark.parametrize("mark", UPRIGHT)
@pytest.mark.parametrize("kind", first_of(["JPEG", "PNG"]))
def test_a_rotation_mark_is_followed_on_request_only(mark: int, kind: str) -> None:
    file = with_mark(mark, kind)
    stored, turned = decoded(file), decoded(file, upright_size=(32, 16) if mark < 5 else (16, 32))

    def corners(found: Decoded) -> npt.NDArray[np.int64]:
        picture = np.asarray(found.picture).astype(int)
        return picture[:: picture.shape[0] - 1, :: picture.shape[1] - 1]

    assert np.abs(corners(stored) - UPRIGHT[1]).max() <= 2
    assert np.abs(corners(turned) - UPRIGHT[mark]).max() <= 2
    assert stored.remarks == (() if mark == 1 else ("rotated",))
    assert turned.remarks == (() if mark == 1 else ("turned",))
    assert turned.size == (stored.size if mark < 5 else stored.size[::-1])


def test_a_tiff_is_upright_already_and_nothing_is_said() -> None:
    file = io.BytesIO()
    tifffile.imwrite(file, np.zeros((4, 8), np.uint8), extratags=[(274, "H", 1, 6, False)])
    for size in (None, (4, 8)):
        found = decoded(file.getvalue(), upright_size=size)
        assert (found.size, found.remarks) == ((4, 8), ())


def test_a_run_turns_its_pictures_as_its_settings_say(tmp_path: Path) -> None:
    spec = folder_of(tmp_path, with_mark(3, "PNG"))
    shape = Preprocessing(input_shape=(1, 16, 16), mean=(0.0,), std=(1.0,))
    stored = load_images(spec, shape, num_classes=2, task=CLASSIFICATION)
    turned = load_images(
        DataSpec(kind="folder", path=spec.path, upright=True), shape, num_classes=2, task=CLASSIFICATION
    )
    assert (stored.batch(0, 1).rot90(2, (2, 3)) == turned.batch(0, 1)).all()
    assert any("rotation mark is ignored" in note for note in stored.notes)
    assert any("turned upright" in note for note in turned.notes)
