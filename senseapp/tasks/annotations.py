"""Annotations beside pictures, for tasks that need more than labels from folders or tables.

A task names an :class:`AnnotationReader`, which says which files annotate which pictures, what a file means, and how an
annotation follows its picture through the one geometry of both. Opening files, the limits on hostile ones, decoding of
label images, draws and subsets are the same for every task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from senseapp.tasks.labels import Targets

if TYPE_CHECKING:
    from senseapp.tasks.class_numbers import ModelClasses

PerImage: TypeAlias = Any
"""What is known of each image, which only its task reads: a tensor, images first, or a tuple of one object for each
image. Both have a length, and ``[start:stop]`` of either is that of these images."""

FARTHEST = 1e6
"""Pixels from the corner of a picture, that a coordinate of an annotation may be."""

PICTURE_FOLDERS = (
    *("images", "image", "imgs", "img", "jpegimages", "pictures", "photos", "inputs", "input"),
    "leftimg8bit",
)
LABEL_FOLDERS = (
    *("masks", "mask", "labels", "label", "annotations", "annotation", "segmentationclass", "segmentations"),
    *("segmentation", "trimaps", "ground_truth", "groundtruth", "gt", "segmentationobject"),
    *("gtfine", "gtcoarse"),
)
"""Folders of files that annotate the picture of the same name, in any case; the first of them that has one is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a folder or archive, by their path with forward slashes.

    Attributes:
        pictures: files with the name of an image format; label images are among them.
        others: all other files but archives.
        chosen: the file or folder of annotations that a person chose; empty where nobody did.
        read: returns one file, up to the size limit of one file; raises InvalidDataset where it cannot be read.
        named: returns the picture that each of some names means in a file, whose path comes second; None where it means
            none, or two. Names are paths in the archive or from the folder of that file, or bare names.
    """

    pictures: Collection[str]
    others: Collection[str]
    chosen: str
    read: Callable[[str], bytes]
    named: Callable[[Sequence[str], str], Sequence[str | None]]


class PictureGeometry(Protocol):
    """The turn, resize and crop of one picture; :class:`senseapp.data.geometry.Geometry`.

    Coordinates are in pixels from the upper left corner of the picture as its file stores it.
    """

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the stored picture."""

    @property
    def output(self) -> tuple[int, int]:
        """(width, height) of the network's input."""

    def mask(self, values: NDArray[np.uint8], *, fill: int) -> NDArray[np.uint8]:
        """Return a map of class numbers, (H, W), on the network's input, by the nearest pixel; ``fill`` is padding."""

    def points(self, points: ArrayLike) -> NDArray[np.float64]:
        """Return where points (..., 2), as (x, y), lie in the network's input; some may lie outside."""

    def boxes(self, boxes: ArrayLike) -> NDArray[np.float64]:
        """Return boxes (n, 4), as (left, top, right, bottom), in the network's input, cut at its edges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationFiles:
    """What annotates which pictures, by the paths of the pictures.

    Attributes:
        files: the annotation file of each picture that has one of its own; read once the picture is drawn.
        parsed: annotations, as :meth:`AnnotationReader.read` returns them, out of files for many pictures.
        no_pictures: further files with the name of an image format that are none to measure on.
        choices: files and folders that a person may choose in place of those that were taken; see ``chosen`` of
            :class:`Listing`.
        names: of the classes, by index, where files say them; an empty one where a number has none.
        used: how many annotated pictures have each class, as far as that is known.
        numbered: whether files write the numbers of ``names``; else these are in alphabetical order.
        reader: reads ``files`` where that depends on all of them; else the reader that found them.
        notes: sentences that a person should read.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    parsed: Mapping[str, Any] = field(default_factory=dict)
    no_pictures: Collection[str] = ()
    choices: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    used: Mapping[int, int] = field(default_factory=dict)
    numbered: bool = True
    reader: AnnotationReader | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AnnotationReader(ABC):
    """One kind of annotation. Damaged files raise ValueError from any method, with the reason.

    Attributes:
        words: one of them and several, as people count them: ``("mask", "masks")``.
        label_images: whether files are pictures whose values are class numbers from 0 to 255. They are decoded like
            pictures, in a process that can be ended, and go to :meth:`place` as uint8 (H, W) without :meth:`read`.
        colours: whether they may hold colours as well, (H, W, 3).
        dense: whether :meth:`place` returns arrays of one shape, which are kept as one tensor of their type, images
            first; otherwise targets are a tuple of what it returns.
    """

    words: tuple[str, str]
    label_images: bool = False
    colours: bool = False
    dense: bool = False

    @abstractmethod
    def find(self, listing: Listing) -> AnnotationFiles:
        """Return which pictures of a folder or archive are annotated, and by what.

        A file for many pictures is read here; a file for one picture is only named.
        """

    def read(self, content: bytes) -> Any:
        """Return the annotation in the file of one picture, in the coordinates of the stored picture."""
        raise NotImplementedError

    @abstractmethod
    def place(self, annotation: Any, geometry: PictureGeometry) -> Any:
        """Return the annotation in the coordinates of the network's input."""

    def fitted(
        self, placed: PerImage, files: AnnotationFiles, model: ModelClasses, confirmed: Sequence[tuple[str, int]] = ()
    ) -> Targets:
        """Return annotations that were found in ``files``, as they were ``placed``, in the classes of a model.

        ``confirmed`` are pairs (label, output) that a person gave. Raises InvalidDataset where classes mean nothing.
        """
        return Targets(values=placed, names=files.names)


def pairs_by_stem(pictures: Iterable[str], annotations: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """Pair pictures with files of the same name in a folder of annotations beside theirs.

    Paths are alike but for the suffix and for folders such as ``images`` and ``masks``, wherever these are in them.
    Two pictures of one path have no annotation, as it may be of either.

    Returns:
        The annotation of each picture that has one, and all ``annotations`` that are in such a folder.

    >>> pairs_by_stem(["val/images/1.jpg", "val/masks/1.png"], ["val/masks/1.png"])
    ({'val/images/1.jpg': 'val/masks/1.png'}, {'val/masks/1.png'})
    """
    pictures, annotations = list(pictures), list(annotations)
    depth = _common_depth((*pictures, *annotations))
    found: dict[tuple[str, ...], tuple[int, str]] = {}
    in_folders = set()
    for path in annotations:
        ranks = [LABEL_FOLDERS.index(part) for part in _folders(path, depth) if part in LABEL_FOLDERS]
        if ranks:
            in_folders.add(path)
            key = _key(path, depth, LABEL_FOLDERS)
            found[key] = min(found.get(key, (len(LABEL_FOLDERS), path)), (min(ranks), path))
    of_key: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in pictures:
        if in_folders and not any(part in LABEL_FOLDERS for part in _folders(path, depth)):
            of_key[_key(path, depth, PICTURE_FOLDERS)].append(path)
    return {paths[0]: found[key][1] for key, paths in of_key.items() if len(paths) == 1 and key in found}, in_folders


def _common_depth(paths: Sequence[str]) -> int:
    """Return how many folders around everything all paths begin with."""
    if not paths:
        return 0
    first, last = (path.split("/")[:-1] for path in (min(paths), max(paths)))
    same = [one == other for one, other in zip(first, last, strict=False)]
    return same.index(False) if False in same else len(same)


def _folders(path: str, depth: int) -> list[str]:
    return path.casefold().split("/")[depth:-1]


def _key(path: str, depth: int, left_out: Sequence[str]) -> tuple[str, ...]:
    *folders, file = path.split("/")[depth:]
    return (*(part for part in folders if part.casefold() not in left_out), file.rpartition(".")[0] or file)
