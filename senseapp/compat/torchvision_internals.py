"""Undocumented names of torchvision's image sets: their download addresses, and the class of each image.

Addresses are read on each call, so that a mirror may replace them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torchvision import datasets


def first_address(kind: type[Any]) -> str:
    """Return the first download address of a torchvision image set; EuroSAT's is in its source code.

    >>> from torchvision.datasets import CIFAR10
    >>> first_address(CIFAR10)
    'https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz'
    """
    if issubclass(kind, datasets.CIFAR10):
        return str(kind.url)
    if issubclass(kind, datasets.MNIST):
        return str(kind.mirrors[0])
    if issubclass(kind, datasets.SVHN):
        return str(kind.split_list["test"][0])
    if issubclass(kind, datasets.Imagenette):
        return str(kind._ARCHIVES["160px"][0])
    if issubclass(kind, datasets.Flowers102):
        return str(kind._download_url_prefix)
    if issubclass(kind, datasets.OxfordIIITPet):
        return str(kind._RESOURCES[0][0])
    return "https://huggingface.co"


def labels_of(images: Any) -> list[int]:
    """Return the class index of each image of an opened set, in order, without decoding any."""
    if isinstance(images, datasets.Imagenette):
        return [label for _, label in images._samples]
    if isinstance(images, datasets.Flowers102 | datasets.OxfordIIITPet):
        return list(images._labels)
    found: list[int] = np.asarray(images.labels if isinstance(images, datasets.SVHN) else images.targets).tolist()
    return found
