"""A network's names and shapes as a few numbers, so that 1,450 architectures can be compared in milliseconds.

Two numbers do the work. The *signature* is the sum (modulo 2^64) of one hash per (name, shape): it is the same in
any order, and what is known to depend on the number of classes, the input channels or the image size can be
subtracted from it. The *sketch* keeps the smallest hashes of the set; the share of them that two sets have in
common estimates the share of names and shapes that they have in common.

Source: Broder, "On the resemblance and containment of documents" (1997), section 4 (bottom-k sketch).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Shapes = Mapping[str, tuple[int, ...]]
Sketch = npt.NDArray[np.uint32]

SKETCH_SIZE = 128
COMPUTED_SUFFIXES = ("num_batches_tracked", "relative_position_index", "relative_coords_table", "attn_mask")
"""Endings of what a network counts or computes by itself; older checkpoints have or lack it at random."""
_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSignature:
    """The shapes of an architecture in its own order, whatever their names.

    Attributes:
        count: number of weights.
        fixed: sum of the hashes of (place, shape), modulo 2^64, of all but the free weights.
        places: of the free weights, in the order of their patterns.
    """

    count: int
    fixed: int
    places: tuple[int, ...]


def weights_only(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Leave out what a network counts or computes by itself."""
    return {name: shape for name, shape in shapes.items() if not name.endswith(COMPUTED_SUFFIXES)}


def entry_hash(name: str, shape: tuple[int, ...]) -> int:
    """Return 64 bits for one named shape; the same on every machine and in every process."""
    text = f"{name}:{','.join(map(str, shape))}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def signature_of(shapes: Shapes) -> int:
    """Return the sum of the entries' hashes, modulo 2^64."""
    return sum(entry_hash(name, shape) for name, shape in shapes.items()) % _MODULUS


def order_signature(shapes: Shapes, free: Collection[str]) -> OrderSignature:
    """Return the signature of ``shapes``, which are in the architecture's own order, without those in ``free``."""
    places = {name: place for place, name in enumerate(shapes)}
    fixed = sum(entry_hash(str(place), shapes[name]) for name, place in places.items() if name not in free)
    return OrderSignature(count=len(shapes), fixed=fixed % _MODULUS, places=tuple(places[name] for name in free))


def sketch_of(shapes: Shapes) -> Sketch:
    """Return the ``SKETCH_SIZE`` smallest hashes (their upper 32 bits), ascending; fewer for a small network."""
    hashes = sorted({entry_hash(name, shape) >> 32 for name, shape in shapes.items()})
    return np.array(hashes[:SKETCH_SIZE], dtype=np.uint32)


def resemblance(first: Sketch, second: Sketch) -> float:
    """Estimate the Jaccard index of two sets, |A ∩ B| / |A ∪ B|, from their sketches."""
    union = np.union1d(first, second)[:SKETCH_SIZE]
    if union.size == 0:
        return 0.0
    both = np.intersect1d(first, second, assume_unique=True)
    return float(np.isin(union, both, assume_unique=True).mean())
