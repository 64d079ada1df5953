"""torchvision's small image sets, read like the files of a folder.

CIFAR's files are pickles, the only ones that are read as such: torchvision does so after it has compared each with
the check sum it knows, so that they hold what their authors published and nothing else.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchvision import datasets

from senseapp.data.arrangement import Arrangement
from senseapp.data.contents import Contents, Entry, Unreadable
from senseapp.downloads import image_set_folder
from senseapp.errors import InvalidDataset
from senseapp.spec import IMAGE_SETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How torchvision opens one set.

    Attributes:
        open: takes a folder and whether to download into it; returns the images that are measured on.
        address: where the first file is downloaded from.
        labels: class index of each image, in order.
        classes: name of each class index.
    """

    open: Callable[[Path, bool], Any]
    address: Callable[[], str]
    labels: Callable[[Any], Iterable[int]]
    classes: Callable[[Any], Sequence[str]]


def _of_mnist(kind: type[datasets.MNIST]) -> Opening:
    return Opening(
        open=lambda folder, download: kind(folder, train=False, download=download),
        address=lambda: kind.mirrors[0],
        labels=lambda images: images.targets.tolist(),
        classes=lambda images: images.classes,
    )


def _of_cifar(kind: type[datasets.CIFAR10]) -> Opening:
    return Opening(
        open=lambda folder, download: kind(folder, train=False, download=download),
        address=lambda: kind.url,
        labels=lambda images: images.targets,
        classes=lambda images: images.classes,
    )


OPENINGS: Mapping[str, Opening] = {
    "cifar10": _of_cifar(datasets.CIFAR10),
    "cifar100": _of_cifar(datasets.CIFAR100),
    "mnist": _of_mnist(datasets.MNIST),
    "fashion_mnist": _of_mnist(datasets.FashionMNIST),
    "kmnist": _of_mnist(datasets.KMNIST),
    "svhn": Opening(
        open=lambda folder, download: datasets.SVHN(folder, split="test", download=download),
        address=lambda: datasets.SVHN.split_list["test"][0],
        labels=lambda images: images.labels.tolist(),
        classes=lambda images: [str(digit) for digit in range(10)],
    ),
    "imagenette": Opening(
        open=lambda folder, download: datasets.Imagenette(folder, split="val", size="160px", download=download),
        address=lambda: datasets.Imagenette._ARCHIVES["160px"][0],
        labels=lambda images: [label for _, label in images._samples],
        classes=lambda images: [", ".join(names) for names in images.classes],
    ),
    "eurosat": Opening(
        open=lambda folder, download: datasets.EuroSAT(folder, download=download),
        address=lambda: "https://huggingface.co",  # its address is written inside torchvision's download
        labels=lambda images: images.targets,
        classes=lambda images: images.classes,
    ),
    "flowers102": Opening(
        open=lambda folder, download: datasets.Flowers102(folder, split="test", download=download),
        address=lambda: datasets.Flowers102._download_url_prefix,
        labels=lambda images: images._labels,
        classes=lambda images: images.classes,
    ),
    "oxford_pets": Opening(
        open=lambda folder, download: datasets.OxfordIIITPet(folder, split="test", download=download),
        address=lambda: datasets.OxfordIIITPet._RESOURCES[0][0],
        labels=lambda images: images._labels,
        classes=lambda images: images.classes,
    ),
}
"""By the names of :data:`senseapp.spec.IMAGE_SETS`."""


def open_image_set(name: str) -> ImageSetSource:
    """Open an image set that was downloaded.

    Raises:
        InvalidDataset: its files are damaged; they are removed, so that the next attempt downloads them again.
    """
    folder, opening, title = image_set_folder(name), OPENINGS[name], IMAGE_SETS[name].title
    try:
        images = opening.open(folder, False)
        return ImageSetSource(title, images, list(opening.labels(images)), list(opening.classes(images)))
    except Exception as error:  # on damaged files torchvision raises whatever its parsing runs into
        shutil.rmtree(folder, ignore_errors=True)
        raise InvalidDataset(f"The copy of {title} on this machine was damaged. Try again to download it.") from error


class ImageSetSource:
    """A :class:`~senseapp.data.contents.PictureSource` over one of torchvision's image sets."""

    def __init__(self, title: str, images: Any, labels: Sequence[int], classes: Sequence[str]) -> None:
        self.title = title
        self._images = images
        self._labels = tuple(classes[label] for label in labels)
        self._classes = tuple(classes)
        entries = (
            Entry(f"{label.replace('/', ' ')}/{position:05d}", position) for position, label in enumerate(self._labels)
        )
        self.contents = Contents(pictures={entry.name: entry for entry in entries})

    def arrangement(self, *, with_labels: bool) -> Arrangement:
        """Return the images in their own order, with classes in theirs."""
        entries = tuple(self.contents.pictures.values())
        if not with_labels:
            return Arrangement(layout="unlabelled", entries=entries)
        return Arrangement(layout="image set", entries=entries, labels=self._labels, label_names=self._classes)

    def read(self, entry: Entry) -> bytes:
        """Return one image as a file that loses nothing and is quick to write.

        Raises:
            Unreadable: torchvision cannot read it.
        """
        file = io.BytesIO()
        try:
            picture, _ = self._images[entry.position]
            picture.save(file, format="PPM")
        except Exception as error:  # as above
            raise Unreadable("damaged") from error
        return file.getvalue()

    def close(self) -> None:
        """Let go of the images."""
        self._images = None
