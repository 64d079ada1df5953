"""The published sets of labelled images that torchvision downloads, and that are small enough to wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSetFacts:
    """What is known about one set before it is downloaded.

    Attributes:
        name: as it is written after ``torchvision/``.
        title: as its authors write it.
        line: what is in it, in a few words.
        num_images: in the part that is measured on: the test images, or all where no part was set aside.
        num_classes: that they are labelled with.
        megabytes: to download.
    """

    name: str
    title: str
    line: str
    num_images: int
    num_classes: int
    megabytes: int


_ALL = (
    ImageSetFacts(
        name="cifar10",
        title="CIFAR-10",
        line="animals and vehicles, 32 × 32 pixels",
        num_images=10_000,
        num_classes=10,
        megabytes=170,
    ),
    ImageSetFacts(
        name="cifar100",
        title="CIFAR-100",
        line="things of a hundred kinds, 32 × 32 pixels",
        num_images=10_000,
        num_classes=100,
        megabytes=169,
    ),
    ImageSetFacts(
        name="mnist",
        title="MNIST",
        line="handwritten digits, grey, 28 × 28 pixels",
        num_images=10_000,
        num_classes=10,
        megabytes=12,
    ),
    ImageSetFacts(
        name="fashion_mnist",
        title="Fashion-MNIST",
        line="clothes, grey, 28 × 28 pixels",
        num_images=10_000,
        num_classes=10,
        megabytes=31,
    ),
    ImageSetFacts(
        name="kmnist",
        title="Kuzushiji-MNIST",
        line="handwritten Japanese, grey, 28 × 28 pixels",
        num_images=10_000,
        num_classes=10,
        megabytes=21,
    ),
    ImageSetFacts(
        name="svhn",
        title="SVHN",
        line="house numbers, 32 × 32 pixels",
        num_images=26_032,
        num_classes=10,
        megabytes=64,
    ),
    ImageSetFacts(
        name="imagenette",
        title="Imagenette",
        line="photos of ten ImageNet classes, 160 pixels high or wide",
        num_images=3_925,
        num_classes=10,
        megabytes=99,
    ),
    ImageSetFacts(
        name="eurosat",
        title="EuroSAT",
        line="land seen from a satellite, 64 × 64 pixels",
        num_images=27_000,
        num_classes=10,
        megabytes=94,
    ),
    ImageSetFacts(
        name="flowers102",
        title="Oxford 102 Flowers",
        line="photos of flowers",
        num_images=6_149,
        num_classes=102,
        megabytes=345,
    ),
    ImageSetFacts(
        name="oxford_pets",
        title="Oxford-IIIT Pets",
        line="photos of cats and dogs of 37 breeds",
        num_images=3_669,
        num_classes=37,
        megabytes=811,
    ),
)

IMAGE_SETS: Mapping[str, ImageSetFacts] = MappingProxyType({facts.name: facts for facts in _ALL})
"""By name, in the order in which they are offered."""
