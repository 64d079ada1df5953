"""Boxes beside pictures: COCO JSON, YOLO text files, Pascal VOC XML. Which of them a folder has is found out."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import plural
from senseapp.tasks.annotations import (
    AnnotationFiles,
    AnnotationReader,
    Listing,
    PerImage,
    PictureGeometry,
    pairs_by_stem,
)
from senseapp.tasks.class_numbers import ModelClasses, WrittenClasses, fit_numbers
from senseapp.tasks.detection.annotations.boxes import PictureBoxes, find_boxes, read_voc, voc_classes
from senseapp.tasks.detection.annotations.yolo import Columns, is_boxes_name, read_yolo, told_by
from senseapp.tasks.labels import Targets

_MOST_BEYOND = 0.4  # share of boxes: corners in place of widths and heights are more than that
_MOST_FILES, _MOST_BYTES = 2_000, 8_000_000  # that are looked at before pictures are drawn: under a second


@dataclass(frozen=True, kw_only=True)
class BoxReader(AnnotationReader):
    """Reads boxes; targets are dictionaries of ``boxes`` (n, 4), ``labels``, ``crowd`` and ``names`` (n,).

    ``left_out`` and ``beyond`` count the boxes that are too small to be seen, and those that reach beyond the picture.

    Attributes:
        columns: of long lines in text files, which is decided by all files of a set.
    """

    columns: Columns = "outline"

    def find(self, listing: Listing) -> AnnotationFiles:
        """Return the pictures of a COCO file; without one, those with a text or XML file of the same name."""
        whole = sorted(path for path in listing.others if path.casefold().endswith(".json"))
        if listing.chosen and listing.chosen not in whole:
            return self._of_files(listing, tuple(whole), within=listing.chosen)
        found = find_boxes(listing) or AnnotationFiles(choices=tuple(whole))
        if found.parsed or listing.chosen:
            return found
        own = self._of_files(listing, tuple(whole))
        return own if own.files else found

    def _of_files(self, listing: Listing, choices: tuple[str, ...], within: str = "") -> AnnotationFiles:
        """Return the file of each picture that has one of its own, below the folder ``within``."""
        files = [path for path in listing.others if not within or path.startswith(within.rstrip("/") + "/")]
        for suffix, classes_of in ((".xml", voc_classes), (".txt", told_by)):
            own = [path for path in files if path.casefold().endswith(suffix) and is_boxes_name(path)]
            pairs, _ = pairs_by_stem(listing.pictures, own)  # in a folder of labels, else beside the picture
            stems = {path.rpartition(".")[0]: path for path in own}
            pairs = pairs or {path: stems[at] for path in listing.pictures if (at := path.rpartition(".")[0]) in stems}
            if pairs:
                found, columns = classes_of(listing, _some(listing, {*pairs.values()}))
                return replace(found, files=pairs, choices=choices, reader=replace(self, columns=columns))
        return AnnotationFiles(choices=choices)

    def read(self, content: bytes) -> PictureBoxes:
        """Return the boxes in a text file as YOLO writes it, or in an XML file as Pascal VOC does."""
        return read_voc(content) if content.lstrip()[:1] == b"<" else read_yolo(content, self.columns)

    def place(self, annotation: PictureBoxes, geometry: PictureGeometry) -> Any:
        """Return the boxes in pixels of the network's input; those of which less than a pixel is left are left out."""
        import torch

        written, sides = annotation.in_pixels(geometry.size), np.array(geometry.size)
        beyond = (written[:, 2:] > 1.05 * sides) | (written[:, :2] < -0.05 * sides)
        boxes = geometry.boxes(written)
        kept = np.flatnonzero(np.all(boxes[:, 2:] - boxes[:, :2] >= 1.0, axis=1))
        return {
            "boxes": torch.from_numpy(boxes[kept]).float().reshape(-1, 4),
            "labels": torch.from_numpy(annotation.labels[kept]),
            "crowd": torch.from_numpy(annotation.crowd[kept]),
            "names": tuple(annotation.names[place] for place in kept.tolist()),
            "left_out": len(boxes) - len(kept),
            "beyond": int(beyond.any(axis=1).sum()),
        }

    def fitted(
        self, placed: PerImage, files: AnnotationFiles, model: ModelClasses, confirmed: Sequence[tuple[str, int]] = ()
    ) -> Targets:
        """Return boxes in the model's own classes; objects of others are left out."""
        _check_within(placed)
        names = files.names
        if not files.numbered:
            names = tuple(sorted({*names}.union(*(each["names"] for each in placed))))  # also of files not looked at
            numbers = {name: number for number, name in enumerate(names)}
            placed = tuple(
                each | {"labels": each["labels"].new_tensor([numbers[name] for name in each["names"]])}
                for each in placed
            )
        written = WrittenClasses(
            used={int(label) for each in placed for label in each["labels"]}.union(files.used),
            names={number: name for number, name in enumerate(names) if name},
            numbered=files.numbered,
        )
        fitted = fit_numbers(placed, written, model, _renumbered, confirmed=confirmed)
        unseen = sum(each["left_out"] for each in placed)
        if not unseen:
            return fitted
        left = f"{plural(unseen, 'box', 'boxes')} left out: no area, or less than a pixel of the network's input."
        return replace(fitted, notes=(*fitted.notes, left))


def _some(listing: Listing, paths: Collection[str]) -> Iterator[bytes]:
    """Yield files spread over all of ``paths``, in the order in which they lie, up to limits of number and bytes."""
    found = [path for path in listing.others if path in paths]
    left = _MOST_BYTES
    for path in found[:: -(-len(found) // _MOST_FILES) or 1]:
        try:
            content = listing.read(path)
        except InvalidDataset:
            continue  # its picture is left out with the reason once it is drawn
        if (left := left - len(content)) < 0:
            return
        yield content


def _check_within(placed: PerImage) -> None:
    """Refuse boxes of which many reach beyond their picture."""
    total, beyond = sum(len(each["boxes"]) for each in placed), sum(each["beyond"] for each in placed)
    if beyond > _MOST_BEYOND * total:
        raise InvalidDataset(
            f"{beyond:,} of {plural(total, 'box', 'boxes')} reach beyond their picture, so their four numbers are "
            "read wrongly: COCO has left, top, width and height, YOLO centre, width and height, in shares of a "
            "side. Write the files so."
        )


def _renumbered(targets: PerImage, meaning: Mapping[int, int]) -> PerImage:
    """Return targets with other class numbers, without objects of classes that have none."""
    found = []
    for each in targets:
        labels = each["labels"].new_tensor([meaning.get(int(label), -1) for label in each["labels"]])
        kept = labels >= 0
        found.append({"boxes": each["boxes"][kept], "labels": labels[kept], "crowd": each["crowd"][kept]})
    return tuple(found)


BOXES = BoxReader(words=("boxes", "boxes"))
