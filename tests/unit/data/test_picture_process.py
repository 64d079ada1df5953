"""Foreign pictures are decoded in processes that end by themselves, to the pixels that this process would decode."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from senseapp.core.errors import InvalidDataset
from senseapp.core.process import measuring_environment
from senseapp.data import decoding, picture_process, reading
from senseapp.data.archives import open_archive
from senseapp.data.contents import Unreadable
from senseapp.data.decoding import MAX_SCAN_PIXELS, decoded_picture
from senseapp.data.geometry import EvalTransform
from senseapp.data.picture_process import PictureDecoder, PictureDecoders, TooSlow
from senseapp.data.reading import read_drawn, require_readable
from senseapp.networks.loaded import Preprocessing
from soak.slow_pictures import SLOW_PICTURES
from tests.pictures import encoded, png, write_zip

ENDLESS = """
import os, signal, time
from senseapp.data import picture_process as child
def decoded(file, mode, transform):
    if file == b"killed":
        os.kill(os.getpid(), signal.SIGKILL)
    nested = ()
    for _ in range(60):
        nested = (nested, nested)
    if file == b"asleep":
        time.sleep(60)
    hash(nested)  # in C, for years
child.decoded_picture, child.CPU_SECONDS, child.WALL_SECONDS = decoded, 0.2, 0.4
child.main()
"""


@pytest.fixture(scope="module")
def decoder() -> Iterator[PictureDecoder]:
    made = PictureDecoder()
    yield made
    made.close()


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (61, 40)) -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    return encoded(Image.fromarray(values, "RGBA").convert(mode), kind)


TRANSFORM = EvalTransform(width=24, height=36, crop_pct=0.9, interpolation="bicubic", upright=True)


@pytest.mark.parametrize("transform", [None, TRANSFORM], ids=["whole", "prepared"])
@pytest.mark.parametrize(
    "file",
    [picture("PNG"), picture("JPEG", "CMYK"), picture("GIF", "P"), picture("PNG", "L", (2000, 1000)), picture("BMP")],
    ids=["png", "printing colours", "palette", "large", "bmp"],
)
def test_the_process_returns_what_this_one_decodes(
    decoder: PictureDecoder, file: bytes, transform: EvalTransform | None
) -> None:
    for mode in ("L", "RGB", "bands"):
        found = decoder.decode(file, mode, transform)  # type: ignore[arg-type]
        here = decoded_picture(file, mode, transform)  # type: ignore[arg-type]
        pairs = zip((found.picture, *found.more), (here.picture, *here.more), strict=True)
        assert all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in pairs)
        assert (found.size, found.remarks, found.geometry) == (here.size, here.remarks, here.geometry)
        assert found.picture.size == (found.size if transform is None else (24, 36))


def test_what_cannot_be_decoded_says_why_and_the_process_goes_on(decoder: PictureDecoder) -> None:
    for file, reason in ((b"", "empty file"), (b"text", "not a picture"), (png()[:60], "damaged")):
        with pytest.raises(Unreadable, match=reason):
            decoder.decode(file, "RGB")
    assert decoder.alive


@pytest.mark.parametrize("file", [b"busy", b"asleep"])
def test_a_picture_that_takes_too_long_ends_its_process(file: bytes) -> None:
    decoder = PictureDecoder(("-c", ENDLESS))
    with pytest.raises(TooSlow, match="to decode, which no ordinary picture does"):
        decoder.decode(file, "RGB")
    assert not decoder.alive
    decoder.close()


def test_a_process_that_never_answers_is_ended_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_process, "REPLY_SECONDS", 0.2)
    decoder = PictureDecoder(("-c", "import time; time.sleep(60)"))  # its own clock never starts
    with pytest.raises(TooSlow, match="was not decoded within 0 s, which no ordinary picture takes"):
        decoder.decode(png(), "RGB")
    assert not decoder.alive
    decoder.close()


def test_a_process_that_an_exchange_was_broken_off_with_takes_no_other_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = PictureDecoder()
    monkeypatch.setattr(picture_process, "read_line", dict[bytes, str]().__getitem__)
    with pytest.raises(KeyError):
        decoder.decode(picture("PNG", "L"), "RGB")
    assert not decoder.alive


def test_a_process_that_is_killed_costs_its_picture_and_the_next_one_is_decoded() -> None:
    pool = PictureDecoders()
    pool._idle.append(PictureDecoder(("-c", ENDLESS)))
    with pytest.raises(Unreadable, match="too much memory, or breaks"):
        pool.decoded(b"killed", "RGB")
    found = pool.decoded(png(), "RGB")
    assert found.picture.size == found.size
    kept = pool._idle[0]
    pool.rest()
    assert kept.alive
    pool.rest(0)
    assert not kept.alive


@pytest.mark.slow
def test_a_process_with_nothing_to_do_gives_the_memory_of_a_large_picture_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in measuring_environment().items():  # as in the processes that have decoders
        monkeypatch.setenv(name, value)
    decoder = PictureDecoder()
    process = psutil.Process(decoder.pid)
    decoder.decode(png(), "RGB")
    before = process.memory_info().rss
    decoder.decode(encoded(Image.new("RGB", (6000, 6000))), "RGB")
    end = time.monotonic() + 60
    while process.memory_info().rss > before + 30_000_000 and time.monotonic() < end:
        time.sleep(0.1)
    assert process.memory_info().rss <= before + 30_000_000  # the pixels alone have 108 MB
    decoder.close()


def test_a_jpeg_of_too_many_scans_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    file, side = SLOW_PICTURES["scans.jpg"](7), 512
    sentence = r"a JPEG of 7,\d\d\d scans, which takes far more work"
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "_decode", None)
        with pytest.raises(Unreadable, match=sentence):
            decoded_picture(file, "RGB")
    ordinary = encoded(Image.effect_noise((side, side), 80).convert("RGB"), "JPEG", progressive=True)
    assert 5 < ordinary.count(b"\xff\xda") < MAX_SCAN_PIXELS // 64_000_000
    assert decoded_picture(ordinary, "RGB").size == (side, side)


def test_a_tiff_of_too_many_strips_is_refused_before_pillow_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(decoding.Image, "open", None)
        with pytest.raises(Unreadable, match=r"a TIFF of 400,000 parts, which takes far more work"):
            decoded_picture(SLOW_PICTURES["strips.tif"](1), "RGB")
    for big in (False, True):
        rows = encoded(Image.new("L", (8, 300), 7), "TIFF", big_tiff=big, tiffinfo={278: 1})  # a strip for each row
        assert decoded_picture(rows, "L").size == (8, 300)


def test_a_tiff_of_too_many_scans_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "_decode", None)
        with pytest.raises(Unreadable, match=r"a JPEG of 3,\d\d\d scans"):
            decoded_picture(SLOW_PICTURES["scans.tif"](2), "RGB")
    side = 4096
    picture = Image.new("RGB", (side, side), "red")
    strips = encoded(picture, "TIFF", compression="jpeg", tiffinfo={278: 8})  # rows of a strip
    assert strips.count(b"\xff\xda") * side**2 > MAX_SCAN_PIXELS
    assert decoded_picture(strips, "RGB").size == (side, side)


def test_slow_pictures_are_left_out_until_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is left out with a sentence; a source with several is refused, as each costs seconds."""
    square = Preprocessing(input_shape=(3, 8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
    slow = {b"slow 1", b"slow 2"}
    real = reading.decoded

    def decoded(file: bytes, *rest: object, **more: object) -> object:
        if file in slow:
            raise TooSlow("takes more than 4 s to decode, which no ordinary picture does")
        return real(file, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "decoded", decoded)
    sound = {f"0/{i}.png": png(i) for i in range(3)}
    one = open_archive(write_zip(tmp_path / "one.zip", sound | {"0/s.png": b"slow 1"}))
    entries = sorted(one.contents.pictures.values(), key=lambda entry: entry.name)
    drawn = read_drawn(one, entries, range(4), 4, square)
    assert len(drawn.rows) == 3
    assert "0/s.png (takes more than 4 s to decode" in next(drawn.notes())
    two = open_archive(write_zip(tmp_path / "two.zip", {"0/a.png": b"slow 1", "0/b.png": b"slow 2"} | sound))
    entries = sorted(two.contents.pictures.values(), key=lambda entry: entry.name)
    for read in (lambda: read_drawn(two, entries, range(5), 5, square), lambda: require_readable(two, entries[::-1])):
        with pytest.raises(
            InvalidDataset, match=r"2 pictures in two\.zip take more than 4 s each.*0/[ab]\.png, 0/[ab]\.png"
        ):
            read()
    one.close()
    two.close()
