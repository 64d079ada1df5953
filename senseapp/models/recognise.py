"""Recognise the architecture of a checkpoint by the names and shapes of its weights, or by order and shapes alone.

Matching by order serves networks converted from another framework, whose names differ: signatures of (place, shape)
are compared. Neighbours of equal shape could be exchanged unseen, so such a match is a guess that the accuracy of the
uncompressed network confirms or refutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from senseapp.core.errors import InvalidCheckpoint
from senseapp.models.catalogue import find_entry
from senseapp.models.fingerprint import (
    COMPUTED_SUFFIXES,
    MODULUS,
    BuiltWith,
    Fingerprint,
    OrderedWeights,
    Shapes,
    by_place,
    load_fingerprints,
    resemblance,
    signature_of,
    sketch_of,
    weights_only,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

BY_ORDER_NOTE = (
    "Names are unknown; order and shapes fit {title}. This is a guess: the accuracy of the uncompressed network on "
    "your images confirms or refutes it."
)
_NAMES_OF_ROLES = (  # in the order in which PyTorch's own layers hold them
    ("weight", "kernel", "gamma", "w"),
    ("bias", "beta", "b"),
    ("running_mean", "moving_mean", "mean"),
    ("running_variance", "running_var", "moving_variance", "moving_var", "variance", "var"),
)
_RANKS = {name: rank for rank, names in enumerate(_NAMES_OF_ROLES) for name in names}
_LONGEST_FIRST = sorted(_RANKS, key=len, reverse=True)  # running_mean ends in mean
_ROLE = re.compile(rf"^(?:(.*?)[._/])?({'|'.join(_LONGEST_FIRST)})$", re.IGNORECASE)
_VARIANCE_SUFFIX = "running_var"


def ordered_weights(tensors: Mapping[str, Tensor]) -> tuple[OrderedWeights, ...]:
    """Return the weights in the orders to try: as PyTorch's own layers hold theirs, then as they are in the file.

    Whole numbers (counters and tables of positions) are left out, whatever their names. In the first order the
    weights of one layer stand together: weight, bias, running mean, running variance.
    """
    names = tuple(name for name in weights_only(dict.fromkeys(tensors, ())) if tensors[name].is_floating_point())
    found = []
    for order in dict.fromkeys((_layer_by_layer(names), names)):
        shapes = tuple(tuple(tensors[name].shape) for name in order)
        found.append(OrderedWeights(order, shapes, signature_of(by_place(shapes))))
    return tuple(found)


def _layer_by_layer(names: Iterable[str]) -> tuple[str, ...]:
    layers: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        found = _ROLE.match(name)
        layer, rank = ((found[1] or ""), _RANKS[found[2].lower()]) if found else (f"{name}.", 0)
        layers.setdefault(layer, []).append((rank, name))
    return tuple(name for layer in layers.values() for _, name in sorted(layer, key=lambda item: item[0]))


def named_by_order(
    module: nn.Module, tensors: Mapping[str, Tensor], order: Sequence[str], *, file_name: str, title: str
) -> dict[str, Tensor]:
    """Return the weights under the names that ``module`` has for those at the same places.

    ``order`` lists the names of ``tensors`` in the architecture's order, see :func:`ordered_weights`.

    Raises:
        InvalidCheckpoint: a weight would become a variance and is negative, so the order is another one.
    """
    own = [name for name in module.state_dict() if not name.endswith(COMPUTED_SUFFIXES)]
    for name, found in zip(own, order, strict=True):
        if name.endswith(_VARIANCE_SUFFIX) and bool((tensors[found] < 0).any()):
            raise InvalidCheckpoint(
                f"The shapes of {file_name} fit {title} in their order, but {found} would be a variance and holds "
                "negative numbers, so the order is another one. Save the weights under the names of the architecture."
            )
    return {name: tensors[found] for name, found in zip(own, order, strict=True)}


_SCORE_AT_OTHER_SIZE = 0.99
_SCORE_OF_RENAMED_HEAD = 0.98
_SCORE_WITHOUT_HEAD = 0.97
_SCORE_BY_ORDER = 0.96
_BEST_INEXACT_SCORE = 0.95
_LEAST_SCORE = 0.05
_MOST_WEIGHTS = 10_000  # the largest architecture has 2,683
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(BuiltWith[int | None]):
    """One architecture that a checkpoint may belong to, and what it was built with as read off the shapes.

    Attributes:
        library, name: the architecture.
        score: 1 when every name and shape fits at the architecture's own image size, 0.99 when they fit at
            another one, 0.98 when they fit but for the name of the classifier, 0.97 when there is no classifier,
            0.96 when names are others but order and shapes fit; below that the share of names and shapes in common,
            roughly.
        exact: whether every name and shape fits.
        head: how the classifier differs, where all else fits.
        order: the checkpoint's names in the architecture's order, where these are all that fits; else empty.
    """

    library: str
    name: str
    score: float
    exact: bool = False
    head: HeadFit | None = None
    order: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the checkpoint has all weights of the architecture, as far as names or order and shapes tell."""
        return self.exact or self.by_order or (self.head is not None and not self.head.missing)

    @property
    def by_order(self) -> bool:
        """Whether only order and shapes fit, under other names: a guess."""
        return bool(self.order)

    @property
    def without_head(self) -> bool:
        """Whether all but the classifier is there."""
        return self.head is not None and self.head.missing

    @property
    def title(self) -> str:
        """The name people write, for example ``timm/resnet18``."""
        return f"{self.library}/{self.name}"


class Layers:
    """The names and shapes of a checkpoint, and its layers by the signature of their weights.

    Attributes:
        shapes: by name, without what a network counts or computes by itself.
        signature: of all of them.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = weights_only(shapes)
        self.signature = signature_of(self.shapes)
        self._by_signature: dict[tuple[str, ...], dict[int, str]] = {}

    def find(self, signature: int, suffixes: tuple[str, ...]) -> str:
        """Return the layer whose weights of these names have ``signature``; empty if there is none."""
        if suffixes not in self._by_signature:
            owners = (name.removesuffix(suffixes[0]) for name in self.shapes if name.endswith(f".{suffixes[0]}"))
            groups = ([owner + suffix for suffix in suffixes] for owner in owners)
            self._by_signature[suffixes] = {
                signature_of({name: self.shapes[name] for name in group}): group[0].rpartition(".")[0]
                for group in groups
                if all(name in self.shapes for name in group)
            }
        return self._by_signature[suffixes].get(signature, "")


def recognise(
    shapes: Shapes, *, arch_hint: str = "", file_name: str = "", orders: Sequence[OrderedWeights] = (), limit: int = 10
) -> tuple[Candidate, ...]:
    """Return up to ``limit`` architectures that ``shapes`` resemble, the likeliest first.

    Architectures with identical names and shapes cannot be told apart and have the same score; among them the
    one named by ``arch_hint`` comes first, then those whose name is in ``file_name`` (the longest such name first),
    then those with published weights, then shorter names. Where no names fit, those come first whose shapes fit in
    one of ``orders``. Files with more weights than any network has resemble none.
    """
    if len(shapes) > _MOST_WEIGHTS:
        return ()
    layers = Layers(shapes)
    sketch, found = sketch_of(layers.shapes), []
    for fingerprint in load_fingerprints():
        candidate = _by_names(fingerprint, layers) or fit_by_order(fingerprint, orders)
        if candidate is None:
            score = round(_BEST_INEXACT_SCORE * resemblance(sketch, fingerprint.sketch), 4)
            candidate = _candidate(fingerprint, layers.shapes, score=score)
        if candidate.score >= _LEAST_SCORE:
            found.append(candidate)
    found.sort(key=lambda candidate: _sort_key(candidate, arch_hint, _compact(file_name)))
    return tuple(found[:limit])


def _by_names(fingerprint: Fingerprint, layers: Layers) -> Candidate | None:
    """Return the architecture as a candidate if its names and shapes fit, but for its classifier perhaps."""
    size = fingerprint.free.read_off(layers.shapes).img_size
    size_is_known = (size is None) == (fingerprint.free.size is None)
    if size_is_known and fingerprint.fits(layers.shapes, layers.signature):
        score = 1.0 if size in (None, fingerprint.img_size) else _SCORE_AT_OTHER_SIZE
        return _candidate(fingerprint, layers.shapes, exact=True, score=score)
    head = fit_but_for_head(fingerprint, layers)
    if head is None:
        return None
    score = _SCORE_WITHOUT_HEAD if head.missing else _SCORE_OF_RENAMED_HEAD
    return _candidate(fingerprint, head.renamed(layers.shapes), score=score, head=head)


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
    known = fingerprint.fixed_signature + signature_of({name: shapes[name] for name in others})
    left = (layers.signature - known) % MODULUS
    if left == 0:
        return HeadFit(own=own, found="")
    suffixes = tuple(name.rpartition(".")[2] for name in head)
    found = layers.find(left, suffixes)
    renamed = {f"{own}.{suffix}": shapes[f"{found}.{suffix}"] for suffix in suffixes if found}
    return HeadFit(own=own, found=found) if found and free.fit(renamed, head) else None


def fit_by_order(fingerprint: Fingerprint, orders: Sequence[OrderedWeights]) -> Candidate | None:
    """Return the architecture as a candidate if its shapes are those of the checkpoint in one of ``orders``."""
    for ordered in orders:
        free = fingerprint.free_shapes(ordered)
        if free is not None:
            candidate = _candidate(fingerprint, free, score=_SCORE_BY_ORDER, order=ordered.names)
            if (candidate.img_size is None) == (fingerprint.free.size is None):
                return candidate
    return None


def _candidate(
    fingerprint: Fingerprint,
    shapes: Shapes,
    *,
    score: float,
    exact: bool = False,
    head: HeadFit | None = None,
    order: tuple[str, ...] = (),
) -> Candidate:
    return Candidate(
        library=fingerprint.library,
        name=fingerprint.name,
        score=score,
        exact=exact,
        head=head,
        order=order,
        **asdict(fingerprint.free.read_off(shapes)),
    )


def _sort_key(
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
