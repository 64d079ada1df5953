"""Which architectures a checkpoint may belong to, from the names and shapes of its weights alone."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.models.catalogue import find_entry
from senseapp.models.free_dimensions import ReadOff
from senseapp.models.head import HeadFit, Layers, fit_but_for_head
from senseapp.models.recognition_index import Fingerprint, load_fingerprints
from senseapp.models.signature import Shapes, Sketch, resemblance, sketch_of, weights_only

__all__ = ["Candidate", "fingerprint_named", "recognise"]

_SCORE_AT_OTHER_SIZE = 0.99
_SCORE_OF_RENAMED_HEAD = 0.98
_SCORE_WITHOUT_HEAD = 0.97
_BEST_INEXACT_SCORE = 0.95
_LEAST_SCORE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One architecture that a checkpoint may belong to.

    Attributes:
        library, name: the architecture.
        score: 1 when every name and shape fits at the architecture's own image size, 0.99 when they fit at
            another one, 0.98 when they fit but for the name of the classifier, 0.97 when there is no classifier;
            below 0.96 the share of names and shapes in common, roughly.
        exact: whether every name and shape fits.
        head: how the classifier differs, where all else fits.
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

    @property
    def fits(self) -> bool:
        """Whether the checkpoint has all weights of the architecture, under whatever name its classifier has."""
        return self.exact or (self.head is not None and not self.head.missing)

    @property
    def title(self) -> str:
        """The name people write, for example ``timm/resnet18``."""
        return f"{self.library}/{self.name}"


def recognise(shapes: Shapes, *, arch_hint: str = "", limit: int = 10) -> tuple[Candidate, ...]:
    """Return up to ``limit`` architectures that ``shapes`` resemble, the likeliest first.

    Architectures with identical names and shapes cannot be told apart and have the same score; among them the
    one named by ``arch_hint`` comes first, then those with published weights, then shorter names.
    """
    shapes = weights_only(shapes)
    layers, sketch = Layers(shapes), sketch_of(shapes)
    found = []
    for fingerprint in load_fingerprints():
        read = fingerprint.free.read_off(shapes)
        size_is_known = (read.img_size is None) == (fingerprint.free.size is None)
        exact = fingerprint.fits(shapes, layers.signature) and size_is_known
        head = None if exact else fit_but_for_head(fingerprint, layers)
        if head is not None:
            read = fingerprint.free.read_off(head.renamed(shapes))
            score = _SCORE_WITHOUT_HEAD if head.missing else _SCORE_OF_RENAMED_HEAD
        else:
            score = _score_of_fit(read, fingerprint) if exact else _score_of_likeness(sketch, fingerprint)
        if score >= _LEAST_SCORE:
            found.append(_candidate(fingerprint, read, exact=exact, score=score, head=head))
    found.sort(key=lambda candidate: _preference(candidate, arch_hint))
    return tuple(found[:limit])


def _score_of_fit(read: ReadOff, fingerprint: Fingerprint) -> float:
    return 1.0 if read.img_size in (None, fingerprint.img_size) else _SCORE_AT_OTHER_SIZE


def _score_of_likeness(sketch: Sketch, fingerprint: Fingerprint) -> float:
    return round(_BEST_INEXACT_SCORE * resemblance(sketch, fingerprint.sketch), 4)


def _candidate(
    fingerprint: Fingerprint, read: ReadOff, *, exact: bool, score: float, head: HeadFit | None
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
    )


def _preference(candidate: Candidate, arch_hint: str) -> tuple[float, bool, bool, int, str, str]:
    entry = find_entry(candidate.library, candidate.name)
    return (
        -candidate.score,
        candidate.name != arch_hint.split(".", 1)[0],
        entry is None or not entry.pretrained,
        len(candidate.name),
        candidate.name,
        candidate.library,
    )


def fingerprint_named(library: str, name: str) -> Fingerprint | None:
    """Return the fingerprint of one architecture (a weights tag after a dot is ignored), or None."""
    architecture = name.split(".", 1)[0]
    matches = (item for item in load_fingerprints() if (item.library, item.name) == (library, architecture))
    return next(matches, None)
