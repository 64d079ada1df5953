"""Pictures that were read, cropped and scaled alike, and what is said of unusual ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from senseapp.core.texts import listed, plural, printable
from senseapp.data.bit_depth import Depth, depth_note, mixed_depths_note
from senseapp.data.decoding import Decoded, Remark

_REMARKS: dict[Remark, str] = {
    "animated": "taken from the first frame of an animation",
    "transparent": "shown without transparency",
    "rotated": "taken as stored: the camera's rotation mark is ignored, as networks are trained",
    "turned": "turned upright, as the camera's rotation mark says",
    "CMYK": "converted from printing colours (CMYK)",
}


@dataclass(slots=True)
class DrawnPictures:
    """What was read.

    Attributes:
        pixels: uint8 (M, C, H, W), in the order in which pictures were read.
        rows: row of each entry that was read, by its index among the entries.
        unreadable: (name, reason) of each entry that could not be used.
        remarks: how many of the pictures are unusual, and how.
        sizes: how many of the pictures have a (width, height) in pixels.
        depths: bits used, by the row of each picture with 16 bits per channel.
        fainter: how many pictures would fit in fewer bits than those of all, by the bits.
    """

    pixels: torch.Tensor
    rows: dict[int, int] = field(default_factory=dict)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    remarks: Counter[Remark] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    depths: dict[int, Depth] = field(default_factory=dict)
    fainter: Counter[int] = field(default_factory=Counter)

    @property
    def usual_size(self) -> tuple[int, int] | None:
        """The (width, height) of more than half of the pictures; None where they differ."""
        ((size, count),) = self.sizes.most_common(1) or [((0, 0), 0)]
        return size if 2 * count > self.sizes.total() else None

    def notes(self) -> tuple[str, ...]:
        """Return one sentence for each kind of unusual picture, and one on those left out."""
        notes = [
            f"{plural(self.remarks[remark], 'picture')} {what}."
            for remark, what in _REMARKS.items()
            if self.remarks[remark]
        ]
        notes += [depth_note(depth, count) for depth, count in sorted(Counter(self.depths.values()).items())]
        notes += [mixed_depths_note(bits, count) for bits, count in sorted(self.fainter.items())]
        if self.unreadable:
            names = listed(f"{printable(name)} ({reason})" for name, reason in self.unreadable)
            notes.append(f"{plural(len(self.unreadable), 'file')} that cannot be used left out: {names}.")
        return tuple(notes)

    def add(self, index: int, pixels: torch.Tensor, found: Decoded) -> None:
        """Keep one picture, uint8 (C, H, W), of what was ``found`` in its file."""
        row = len(self.rows)
        self.pixels[row] = pixels
        self.rows[index] = row
        self.remarks.update(found.remarks)
        self.sizes[found.size] += 1
        if found.depth is not None:
            self.depths[row] = found.depth

    def settle_depths(self) -> None:
        """Scale pictures whose files do not say how many bits they use alike: by the bits of the brightest of them."""
        guessed = {row: depth.bits for row, depth in self.depths.items() if not depth.stated}
        most = max(guessed.values(), default=0)
        for row, bits in guessed.items():
            self.pixels[row] >>= most - bits
            self.fainter[bits] += bits < most
            self.depths[row] = Depth(most, stated=False)
        self.fainter += Counter()  # without those of which there are none
