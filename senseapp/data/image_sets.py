"""torchvision's small image sets, read like the files of a folder.

CIFAR's files are pickles, the only ones that are read as such: torchvision does so after it has compared each with
the check sum it knows, so that they hold what their authors published and nothing else.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchvision import datasets

from senseapp.compat.torchvision_internals import first_address, labels_of
from senseapp.data.arrangement import Arrangement
from senseapp.data.contents import Contents, Entry, Unreadable
from senseapp.downloads import image_set_folder
from senseapp.errors import InvalidDataset
from senseapp.spec import IMAGE_SETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How torchvision opens one set.

    Attributes:
        kind: torchvision's class.
        options: that choose the images that are measured on.
        classes: name of each class index; the images' own where it is empty.
    """

    kind: type[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    classes: Sequence[str] = ()

    def address(self) -> str:
        """Return where the first file is downloaded from."""
        return first_address(self.kind)

    def open(self, folder: Path, download: bool) -> Any:
        """Open the images in ``folder``, or download them into it."""
        return self.kind(folder, download=download, **self.options)

    def class_names(self, images: Any) -> tuple[str, ...]:
        """Return the name of each class of opened images."""
        names = self.classes or images.classes
        return tuple(name if isinstance(name, str) else ", ".join(name) for name in names)


OPENINGS: Mapping[str, Opening] = {
    "cifar10": Opening(kind=datasets.CIFAR10, options={"train": False}),
    "cifar100": Opening(kind=datasets.CIFAR100, options={"train": False}),
    "mnist": Opening(kind=datasets.MNIST, options={"train": False}),
    "fashion_mnist": Opening(kind=datasets.FashionMNIST, options={"train": False}),
    "kmnist": Opening(kind=datasets.KMNIST, options={"train": False}),
    "svhn": Opening(kind=datasets.SVHN, options={"split": "test"}, classes="0123456789"),
    "imagenette": Opening(kind=datasets.Imagenette, options={"split": "val", "size": "160px"}),
    "eurosat": Opening(kind=datasets.EuroSAT),
    "flowers102": Opening(kind=datasets.Flowers102, options={"split": "test"}),
    "oxford_pets": Opening(kind=datasets.OxfordIIITPet, options={"split": "test"}),
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
        return ImageSetSource(title, images, labels_of(images), opening.class_names(images))
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
