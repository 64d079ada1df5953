"""Masks beside pictures, and their values as classes of a model.

Masks are label images in folders of their own, or shapes of all pictures in one COCO file.

Label images hold class numbers, or Pascal VOC's colours.

Folders are ``images`` and ``masks``, or others of those names; ``JPEGImages`` and ``SegmentationClass`` of Pascal VOC;
``leftImg8bit`` and ``gtFine`` of Cityscapes, whose files end in ``_leftImg8bit`` and ``_gtFine_labelTrainIds``; or one
folder in which ``a_mask.png`` is the mask of ``a.jpg``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from senseapp.core.texts import plural
from senseapp.metrics.segmentation import VOID
from senseapp.tasks.annotations import (
    LABEL_FOLDERS,
    PICTURE_FOLDERS,
    AnnotationFiles,
    AnnotationReader,
    Listing,
    PictureGeometry,
    pairs_by_stem,
)
from senseapp.tasks.class_numbers import ModelClasses, Numbering, WrittenClasses, fit_numbers
from senseapp.tasks.labels import Targets

if TYPE_CHECKING:
    from torch import Tensor

_PICTURE_ENDING = "_leftimg8bit"
_MASK_ENDINGS = (
    *("_gtfine_labeltrainids", "_gtcoarse_labeltrainids", "_labeltrainids"),
    *("_gtfine_labelids", "_gtcoarse_labelids", "_labelids"),
    *("_mask", "_masks", "_seg", "_segmentation", "_labels", "_label", "_gt"),
)
"""Of names of masks, in any case; of several masks of a picture the first counts."""
_OTHER_ENDINGS = ("_gtfine_color", "_gtcoarse_color", "_gtfine_instanceids", "_gtcoarse_instanceids")
"""Of pictures beside masks that are none."""
_VOC_VOID = (224, 224, 192)  # the colour of its borders
_TRAINED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""Cityscapes' ids of the 19 classes that networks are trained on, in the order of their outputs.

Source: ``cityscapesscripts/helpers/labels.py``.
"""


@dataclass(frozen=True, kw_only=True)
class MaskReader(AnnotationReader):
    """The class number of each pixel, as a grey value, a place in a palette or a colour; or shapes that COCO writes."""

    def find(self, listing: Listing) -> AnnotationFiles:
        """Return the pictures with a mask, by files of their own where there are any."""
        from senseapp.tasks.segmentation.coco import find_shapes  # Pillow loads here, which the first page does without

        folder = listing.chosen if not listing.chosen.casefold().endswith(".json") else ""
        if listing.chosen and not folder:
            return find_shapes(listing) or AnnotationFiles()
        pairs, others = _mask_files(listing.pictures, folder)
        found = find_shapes(listing) if not pairs and not folder else None
        if found is not None and found.parsed:
            return found
        choices = sorted({path.rpartition("/")[0] for path in others} - {""})
        choices += sorted(path for path in listing.others if path.casefold().endswith(".json"))
        notes = [] if found is None else [*found.notes]
        if others and not pairs:
            such = f"{plural(len(others), 'mask')} found, such as {min(others)}, and no picture of such a name"
            notes.insert(0, f"{such}: a mask has the name of its picture.")
        return AnnotationFiles(files=pairs, no_pictures=others, choices=tuple(choices), notes=tuple(notes))

    def place(self, annotation: Any, geometry: PictureGeometry) -> Any:
        """Return the class of each pixel of the network's input, uint8 (H, W); padding is void."""
        from senseapp.tasks.segmentation.coco import Shapes

        if isinstance(annotation, Shapes):
            return annotation.placed(geometry)
        return geometry.mask(annotation if annotation.ndim == 2 else _of_colours(annotation), fill=VOID)

    def fitted(
        self, placed: Tensor, files: AnnotationFiles, model: ModelClasses, confirmed: Sequence[tuple[str, int]] = ()
    ) -> Targets:
        """Return masks, uint8 (N, H, W), in the model's class numbers; values that mean no class are void."""
        from senseapp.tasks.segmentation.coco import REST

        present: set[int] = set().union(*(np.unique(mask.numpy()).tolist() for mask in placed))
        model = replace(model, background="none")
        more = list(_readings(present, model.num_outputs))
        white = any(VOID in each.meaning for each in more) or str(VOID) in dict(confirmed)
        written = WrittenClasses(
            used=(present - {VOID}).union(files.used, {VOID} & present if white else ()),
            names={number: name for number, name in enumerate(files.names) if name},
            rest=REST if files.parsed else None,
            blank=() if files.parsed else {0},
        )
        return fit_numbers(placed, written, model, _renumbered, confirmed=confirmed, more=more)


def _of_colours(colours: Any) -> Any:
    """Return the class of each colour, (H, W, 3), in Pascal VOC's palette; raises ValueError for others."""
    from senseapp.tasks.display import palette

    shifts = 1 << np.array([16, 8, 0])
    known = np.append(palette()[:VOID] @ shifts, _VOC_VOID @ shifts)
    found, places = np.unique(colours @ shifts, return_inverse=True)
    strange = found[~np.isin(found, known)]
    if len(strange):
        raise ValueError(f"colours instead of class numbers (#{strange[0]:06x})")
    numbers = np.argsort(known)[np.searchsorted(known, found, sorter=np.argsort(known))].astype(np.uint8)
    return numbers[places].reshape(colours.shape[:2])


def _mask_files(pictures: Collection[str], folder: str) -> tuple[dict[str, str], set[str]]:
    """Return the mask of each picture that has one, and all files that are masks; of one ``folder`` if it is named."""
    stems = {path.rpartition(".")[0].casefold() for path in pictures}
    masks: dict[str, tuple[int, str]] = {}
    no_pictures = set()
    for path in pictures:
        found = _as_mask(path, folder, stems)
        if found is None:
            continue
        no_pictures.add(path)
        rank, short = found
        if short:
            masks[short] = min(masks.get(short, (rank, path)), (rank, path))
    shown = {_without(path, _PICTURE_ENDING): path for path in pictures if path not in no_pictures}
    pairs = _by_name(shown, masks) if folder else pairs_by_stem(shown, masks)[0]
    return {shown[short]: masks[mask][1] for short, mask in pairs.items()}, no_pictures


def _by_name(pictures: Collection[str], masks: Collection[str]) -> dict[str, str]:
    """Pair files of one name in any folders, of several pictures that in a folder of pictures."""
    named: dict[str, tuple[list[str], list[str]]] = {}
    for side, paths in enumerate((pictures, masks)):
        for path in paths:
            named.setdefault(path.rpartition("/")[2].rpartition(".")[0], ([], []))[side].append(path)
    pairs, folders = {}, [[folder] for folder in PICTURE_FOLDERS]
    for found, those in named.values():
        meant = found if len(found) == 1 else [path for path in found if path.casefold().split("/")[-2:-1] in folders]
        if len(meant) == len(those) == 1:
            pairs[meant[0]] = those[0]
    return pairs


def _as_mask(path: str, folder: str, stems: Collection[str]) -> tuple[int, str] | None:
    """Return how likely a file is a mask, 0 first, and its path without ending, empty for neither; None for no mask."""
    if folder and not path.startswith(f"{folder}/"):
        return None
    first, slash, name = path.rpartition("/")
    is_inside = bool(folder) or any(part in LABEL_FOLDERS for part in first.casefold().split("/"))
    stem = name.rpartition(".")[0].casefold()
    if is_inside and stem.endswith(_OTHER_ENDINGS):
        return len(_MASK_ENDINGS), ""
    rank = next((rank for rank, ending in enumerate(_MASK_ENDINGS) if stem.endswith(ending)), len(_MASK_ENDINGS))
    short = path if rank == len(_MASK_ENDINGS) else _without(path, _MASK_ENDINGS[rank])
    if is_inside:
        return rank, short
    if short == path or short.rpartition(".")[0].casefold() not in stems:
        return None
    return rank, f"{first}{slash}masks/{short.rpartition('/')[2]}"


def _without(path: str, ending: str) -> str:
    """Return a path without what its name ends in before the suffix."""
    stem, dot, suffix = path.rpartition(".")
    return stem[: -len(ending)] + dot + suffix if stem.casefold().endswith(ending) else path


# ---- values of masks as classes of a model


def _readings(present: Collection[int], num_classes: int) -> Iterator[Numbering]:
    """Yield the readings of values as shades at even distances from black to white, and as ids of known sets."""
    if 2 <= num_classes <= 16:  # more shades of grey are not told apart
        shades = [VOID * place / (num_classes - 1) for place in range(num_classes)]
        meaning = {whole: place for place, shade in enumerate(shades) for whole in {int(shade), int(shade + 0.99)}}
        between = any(num_classes <= value < VOID for value in present)
        if {*present} <= meaning.keys() and (between or (num_classes == 2 and VOID in present)):
            yield Numbering(how="as shades from black to white", meaning=meaning)
    if num_classes == len(_TRAINED) and {*present} <= {*range(34), VOID}:
        meaning = {number: place for place, number in enumerate(_TRAINED)}
        yield Numbering(how="as ids of Cityscapes, of which 19 are classes", meaning=meaning, blank=range(34))


def _renumbered(masks: Tensor, meaning: Mapping[int, int]) -> Tensor:
    """Return masks with each number replaced by what it means; others are void."""
    import torch

    table = np.full(VOID + 1, VOID, dtype=np.uint8)
    table[list(meaning.keys())] = list(meaning.values())
    return torch.from_numpy(table[masks.numpy()])


MASKS = MaskReader(words=("mask", "masks"), label_images=True, colours=True, dense=True)
