"""The published sets of labelled images that torchvision downloads, and that are small enough to wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ImageSetFacts:
    """What is known about one set before it is downloaded.

    Attributes:
        name: as it is written after ``torchvision/``.
        line: what is in it, in a few words.
        num_images: in the part that is measured on: the test images, or all where no part was set aside.
        megabytes: to download.
    """

    name: str
    title: str
    line: str
    num_images: int
    num_classes: int
    megabytes: int


_ALL = (  # name, title, line, images, classes, megabytes
    ImageSetFacts("cifar10", "CIFAR-10", "animals and vehicles, 32 × 32 pixels", 10_000, 10, 170),
    ImageSetFacts("cifar100", "CIFAR-100", "things of a hundred kinds, 32 × 32 pixels", 10_000, 100, 169),
    ImageSetFacts("mnist", "MNIST", "handwritten digits, grey, 28 × 28 pixels", 10_000, 10, 12),
    ImageSetFacts("fashion_mnist", "Fashion-MNIST", "clothes, grey, 28 × 28 pixels", 10_000, 10, 31),
    ImageSetFacts("kmnist", "Kuzushiji-MNIST", "handwritten Japanese, grey, 28 × 28 pixels", 10_000, 10, 21),
    ImageSetFacts("svhn", "SVHN", "house numbers, 32 × 32 pixels", 26_032, 10, 64),
    ImageSetFacts("imagenette", "Imagenette", "photos of ten ImageNet classes, 160 pixels high or wide", 3_925, 10, 99),
    ImageSetFacts("eurosat", "EuroSAT", "land seen from a satellite, 64 × 64 pixels", 27_000, 10, 94),
    ImageSetFacts("flowers102", "Oxford 102 Flowers", "photos of flowers", 6_149, 102, 345),
    ImageSetFacts("oxford_pets", "Oxford-IIIT Pets", "photos of cats and dogs of 37 breeds", 3_669, 37, 811),
)

IMAGE_SETS: Mapping[str, ImageSetFacts] = MappingProxyType({facts.name: facts for facts in _ALL})
"""By name, in the order in which they are offered."""
