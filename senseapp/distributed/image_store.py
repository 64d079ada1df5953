"""Images on their way to the workers: each span is put into the object store once, and travels once to each node."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from senseapp.data import ImageSet, TensorImages
from senseapp.data.prepared import PreparedImages

Span = tuple[int, int]


def part_of(images: ImageSet, start: int, stop: int) -> ImageSet:
    """Return images ``start`` to ``stop`` without labels and names, and without what they share with the others.

    Pictures go as bytes and are normalised by the worker: a quarter of what float32 would take.
    """
    if isinstance(images, PreparedImages):
        return PreparedImages(images.pixels[images.rows[start:stop]], images.preprocessing)
    return TensorImages(images.batch(start, stop).clone())


class ImageStore:
    """References to spans of ``images`` in Ray's object store; the ones used last are kept while there is room.

    Args:
        images: of the run.
        most_bytes: that may be kept for tasks to come; those of tasks under way stay in any case.
    """

    def __init__(self, images: ImageSet, *, most_bytes: int) -> None:
        self._images = images
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Span, tuple[Any, int]] = OrderedDict()
        self.sent = 0

    def reference(self, span: Span) -> Any:
        """Return the reference to the images of ``span``, put there if they are not any more."""
        import ray

        if span not in self._kept:
            part = part_of(self._images, *span)
            self._kept[span] = ray.put(part), _bytes(part)
            self.sent += 1
        self._kept.move_to_end(span)
        found = self._kept[span][0]
        while len(self._kept) > 1 and sum(size for _, size in self._kept.values()) > self._most_bytes:
            self._kept.popitem(last=False)
        return found


def _bytes(part: ImageSet) -> int:
    held = part.pixels if isinstance(part, PreparedImages) else part.batch(0, len(part))
    return held.numel() * held.element_size()
