"""The pictures that ship with senseapp: the 1,797 handwritten digits that scikit-learn carries.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, licence CC BY 4.0; scikit-learn's ``load_digits`` is a copy of its test set.
"""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from senseapp.data.images import TensorImages
from senseapp.models.demo import DEMO_PREPROCESSING

Split: TypeAlias = Literal["train", "heldout"]

_CLASS_NAMES = tuple("0123456789")
_NUM_TRAIN = 900
_SPLIT_SEED = 0
_BRIGHTEST = 16.0  # the digits count inked pixels of 4 x 4 blocks: 0 to 16
_ZIP_TIME = (2000, 1, 1, 0, 0, 0)  # fixed, so that the same pictures give the same bytes


@cache
def _indices(split: Split) -> npt.NDArray[np.int64]:
    """Return which of the 1,797 digits are in ``split``, ascending; classes are in proportion."""
    from sklearn.model_selection import train_test_split  # half a second to import, and only the demo needs it

    train, heldout = train_test_split(
        np.arange(len(_all_labels())), train_size=_NUM_TRAIN, stratify=_all_labels(), random_state=_SPLIT_SEED
    )
    return np.sort(train if split == "train" else heldout).astype(np.int64)


@cache
def _all_labels() -> npt.NDArray[np.int64]:
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().target, dtype=np.int64)


@cache
def demo_pictures(split: Split = "heldout") -> npt.NDArray[np.uint8]:
    """Return the pictures of ``split`` at the network's size, grey values uint8 (N, 32, 32), not writable.

    The network was trained on ``train`` (900 digits) and never saw ``heldout`` (897).
    """
    from sklearn.datasets import load_digits

    size = DEMO_PREPROCESSING.input_shape[1:]
    digits = np.rint(load_digits().images[_indices(split)] * (255.0 / _BRIGHTEST)).astype(np.uint8)  # (N, 8, 8)
    pictures = np.stack([np.asarray(Image.fromarray(d).resize(size, Image.Resampling.BILINEAR)) for d in digits])
    pictures.flags.writeable = False
    return pictures


def load_demo_images(split: Split = "heldout") -> TensorImages:
    """Return the digits of ``split`` with labels, normalised as the demo network expects, (N, 1, 32, 32)."""
    (mean,), (std,) = DEMO_PREPROCESSING.mean, DEMO_PREPROCESSING.std
    pixels = torch.from_numpy(demo_pictures(split).astype(np.float32) / 255.0)  # (N, H, W)
    return TensorImages(
        ((pixels - mean) / std).unsqueeze(1),
        torch.from_numpy(_all_labels()[_indices(split)]),
        class_names=_CLASS_NAMES,
        names=_names(split),
    )


def write_demo_zip(path: Path, split: Split = "heldout") -> None:
    """Write the pictures of ``split`` to ``path`` as a zip of PNG files in class folders, ``3/digit-0013.png``."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, picture in zip(_names(split), demo_pictures(split), strict=True):
            png = io.BytesIO()
            Image.fromarray(picture).save(png, format="PNG")
            archive.writestr(zipfile.ZipInfo(name, date_time=_ZIP_TIME), png.getvalue())


def _names(split: Split) -> tuple[str, ...]:
    indices = _indices(split)
    labels = _all_labels()[indices]
    return tuple(f"{label}/digit-{index:04d}.png" for index, label in zip(indices, labels, strict=True))
