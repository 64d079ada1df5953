"""The fingerprints of all architectures, as they ship with senseapp.

``scripts/build_catalogue.py`` writes them; :mod:`senseapp.models.recognise` compares checkpoints with them.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from senseapp.models.free_dimensions import BuiltWith, FreeDimensions, SizeRule, find_free_dimensions
from senseapp.models.signature import (
    OrderSignature,
    Shapes,
    entry_hash,
    order_signature,
    signature_of,
    sketch_of,
    weights_only,
)

RECOGNITION_FILE = Path(__file__).with_name("recognition.json.gz")
_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What is remembered of one architecture's names and shapes.

    Attributes:
        library, name: the architecture.
        free: the weights whose shape depends on classes, channels or image size.
        fixed_signature: of all other weights.
        order: of the shapes alone, in the order of the architecture's state dict.
        sketch: of all weights, as built with the architecture's own settings.
        img_size: its own image side.
    """

    library: str
    name: str
    free: FreeDimensions
    fixed_signature: int
    order: OrderSignature
    sketch: npt.NDArray[np.uint32]
    img_size: int

    def fits(self, shapes: Shapes, signature: int) -> bool:
        """Return whether ``shapes``, whose whole signature is given, are this architecture's but for the free ones."""
        free = sum(entry_hash(name, shapes[name]) for name in self.free.patterns if name in shapes)
        return (signature - free) % _MODULUS == self.fixed_signature and self.free.fit(shapes)


def fingerprint_of(
    library: str, name: str, *, shapes: Shapes, built: BuiltWith, other_shapes: Shapes, other: BuiltWith
) -> Fingerprint:
    """Take the fingerprint of an architecture that was built twice, for ``built`` and for ``other``."""
    shapes, other_shapes = weights_only(shapes), weights_only(other_shapes)
    free = find_free_dimensions(shapes, built, other_shapes, other)
    fixed = {key: shape for key, shape in shapes.items() if key not in free.patterns}
    return Fingerprint(
        library=library,
        name=name,
        free=free,
        fixed_signature=signature_of(fixed),
        order=order_signature(shapes, free.patterns),
        sketch=sketch_of(shapes),
        img_size=built.img_size,
    )


def pack_fingerprints(fingerprints: Iterable[Fingerprint]) -> bytes:
    """Return the content of the index file; the same fingerprints give the same bytes."""
    rows = []
    for item in fingerprints:
        sketch = base64.b85encode(item.sketch.astype("<u4").tobytes()).decode()
        order = [item.order.count, f"{item.order.fixed:x}", item.order.places]
        signature = f"{item.fixed_signature:x}"
        rows.append([item.library, item.name, item.img_size, signature, sketch, asdict(item.free), order])
    return gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), mtime=0)


@cache
def load_fingerprints() -> tuple[Fingerprint, ...]:
    """Return the fingerprints of all architectures, timm's first."""
    rows = json.loads(gzip.decompress(RECOGNITION_FILE.read_bytes()))
    fingerprints = [_unpack(*row) for row in rows]  # a tuple that grows for long trips over CPython's collector
    return tuple(fingerprints)


def _unpack(
    library: str, name: str, img_size: int, signature: str, sketch: str, free: dict[str, Any], order: list[Any]
) -> Fingerprint:
    count, fixed, places = order
    return Fingerprint(
        library=library,
        name=name,
        free=FreeDimensions(
            patterns={key: tuple(pattern) for key, pattern in free["patterns"].items()},
            classes=tuple(free["classes"]) if free["classes"] else None,
            channels=tuple(free["channels"]) if free["channels"] else None,
            size=SizeRule(**free["size"]) if free["size"] else None,
        ),
        fixed_signature=int(signature, 16),
        order=OrderSignature(count=count, fixed=int(fixed, 16), places=tuple(places)),
        sketch=np.frombuffer(base64.b85decode(sketch), dtype="<u4"),
        img_size=img_size,
    )
