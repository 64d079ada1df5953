"""Pictures decoded and cropped, kept as bytes and normalised batch by batch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence

import numpy as np
import torch

from senseapp.errors import InvalidDataset
from senseapp.models.loaded import Preprocessing
from senseapp.wording import counted

_MOST_IN_MEMORY_BYTES = 128_000_000


class PreparedImages:
    """An :class:`~senseapp.data.images.ImageSet` over uint8 pixels (M, C, H, W), of which ``rows`` are the images.

    ``picture_size`` is the (width, height) in pixels that most of them had before they were resized, if any.

    A subset shares the pixels. Batches are scaled and normalised exactly as timm's transform does it, once their
    channels are in the order of the preprocessing.
    """

    def __init__(
        self,
        pixels: torch.Tensor,
        preprocessing: Preprocessing,
        labels: torch.Tensor | None = None,
        *,
        rows: torch.Tensor | None = None,
        class_names: tuple[str, ...] = (),
        names: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        picture_size: tuple[int, int] | None = None,
    ) -> None:
        self.pixels = pixels
        self.preprocessing = preprocessing
        self.labels = labels
        self.rows = torch.arange(len(pixels)) if rows is None else rows
        self.class_names = class_names
        self.names = names or tuple(str(index) for index in range(len(self.rows)))
        self.notes = notes
        self.picture_size = picture_size
        self.indicative = False

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, start: int, stop: int) -> torch.Tensor:
        """Return images ``start`` to ``stop`` (exclusive), float32 (n, C, H, W), normalised."""
        mean, std = (
            torch.tensor(values).view(-1, 1, 1) for values in (self.preprocessing.mean, self.preprocessing.std)
        )
        pictures = self.pixels[self.rows[start:stop]]  # (n, C, H, W)
        if self.preprocessing.channel_order == "bgr":
            pictures = pictures.flip(1)
        return pictures.float().div_(255).sub_(mean).div_(std)

    def subset(self, indices: Sequence[int]) -> PreparedImages:
        """Return the images at ``indices``, in that order."""
        index = torch.as_tensor(list(indices), dtype=torch.long)
        return PreparedImages(
            self.pixels,
            self.preprocessing,
            None if self.labels is None else self.labels[index],
            rows=self.rows[index],
            class_names=self.class_names,
            names=tuple(self.names[i] for i in indices),
            notes=self.notes,
            picture_size=self.picture_size,
        )

    def normalised_as(self, preprocessing: Preprocessing) -> PreparedImages:
        """Return the same pictures in the same crop with the mean, std and channel order of ``preprocessing``."""
        return PreparedImages(
            self.pixels,
            preprocessing,
            self.labels,
            rows=self.rows,
            class_names=self.class_names,
            names=self.names,
            notes=self.notes,
            picture_size=self.picture_size,
        )


def allocate_pixels(
    count: int, shape: tuple[int, int, int], *, most_in_memory_bytes: int = _MOST_IN_MEMORY_BYTES
) -> torch.Tensor:
    """Return room for pictures, uint8 (count, C, H, W): in memory, or above a limit in a file that has no name.

    The file is gone once the tensor is, also when the process is killed.

    Raises:
        InvalidDataset: the disk has too little room.
    """
    needed = count * int(np.prod(shape))
    if needed <= most_in_memory_bytes:
        return torch.empty((count, *shape), dtype=torch.uint8)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free // 2:  # leave half to others
        raise InvalidDataset(
            f"{counted(count, 'picture')} need {needed / 1e9:.1f} GB of temporary disk space and there are "
            f"{free / 1e9:.1f} GB. Measure on fewer samples."
        )
    with tempfile.TemporaryFile() as file:
        return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="w+", shape=(count, *shape)))
