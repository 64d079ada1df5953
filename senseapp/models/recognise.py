"""Which architectures a checkpoint may belong to, from the names and shapes of its weights alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from senseapp.models.by_order import OrderedWeights
from senseapp.models.catalogue import find_entry
from senseapp.models.free_dimensions import ReadOff
from senseapp.models.head import HeadFit, Layers, fit_but_for_head
from senseapp.models.recognition_index import Fingerprint, load_fingerprints
from senseapp.models.signature import Shapes, Sketch, resemblance, sketch_of, weights_only

_SCORE_AT_OTHER_SIZE = 0.99
_SCORE_OF_RENAMED_HEAD = 0.98
_SCORE_WITHOUT_HEAD = 0.97
_SCORE_BY_ORDER = 0.96
_BEST_INEXACT_SCORE = 0.95
_LEAST_SCORE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One architecture that a checkpoint may belong to.

    Attributes:
        library, name: the architecture.
        score: 1 when every name and shape fits at the architecture's own image size, 0.99 when they fit at
            another one, 0.98 when they fit but for the name of the classifier, 0.97 when there is no classifier,
            0.96 when names are others but order and shapes fit; below that the share of names and shapes in common,
            roughly.
        exact: whether every name and shape fits.
        head: how the classifier differs, where all else fits.
        order: the checkpoint's names in the architecture's order, where these are all that fits; else empty.
        num_classes, in_chans, img_size: read off the shapes; None where these do not tell.
    """

    library: str
    name: str
    score: float
    exact: bool
    num_classes: int | None
    in_chans: int | None
    img_size: int | None
    head: HeadFit | None = None
    order: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the checkpoint has all weights of the architecture, as far as names or order and shapes tell."""
        return self.exact or bool(self.order) or (self.head is not None and not self.head.missing)

    @property
    def title(self) -> str:
        """The name people write, for example ``timm/resnet18``."""
        return f"{self.library}/{self.name}"


def recognise(
    shapes: Shapes, *, arch_hint: str = "", file_name: str = "", orders: Sequence[OrderedWeights] = (), limit: int = 10
) -> tuple[Candidate, ...]:
    """Return up to ``limit`` architectures that ``shapes`` resemble, the likeliest first.

    Architectures with identical names and shapes cannot be told apart and have the same score; among them the
    one named by ``arch_hint`` comes first, then those whose name is in ``file_name`` (the longest such name first),
    then those with published weights, then shorter names. Where no names fit, those come first whose shapes fit in
    one of ``orders``.
    """
    shapes = weights_only(shapes)
    layers, sketch = Layers(shapes), sketch_of(shapes)
    found = []
    for fingerprint in load_fingerprints():
        candidate = _by_names(fingerprint, layers) or fit_by_order(fingerprint, orders)
        if candidate is None:
            read, score = fingerprint.free.read_off(shapes), _score_of_likeness(sketch, fingerprint)
            candidate = _candidate(fingerprint, read, exact=False, score=score)
        if candidate.score >= _LEAST_SCORE:
            found.append(candidate)
    found.sort(key=lambda candidate: _preference(candidate, arch_hint, _compact(file_name)))
    return tuple(found[:limit])


def _by_names(fingerprint: Fingerprint, layers: Layers) -> Candidate | None:
    """Return the architecture as a candidate if its names and shapes fit, but for its classifier perhaps."""
    read = fingerprint.free.read_off(layers.shapes)
    size_is_known = (read.img_size is None) == (fingerprint.free.size is None)
    if size_is_known and fingerprint.fits(layers.shapes, layers.signature):
        return _candidate(fingerprint, read, exact=True, score=_score_of_fit(read, fingerprint))
    head = fit_but_for_head(fingerprint, layers)
    if head is None:
        return None
    read = fingerprint.free.read_off(head.renamed(layers.shapes))
    score = _SCORE_WITHOUT_HEAD if head.missing else _SCORE_OF_RENAMED_HEAD
    return _candidate(fingerprint, read, exact=False, score=score, head=head)


def fit_by_order(fingerprint: Fingerprint, orders: Sequence[OrderedWeights]) -> Candidate | None:
    """Return the architecture as a candidate if its shapes are those of the checkpoint in one of ``orders``."""
    for ordered in orders:
        free = ordered.free_shapes(fingerprint.order, fingerprint.free)
        if free is not None:
            read = fingerprint.free.read_off(free)
            if (read.img_size is None) == (fingerprint.free.size is None):
                return _candidate(fingerprint, read, exact=False, score=_SCORE_BY_ORDER, order=ordered.names)
    return None


def _score_of_fit(read: ReadOff, fingerprint: Fingerprint) -> float:
    return 1.0 if read.img_size in (None, fingerprint.img_size) else _SCORE_AT_OTHER_SIZE


def _score_of_likeness(sketch: Sketch, fingerprint: Fingerprint) -> float:
    return round(_BEST_INEXACT_SCORE * resemblance(sketch, fingerprint.sketch), 4)


def _candidate(
    fingerprint: Fingerprint,
    read: ReadOff,
    *,
    exact: bool,
    score: float,
    head: HeadFit | None = None,
    order: tuple[str, ...] = (),
) -> Candidate:
    return Candidate(
        library=fingerprint.library,
        name=fingerprint.name,
        score=score,
        exact=exact,
        num_classes=read.num_classes,
        in_chans=read.in_chans,
        img_size=read.img_size,
        head=head,
        order=order,
    )


def _preference(
    candidate: Candidate, arch_hint: str, compact_file_name: str
) -> tuple[float, bool, int, bool, int, str, str]:
    entry = find_entry(candidate.library, candidate.name)
    return (
        -candidate.score,
        candidate.name != arch_hint.split(".", 1)[0],
        -len(candidate.name) if _compact(candidate.name) in compact_file_name else 0,
        entry is None or not entry.pretrained,
        len(candidate.name),
        candidate.name,
        candidate.library,
    )


def _compact(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def fingerprint_named(library: str, name: str) -> Fingerprint | None:
    """Return the fingerprint of one architecture (a weights tag after a dot is ignored), or None."""
    architecture = name.split(".", 1)[0]
    matches = (item for item in load_fingerprints() if (item.library, item.name) == (library, architecture))
    return next(matches, None)
