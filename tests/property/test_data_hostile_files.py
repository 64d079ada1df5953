"""Mutated archives and pictures: each is loaded, refused or skipped with words, and nothing is left on disk."""

import random
import struct
import tempfile

import pytest
from PIL import Image

from senseapp.core.errors import InvalidInput
from senseapp.data.contents import Unreadable
from senseapp.data.decoding import decoded_picture
from senseapp.data.load import load_images
from senseapp.data.pictures import survey_images
from senseapp.records.spec import DataSpec
from senseapp.tasks import CLASSIFICATION
from tests import toy_rectangles
from tests.cases import first_of
from tests.pictures import COLOUR, class_files, encoded, random_picture, write_tar, write_zip

_EACH = 100  # of ten kinds: a thousand files
_INTERESTING = (b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"PK\x01\x02", b"../", b"/")


def mutated(content, generator):
    """Return ``content`` with a few bytes overwritten, cut, repeated or moved."""
    content = bytearray(content)
    for _ in range(generator.randint(1, 6)):
        place = generator.randrange(len(content))
        action = generator.randrange(6)
        if action == 0:
            content[place] ^= 1 << generator.randrange(8)
        elif action == 1:
            piece = generator.choice(_INTERESTING)
            content[place : place + len(piece)] = piece
        elif action == 2:
            del content[place : place + generator.randint(1, 64)]
        elif action == 3:
            content[place:place] = content[place : place + generator.randint(1, 64)]
        elif action == 4:
            content[place : place + 4] = struct.pack("<I", generator.getrandbits(32))
        elif generator.random() < 0.3:
            del content[place:]
        if not content:
            return b""
    return bytes(content)


def assert_readable(message):
    assert 10 < len(message) < 2_000
    assert message[-1] in ".)"
    assert "Traceback" not in message
    assert "object at 0x" not in message


@pytest.fixture
def no_temporary_files(tmp_path, monkeypatch):
    """Let temporary files land in an empty folder, and require it to be empty at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


@pytest.mark.filterwarnings("ignore")  # Pillow and zipfile warn about damage that they can live with
@pytest.mark.parametrize("name", first_of(["a.zip", "b.tar", "c.tar.gz"]))
@pytest.mark.usefixtures("no_temporary_files")
def test_mutated_archives(tmp_path, name):
    writer = write_zip if name == "a.zip" else write_tar
    options = {"c.tar.gz": ("w:gz",)}.get(name, ())
    files = class_files(("0", "1"), each=2) | {"labels.csv": b"0/0.png,0\n1/0.png,1\n"}
    original = writer(tmp_path / name, files, *options).read_bytes()
    generator = random.Random(name)
    loaded = refused = 0
    for _ in range(_EACH):
        (tmp_path / name).write_bytes(mutated(original, generator))
        spec = DataSpec(kind="archive", path=str(tmp_path / name))
        try:
            survey_images(spec, num_classes=2, task=CLASSIFICATION)
            images = load_images(spec, COLOUR, num_classes=2, task=CLASSIFICATION)
        except InvalidInput as error:
            assert_readable(str(error))
            refused += 1
        else:
            assert images.batch(0, len(images)).isfinite().all()
            assert 1 <= len(images) <= len(files)
            loaded += 1
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "temporary"])
    assert refused > 0
    assert loaded > 0 or name == "c.tar.gz"  # any change breaks the check sum of a gzip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
@pytest.mark.usefixtures("no_temporary_files")
def test_mutated_pictures(kind):
    original = encoded(random_picture(size=(24, 20)), kind)
    generator = random.Random(kind)
    reasons = set()
    for _ in range(_EACH):
        try:
            assert decoded_picture(mutated(original, generator), "RGB").picture.mode == "RGB"
        except Unreadable as reason:
            reasons.add(str(reason))
    assert reasons
    assert "" not in reasons


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF", "PPM"])
def test_mutated_label_images(kind):
    original = encoded(Image.fromarray(toy_rectangles.scene(1).mask), kind)
    generator = random.Random(kind)
    reasons = set()
    for _ in range(_EACH):
        try:
            decoded = decoded_picture(mutated(original, generator), "index")
            assert decoded.picture.mode == "L"
            assert decoded.picture.size == decoded.size
        except Unreadable as reason:
            reasons.add(str(reason))
    assert reasons
    assert "" not in reasons
