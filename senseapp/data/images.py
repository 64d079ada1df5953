"""Images as the network sees them, read batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class ImageSet(Protocol):
    """A fixed, ordered set of prepared images.

    Attributes:
        labels: class index of each image, int64 (N,), or None without labels.
        class_names: name of each class index; empty where unknown.
        names: file name of each image (or its number).
        notes: sentences a person should read (files skipped, and why).
        indicative: True for random inputs, whose figures are indicative only.
    """

    labels: torch.Tensor | None
    class_names: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...]
    indicative: bool

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def batch(self, start: int, stop: int) -> torch.Tensor:
        """Return images ``start`` to ``stop`` (exclusive), float32 (n, C, H, W), normalised."""
        ...

    def subset(self, indices: Sequence[int]) -> ImageSet:
        """Return the images at ``indices``, in that order."""
        ...


class TensorImages:
    """An :class:`ImageSet` over one tensor in memory, float32 (N, C, H, W) and already normalised."""

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor | None = None,
        *,
        class_names: tuple[str, ...] = (),
        names: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        indicative: bool = False,
    ) -> None:
        self.images = images
        self.labels = labels
        self.class_names = class_names
        self.names = names or tuple(str(index) for index in range(len(images)))
        self.notes = notes
        self.indicative = indicative

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, start: int, stop: int) -> torch.Tensor:
        """Return images ``start`` to ``stop`` (exclusive), float32 (n, C, H, W)."""
        return self.images[start:stop]

    def subset(self, indices: Sequence[int]) -> TensorImages:
        """Return the images at ``indices``, in that order."""
        index = torch.as_tensor(list(indices), dtype=torch.long)
        return TensorImages(
            self.images[index],
            None if self.labels is None else self.labels[index],
            class_names=self.class_names,
            names=tuple(self.names[i] for i in indices),
            notes=self.notes,
            indicative=self.indicative,
        )
