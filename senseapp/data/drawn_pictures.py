"""Pictures that were read and prepared alike, with their annotations, and notes on unusual ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from senseapp.core.texts import listed, plural, printable
from senseapp.data.channels import bits_note
from senseapp.data.decoding import Decoded, Remark
from senseapp.data.per_image import allocate_rows, chosen_of
from senseapp.tasks.annotations import PerImage

_REMARKS: dict[Remark, str] = {
    "animated": "taken from the first frame of an animation",
    "transparent": "shown without transparency",
    "rotated": "taken as stored: the camera's rotation mark is ignored, as networks are trained",
    "turned": "turned upright, as the camera's rotation mark says",
    "CMYK": "converted from printing colours (CMYK)",
}


@dataclass(slots=True)
class DrawnPictures:
    """Pictures that were read, by their index among the entries.

    Attributes:
        pixels: uint8 (M, C, H, W), in the order in which pictures were read.
        rows: row of each picture that was read.
        found: what the file of each of them holds, without its pixels.
        unreadable: (name, reason) of each entry that could not be used.
    """

    pixels: torch.Tensor
    rows: dict[int, int] = field(default_factory=dict)
    found: dict[int, Decoded] = field(default_factory=dict)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    _free_rows: list[int] = field(default_factory=list)
    _dense: torch.Tensor | None = None
    _objects: dict[int, Any] = field(default_factory=dict)

    @property
    def remarks(self) -> Counter[Remark]:
        """How many of the pictures are unusual, and how."""
        return Counter(remark for found in self.found.values() for remark in found.remarks)

    @property
    def num_marked(self) -> int:
        """How many of the pictures have a rotation mark of their camera."""
        return self.remarks["rotated"] + self.remarks["turned"]

    @property
    def usual_size(self) -> tuple[int, int] | None:
        """The (width, height) of more than half of the pictures; None where they differ."""
        sizes = Counter(found.size for found in self.found.values())
        ((size, count),) = sizes.most_common(1) or [((0, 0), 0)]
        return size if 2 * count > sizes.total() else None

    def notes(self) -> tuple[str, ...]:
        """Return one sentence for each kind of unusual picture, and one on those left out."""
        remarks = self.remarks
        notes = [
            f"{plural(remarks[remark], 'picture')} {what}." for remark, what in _REMARKS.items() if remarks[remark]
        ]
        if used := [found.bits for found in self.found.values() if found.bits]:
            notes.append(bits_note(max(used), len(used)))
        if self.unreadable:
            names = listed(f"{printable(name)} ({reason})" for name, reason in self.unreadable)
            notes.append(f"{plural(len(self.unreadable), 'file')} that cannot be used left out: {names}.")
        return tuple(notes)

    def add(self, index: int, pixels: torch.Tensor, found: Decoded) -> None:
        """Keep one picture, uint8 (C, H, W), of what was ``found`` in its file."""
        row = self._free_rows.pop() if self._free_rows else len(self.rows)
        self.pixels[row] = pixels
        self.rows[index], self.found[index] = row, found

    def leave_out(self, index: int, name: str, reason: str) -> None:
        """Note that an entry cannot be used; the row of a picture that was kept is free again."""
        self.unreadable.append((name, reason))
        if index in self.rows:
            self._free_rows.append(self.rows.pop(index))
            del self.found[index]

    def annotate(self, index: int, annotation: Any, *, dense: bool) -> None:
        """Keep the annotation of a picture; ``dense`` ones are arrays of one shape and type.

        Raises:
            TypeError: a dense one is not like the others.
        """
        if not dense:
            self._objects[index] = annotation
            return
        values = torch.from_numpy(np.ascontiguousarray(annotation))
        if self._dense is None:
            self._dense = allocate_rows(len(self.pixels), values.shape, values.dtype)
        if (values.shape, values.dtype) != (self._dense.shape[1:], self._dense.dtype):
            raise TypeError(f"Dense annotations must be alike, got {tuple(values.shape)} of {values.dtype}.")
        self._dense[self.rows[index]] = values

    def targets(self, indices: Sequence[int]) -> PerImage:
        """Return the annotations of these pictures, all of which have one: a tensor, or a tuple of objects."""
        if self._dense is not None:
            return chosen_of(self._dense, [self.rows[index] for index in indices])
        return tuple(self._objects[index] for index in indices)

    def scale_alike(self) -> None:
        """Scale all pictures of 16 bits per channel by the bits that the brightest of them needs."""
        most = max(found.bits for found in self.found.values())
        for index, found in self.found.items():
            if found.bits:
                self.pixels[self.rows[index]] >>= most - found.bits
