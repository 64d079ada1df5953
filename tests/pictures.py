"""Small pictures and archives for tests."""

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from senseapp.networks.loaded import Preprocessing

GREY = Preprocessing(input_shape=(1, 8, 8), mean=(0.5,), std=(0.25,))
COLOUR = Preprocessing(input_shape=(3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


def random_picture(seed: int = 0, size: tuple[int, int] = (10, 12), mode: str = "RGB") -> Image.Image:
    """Return a picture of noise, so that any mistake in preparation shows."""
    generator = np.random.default_rng(seed)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "CMYK": (4,)}[mode]
    return Image.fromarray(generator.integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8), mode=mode)


def timm_crop(picture: Image.Image, preprocessing: Preprocessing) -> torch.Tensor:
    """Return timm's own resize and centre crop of a picture, uint8 (C, H, W)."""
    from timm.data import create_transform  # takes a second to import

    return create_transform(
        input_size=preprocessing.input_shape,
        is_training=False,
        crop_pct=preprocessing.crop_pct,
        interpolation=preprocessing.interpolation,
        normalize=False,
    )(picture)


def encoded(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Return the bytes of a picture file."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def png(seed: int = 0, mode: str = "RGB") -> bytes:
    """Return a picture of noise as a PNG file."""
    return encoded(random_picture(seed, mode=mode))


def class_files(classes: tuple[str, ...] = ("0", "1", "2"), each: int = 4) -> dict[str, bytes]:
    """Return pictures in class folders, ``1/3.png``; no two are alike."""
    return {f"{name}/{i}.png": png(100 * place + i) for place, name in enumerate(classes) for i in range(each)}


def write_zip(path: Path, files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """Write a zip; names that end with a slash are folders."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, files: Mapping[str, bytes], mode: str = "w") -> Path:
    """Write a tar (``w``) or tar.gz (``w:gz``)."""
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_folder(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write a folder; names that end with a slash are empty folders."""
    for name, content in files.items():
        target = path / name
        if name.endswith("/"):
            target.mkdir(parents=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return path
