"""Masks beside pictures: label images in folders of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from senseapp.metrics.segmentation import VOID
from senseapp.tasks.annotations import (
    AnnotationFiles,
    AnnotationReader,
    Listing,
    PictureGeometry,
    pairs_by_stem,
)


@dataclass(frozen=True, kw_only=True)
class MaskReader(AnnotationReader):
    """Label images with the class number of each pixel, as grey values or places in a palette."""

    def find(self, listing: Listing) -> AnnotationFiles:
        """Return the pictures with a mask."""
        pairs, masks = pairs_by_stem(listing.pictures, listing.pictures)
        return AnnotationFiles(files=pairs, no_pictures=masks)

    def place(self, annotation: Any, geometry: PictureGeometry) -> Any:
        """Return the class of each pixel of the network's input, uint8 (H, W); padding is void."""
        return geometry.mask(annotation, fill=VOID)


MASKS = MaskReader(words=("mask", "masks"), label_images=True, dense=True)
