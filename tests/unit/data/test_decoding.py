"""Pictures of every kind come out as eight bits grey or colour, and those that cannot are named a reason."""

import io
import struct
import zlib

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from senseapp.data import decoding
from senseapp.data.contents import Unreadable
from senseapp.data.decoding import decoded_picture
from tests.pictures import encoded, png, random_picture


def decode(file, mode="RGB"):
    return decoded_picture(file, mode)


def pixels(file, mode="RGB"):
    return np.asarray(decode(file, mode).picture)


def png_header(width, height):
    """Return the start of a PNG that announces a size and holds no pixels."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return start + struct.pack(">I", 100) + b"IDAT"


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_colour_is_kept_bit_for_bit(kind):
    picture = random_picture()
    assert np.array_equal(pixels(encoded(picture, kind)), np.asarray(picture))
    assert decode(encoded(picture, kind)).remarks == ()


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {"quality": 95}), ("WEBP", {"quality": 95})])
def test_lossy_formats_are_read(kind, options):
    picture = Image.new("RGB", (16, 16), (200, 100, 50))
    assert np.abs(pixels(encoded(picture, kind, **options)).astype(int) - (200, 100, 50)).max() <= 3


def test_grey_and_colour_become_each_other():
    assert np.array_equal(pixels(png(), "L"), np.asarray(random_picture().convert("L")))
    grey = random_picture(mode="L")
    assert np.array_equal(pixels(encoded(grey)), np.repeat(np.asarray(grey)[..., None], 3, axis=2))


def test_a_palette_is_looked_up():
    picture = Image.new("RGB", (4, 4), (10, 200, 30)).quantize(4)
    assert pixels(encoded(picture, "GIF"))[0, 0].tolist() == [10, 200, 30]


@pytest.mark.filterwarnings("error")
def test_a_palette_with_transparency():
    picture = Image.new("P", (4, 4))
    picture.putpalette([10, 200, 30] + [0] * 765)
    decoded = decode(encoded(picture, transparency=bytes([128, 255])))
    assert decoded.remarks == ("transparent",)
    assert np.asarray(decoded.picture)[0, 0].tolist() == [10, 200, 30]


def test_numbers_without_a_known_range_are_left_out():
    for values, reason in (
        (np.full((4, 4), 70_000, np.int32), "more than 16 bits"),
        (np.ones((4, 4), np.float32), "fra"),
    ):
        with pytest.raises(Unreadable, match=reason):
            decode(encoded(Image.fromarray(values), "TIFF"))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(kind):
    red, blue = (Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 0, 255)))
    options = {"lossless": True} if kind == "WEBP" else {}
    decoded = decode(encoded(red, kind, save_all=True, append_images=[blue], **options))
    assert decoded.remarks == ("animated",)
    assert np.asarray(decoded.picture)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "empty file"),
        (b"hello", "not a picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture"),
        (encoded(random_picture(), "PDF"), "not a picture"),
        (png()[:100], "damaged"),
        (encoded(random_picture(size=(64, 64)), "JPEG")[:600], "damaged"),
        (png_header(100, 100), "damaged"),
        (png_header(100_000, 100_000), "too many pixels"),
        (png_header(8_001, 8_000), "8,001 × 8,000 pixels, more than 64 million"),
        (png_header(51, 1), "a strip of 51 × 1 pixels"),
        (png_header(0, 5), "not a picture|no pixels|damaged"),
    ],
)
def test_files_that_are_no_picture_of_ours(file, words):
    with pytest.raises(Unreadable, match=words):
        decode(file)


def test_a_picture_at_the_limits_is_read(monkeypatch):
    monkeypatch.setattr(decoding, "MAX_PIXELS", 120)
    decode(png())
    monkeypatch.setattr(decoding, "MAX_PIXELS", 119)
    with pytest.raises(Unreadable, match="more than"):
        decode(png())
    decode(encoded(Image.new("RGB", (50, 1))))


def heic(values, **how):
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(values)).save(file, format="HEIF", quality=100, **how)
    return file.getvalue()


def test_a_photograph_of_a_phone_is_read():
    ramp = np.tile(np.linspace(0, 255, 64, dtype=np.uint8)[None, :, None], (48, 1, 3))
    found = pixels(heic(ramp))
    assert found.shape == ramp.shape
    assert np.abs(found.astype(int) - ramp).mean() < 1
    assert decode(heic(ramp)).remarks == ()


def test_ten_bits_of_a_phone_are_scaled_to_eight():
    ramp = np.tile(np.linspace(0, 255, 64, dtype=np.uint8)[None, :, None], (48, 1, 3))
    file = io.BytesIO()
    deep = pillow_heif.from_bytes(mode="RGB;16", size=(64, 48), data=(ramp.astype(np.uint16) * 257).tobytes())
    deep.save(file, quality=100)
    assert np.abs(pixels(file.getvalue()).astype(int) - ramp).mean() < 1


@pytest.mark.parametrize("part", [0.05, 0.9])
def test_a_cut_photograph_of_a_phone_is_left_out(part):
    file = heic(np.zeros((48, 64, 3), np.uint8))
    with pytest.raises(Unreadable, match=r"not a picture|damaged"):
        decode(file[: int(part * len(file))])
