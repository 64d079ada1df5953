"""Which images the curves are measured on, and which are kept from them to prove schedules on.

Where a number of images is asked for, that many are drawn for the curves and the rest is kept. Where none is asked
for, :data:`HELD_OUT_SHARE` of the images are kept, unless that leaves too few of them to prove anything; then the
curves get all. The draw depends on the seed and on nothing else.
"""

from __future__ import annotations

import torch

from senseapp.data import ImageSet

HELD_OUT_SHARE = 0.3
LEAST_HELD_OUT = 100
MOST_HELD_OUT = 2000


def num_held_out(count: int) -> int:
    """Return how many of ``count`` images are kept when no number was asked for.

    >>> num_held_out(897), num_held_out(333), num_held_out(50_000)
    (269, 0, 2000)
    """
    kept = int(HELD_OUT_SHARE * count)
    return min(kept, MOST_HELD_OUT) if kept >= LEAST_HELD_OUT else 0


def split(images: ImageSet, seed: int) -> tuple[ImageSet, ImageSet]:
    """Return the images for the curves and those kept from them, each in their old order.

    Random inputs are never split: more can be drawn.
    """
    kept = 0 if images.indicative else num_held_out(len(images))
    if not kept:
        return images, images.subset([])
    order: list[int] = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).tolist()
    return images.subset(sorted(order[kept:])), images.subset(sorted(order[:kept]))
