"""torchvision's small image sets, read like the files of a folder and downloaded once, in a thread.

CIFAR's files are pickles; torchvision reads them only after comparing each with its published check sum.
"""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any
from urllib.error import HTTPError, URLError

from torchvision import datasets

from senseapp.compat.vision_internals import labels_of
from senseapp.core.errors import InvalidDataset, first_line_of
from senseapp.data.arrangement import Arrangement
from senseapp.data.contents import Contents, Entry, PictureSource, Unreadable
from senseapp.data.downloads import download_progress, image_set_folder, is_downloaded, new_partial_folder
from senseapp.descriptions.sources import IMAGE_SETS

TORCHVISION_SETS: Mapping[str, Callable[..., Any]] = {
    "cifar10": partial(datasets.CIFAR10, train=False),
    "cifar100": partial(datasets.CIFAR100, train=False),
    "mnist": partial(datasets.MNIST, train=False),
    "fashion_mnist": partial(datasets.FashionMNIST, train=False),
    "kmnist": partial(datasets.KMNIST, train=False),
    "svhn": partial(datasets.SVHN, split="test"),
    "imagenette": partial(datasets.Imagenette, split="val", size="160px"),
    "eurosat": datasets.EuroSAT,
    "flowers102": partial(datasets.Flowers102, split="test"),
    "oxford_pets": partial(datasets.OxfordIIITPet, split="test"),
}
"""How the images that are measured on are opened, by the names of :data:`senseapp.descriptions.sources.IMAGE_SETS`."""


def open_image_set(name: str) -> ImageSetSource:
    """Open an image set that was downloaded.

    Raises InvalidDataset where its files are damaged; they are removed, so that the next attempt downloads them again.
    """
    folder, title = image_set_folder(name), IMAGE_SETS[name].title
    try:
        images = TORCHVISION_SETS[name](folder, download=False)
        classes = getattr(images, "classes", "0123456789")  # SVHN does not name its digits
        names = [each if isinstance(each, str) else ", ".join(each) for each in classes]
        return ImageSetSource(title, images, labels_of(images), names)
    except Exception as error:  # on damaged files torchvision raises whatever its parsing runs into
        shutil.rmtree(folder, ignore_errors=True)
        raise InvalidDataset(f"The copy of {title} on this machine was damaged. Try again to download it.") from error


class ImageSetSource(PictureSource):
    """One of torchvision's image sets."""

    foreign = False  # its check sums were right

    def __init__(self, title: str, images: Any, labels: Sequence[int], classes: Sequence[str]) -> None:
        super().__init__(title)
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
        """Return one image as a file that loses nothing and is quick to write; raises Unreadable."""
        file = io.BytesIO()
        try:
            picture, _ = self._images[entry.position]
            picture.save(file, format="PPM")
        except Exception as error:  # as above
            raise Unreadable("damaged") from error
        return file.getvalue()


_POLL_SECONDS = 0.5  # between sentences on a download
_STALLED_SECONDS = 60.0  # servers that answer send something within it
_ARCHIVES = (".tgz", ".gz", ".zip")  # not needed once they are unpacked


def fetch_image_set(name: str, report: Callable[[str], None]) -> None:
    """Download an image set if it is not on this machine, and block until it is.

    ``report`` is told how far the download is, in one sentence, every half second. If it raises, the wait ends. Raises
    InvalidDataset where it could not be downloaded; the sentence offers what works without a network.
    """
    if is_downloaded(name):
        return
    download: Future[None] = Future()
    threading.Thread(target=_download, args=(name, download), name=f"download-{name}", daemon=True).start()
    told, since = "", time.monotonic()
    while True:  # told of once at least, however quick the download is
        sentence = download_progress(name)
        if sentence != told:
            told, since = sentence, time.monotonic()
        elif sentence.startswith("Downloading") and time.monotonic() - since > _STALLED_SECONDS:
            raise _unavailable(name, f"nothing came for {_STALLED_SECONDS:.0f} seconds")
        report(sentence)
        if wait([download], timeout=_POLL_SECONDS).done:
            break
    if (error := download.exception()) is not None:
        offline = isinstance(error, URLError) and not isinstance(error, HTTPError)
        raise _unavailable(name, "its server cannot be reached" if offline else first_line_of(error)) from error


def _download(name: str, download: Future[None]) -> None:
    try:
        partial_folder = new_partial_folder(name)  # of its owner alone, as of all temporary folders
        try:
            TORCHVISION_SETS[name](partial_folder, download=True)
            for archive in (path for path in partial_folder.rglob("*") if path.suffix in _ARCHIVES):
                archive.unlink(missing_ok=True)
            if not is_downloaded(name):  # by another process or thread, in the meantime
                partial_folder.rename(image_set_folder(name))
        finally:
            shutil.rmtree(partial_folder, ignore_errors=True)
    except Exception as error:  # whatever torchvision, the network, the disk or a damaged archive ran into
        download.set_exception(error)
    else:
        download.set_result(None)


def _unavailable(name: str, reason: str) -> InvalidDataset:
    return InvalidDataset(
        f"{IMAGE_SETS[name].title} could not be downloaded ({reason}), and it is not on this machine. Bring a folder "
        "or archive of images, take the demo, or measure on random inputs: these need no network."
    )
