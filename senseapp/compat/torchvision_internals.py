"""Undocumented names of torchvision's image sets: the class of each image."""

from __future__ import annotations

from typing import Any

import numpy as np
from torchvision import datasets


def labels_of(images: Any) -> list[int]:
    """Return the class index of each image of an opened set, in order, without decoding any."""
    if isinstance(images, datasets.Imagenette):
        return [label for _, label in images._samples]
    if isinstance(images, datasets.Flowers102 | datasets.OxfordIIITPet):
        return list(images._labels)
    found: list[int] = np.asarray(images.labels if isinstance(images, datasets.SVHN) else images.targets).tolist()
    return found
