"""Checkpoints whose classifier has another name than the architecture's, or that have none: all else fits.

``model.fc = nn.Sequential(nn.Dropout(), nn.Linear(512, 7))`` makes ``fc.1.weight`` of ``fc.weight``; the numbers are
those of the classifier all the same, and are taken as such. A missing classifier is never filled in unasked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from senseapp.models.recognition_index import Fingerprint
from senseapp.models.signature import Shapes, entry_hash, signature_of

_MODULUS = 1 << 64
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFit:
    """How a checkpoint that fits but for its classifier names it.

    Attributes:
        own: the classifier's name in the architecture, ``fc``.
        found: its name in the checkpoint, ``fc.1``; empty where the checkpoint has none.
    """

    own: str
    found: str

    @property
    def missing(self) -> bool:
        """Whether the checkpoint has no classifier."""
        return not self.found

    def renamed(self, weights: Mapping[str, T]) -> dict[str, T]:
        """Return the weights under the names that the architecture has."""
        start = f"{self.found}."
        return {
            f"{self.own}.{name.removeprefix(start)}" if self.found and name.startswith(start) else name: value
            for name, value in weights.items()
        }


class Layers:
    """The names and shapes of a checkpoint, and its layers by the sum of their weights' hashes.

    Attributes:
        shapes: by name, without what a network counts or computes by itself.
        signature: of all of them.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.signature = signature_of(shapes)
        self._by_sum: dict[tuple[str, ...], dict[int, str]] = {}

    def find(self, wanted: int, suffixes: tuple[str, ...]) -> str:
        """Return the layer whose weights of these names have the hashes' sum ``wanted``; empty if there is none."""
        if suffixes not in self._by_sum:
            self._by_sum[suffixes] = {self._sum(layer, suffixes): layer for layer in self._with_all(suffixes)}
        return self._by_sum[suffixes].get(wanted, "")

    def _with_all(self, suffixes: tuple[str, ...]) -> Iterator[str]:
        for name in self.shapes:
            layer, _, suffix = name.rpartition(".")
            if layer and suffix == suffixes[0] and all(f"{layer}.{other}" in self.shapes for other in suffixes):
                yield layer

    def _sum(self, layer: str, suffixes: tuple[str, ...]) -> int:
        names = (f"{layer}.{suffix}" for suffix in suffixes)
        return sum(entry_hash(name, self.shapes[name]) for name in names) % _MODULUS


def fit_but_for_head(fingerprint: Fingerprint, layers: Layers) -> HeadFit | None:
    """Return how a checkpoint fits the architecture but for its classifier's name.

    None where it fits as it is, or differs in more.
    """
    free, shapes = fingerprint.free, layers.shapes
    own = free.classes[0].rpartition(".")[0] if free.classes else ""
    head = {name: pattern for name, pattern in free.patterns.items() if name.rpartition(".")[0] == own}
    if not own or any(name in shapes for name in head):
        return None
    others = [name for name in free.patterns if name not in head]
    if not free.fit(shapes, others):
        return None
    known = fingerprint.fixed_signature + sum(entry_hash(name, shapes[name]) for name in others)
    left = (layers.signature - known) % _MODULUS
    if left == 0:
        return HeadFit(own=own, found="")
    suffixes = tuple(name.rpartition(".")[2] for name in head)
    found = layers.find(left, suffixes)
    renamed = {f"{own}.{suffix}": shapes[f"{found}.{suffix}"] for suffix in suffixes if found}
    return HeadFit(own=own, found=found) if found and free.fit(renamed, head) else None
