"""Recognition of a network's architecture by names and shapes of its weights, or by order and shapes alone.

Order and shapes serve checkpoints with unknown names, such as those converted from another framework: signatures of
(place, shape) are compared. Exchanged neighbours of equal shape would not be detected, so such a match is a guess that
the accuracy of the uncompressed network confirms or refutes. Only files that ``torch.save`` wrote are matched: writers
of safetensors sort weights by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.fingerprint import (
    COMPUTED_SUFFIXES,
    BuiltWith,
    Fingerprint,
    OrderedWeights,
    Shapes,
    by_place,
    is_layer,
    load_fingerprints,
    signature_of,
    weights_only,
)
from senseapp.networks.sources.catalogue import find_entry

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")

BY_ORDER_NOTE = (
    "Names are unknown; order and shapes fit {title}. This is a guess: the accuracy of the uncompressed network on "
    "your images confirms or refutes it."
)
PARAMETRIZED = re.compile(r"(?:^|\.)parametrizations\.|weight_(?:orig|[guv])$")
"""Names of what torch's parametrizations (weight_norm, spectral_norm) compute weights from, perhaps of equal shape."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFit:
    """Name of the classifier in a checkpoint that fits in all other layers.

    Attributes:
        own: the classifier's name in the architecture, ``fc``.
        found: its name in the checkpoint, ``fc.1``; empty where the checkpoint has none.
    """

    own: str
    found: str

    def renamed(self, weights: Mapping[str, T]) -> dict[str, T]:
        """Return the weights under the architecture's names."""
        start = f"{self.found}."
        return {
            f"{self.own}.{name.removeprefix(start)}" if self.found and name.startswith(start) else name: value
            for name, value in weights.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureMatch(BuiltWith[int | None]):
    """One architecture that a checkpoint may belong to, with the sizes read off its shapes.

    Attributes:
        library, name: the architecture.
        score: 1 if every name and shape fits at the architecture's own image size, 0.99 if they fit at another one,
            0.98 if all but the name of the classifier fit, 0.975 if there are surplus weights, 0.97 if there is no
            classifier, 0.96 if only order and shapes fit; below that roughly the share of names and shapes in common.
        exact: whether every name and shape fits.
        head: how the classifier differs, if all else fits.
        order: the checkpoint's names in the architecture's order, if only order and shapes fit; else empty.
        surplus: names in the checkpoint that the architecture does not have, if it has all others.
    """

    library: str
    name: str
    score: float
    exact: bool = False
    head: HeadFit | None = None
    order: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the checkpoint has all weights of the architecture, by names or by order and shapes."""
        return not self.without_head and (self.exact or self.by_order or self.head is not None or bool(self.surplus))

    @property
    def by_order(self) -> bool:
        """Whether only order and shapes fit, under other names: a guess."""
        return bool(self.order)

    @property
    def without_head(self) -> bool:
        """Whether all weights but the classifier's are there."""
        return self.head is not None and not self.head.found

    @property
    def title(self) -> str:
        """Display name, for example ``timm/resnet18``."""
        return f"{self.library}/{self.name}"


def ranked(candidates: Iterable[ArchitectureMatch], *, arch_hint: str, file_name: str) -> tuple[ArchitectureMatch, ...]:
    """Return up to twenty of the candidates, the likeliest first.

    Architectures with identical names and shapes have the same score; among them the one named by ``arch_hint`` comes
    first, then those whose name is in ``file_name`` (the longest such name first), then those with published weights,
    then shorter names.
    """
    compact = _compact(file_name)
    return tuple(sorted(candidates, key=lambda each: _sort_key(each, arch_hint, compact))[:20])


def candidate_of(fingerprint: Fingerprint, shapes: Shapes, **fit: Any) -> ArchitectureMatch:
    """Return an architecture as a candidate, with the sizes that ``shapes`` have under its names.

    ``fit`` are further fields of the candidate.
    """
    sizes = asdict(fingerprint.free.read_off(shapes))
    return ArchitectureMatch(library=fingerprint.library, name=fingerprint.name, **sizes, **fit)


def fit_by_names(fingerprint: Fingerprint, shapes: Shapes, signature: int) -> ArchitectureMatch | None:
    """Return the architecture as a candidate if these weights, of that signature, have its names and shapes."""
    if not _size_is_whole(fingerprint, shapes) or not fingerprint.fits(shapes, signature):
        return None
    size = fingerprint.free.read_off(shapes).img_size
    score = 1.0 if size in (None, fingerprint.img_size) else 0.99
    return candidate_of(fingerprint, shapes, exact=True, score=score)


def _size_is_whole(fingerprint: Fingerprint, shapes: Shapes) -> bool:
    """Return whether the shapes give an image size, where they depend on one."""
    return (fingerprint.free.read_off(shapes).img_size is None) == (fingerprint.free.size is None)


def fit_by_order(fingerprint: Fingerprint, orders: Sequence[OrderedWeights]) -> ArchitectureMatch | None:
    """Return the architecture as a candidate if its shapes fit those of the checkpoint in one of ``orders``."""
    for ordered in orders:
        free = fingerprint.free_shapes(ordered)
        if free is not None and _size_is_whole(fingerprint, free):
            return candidate_of(fingerprint, free, score=0.96, order=ordered.names)
    return None


def fit_inexactly(fingerprint: Fingerprint, shapes: Shapes, own: Shapes) -> ArchitectureMatch | None:
    """Return the architecture as a candidate if all its weights are there, but perhaps for its classifier.

    ``own`` are the architecture's weights as its library builds it, ``shapes`` those of the checkpoint. A classifier of
    another name is accepted if no other layer is surplus. None if another weight is missing, or if a surplus layer is
    inside the network: that is another architecture.
    """
    free = fingerprint.free
    own = {**own, **{name: () for name in free.patterns if name not in own}}  # some are built without a classifier
    missing = [name for name in own if name not in shapes]
    fixed = (name for name in own if name in shapes and name not in free.patterns)
    if any(shapes[name] != own[name] for name in fixed) or not free.fit(shapes, set(free.patterns) - set(missing)):
        return None
    surplus = [name for name in shapes if name not in own]
    head = None
    if missing:
        classifier = missing[0].rpartition(".")[0]
        if not free.classes or {name for name in own if name.startswith(f"{classifier}.")} != set(missing):
            return None
        if free.classes[0].rpartition(".")[0] != classifier:
            return None
        head = _head_in(surplus, shapes, fingerprint, classifier)
        taken = {name.replace(classifier, head.found, 1) for name in missing}
        surplus = [name for name in surplus if name not in taken]
        if head.found and any(is_layer(shapes[name]) for name in surplus):
            return None
    if layers_between(surplus, shapes, own) or not _size_is_whole(fingerprint, shapes):
        return None
    score = 0.97 if head and not head.found else 0.975 if surplus else 0.98
    renamed = head.renamed(shapes) if head else shapes
    return candidate_of(fingerprint, renamed, score=score, head=head, surplus=tuple(surplus))


def _head_in(surplus: Sequence[str], shapes: Shapes, fingerprint: Fingerprint, own: str) -> HeadFit:
    """Return the only layer of ``surplus`` with the shapes of the classifier; an empty name if not exactly one."""
    patterns = {name.rpartition(".")[2]: name for name in fingerprint.free.patterns if name.startswith(f"{own}.")}
    found = []
    for layer in dict.fromkeys(name.rpartition(".")[0] for name in surplus):
        renamed = {own_name: shapes.get(f"{layer}.{suffix}", ()) for suffix, own_name in patterns.items()}
        if fingerprint.free.fit(renamed, patterns.values()) and len({shape[0] for shape in renamed.values()}) == 1:
            found.append(layer)
    return HeadFit(own=own, found=found[0] if len(found) == 1 else "")


def layers_between(surplus: Iterable[str], shapes: Shapes, own: Shapes) -> list[str]:
    """Return the surplus weights of layers inside the network's modules, or at its top level."""
    modules = {name[: dot.start()] for name in own for dot in re.finditer(r"\.", name)}
    return [
        name
        for name in surplus
        if is_layer(shapes[name])
        and ("." not in name or any(name[: dot.start()] in modules for dot in re.finditer(r"\.", name)))
    ]


def _sort_key(
    candidate: ArchitectureMatch, arch_hint: str, compact_file_name: str
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


def ordered_weights(tensors: Mapping[str, Tensor]) -> tuple[OrderedWeights, ...]:
    """Return the weights in the orders to try: as in the file, and grouped by layer.

    A layer's weights are its weight, bias, running mean and running variance. Integer tensors (counters and tables of
    positions) are left out, whatever their names. None where weights are computed from others.
    """
    names = [name for name in weights_only(dict.fromkeys(tensors, ())) if tensors[name].is_floating_point()]
    if len(names) > 10_000 or any(map(PARAMETRIZED.search, names)):  # the largest architecture has 2,683
        return ()
    orders = dict.fromkeys((_layer_by_layer(names), tuple(names)))
    shapes = (tuple(tuple(tensors[name].shape) for name in order) for order in orders)
    return tuple(
        OrderedWeights(order, own, signature_of(by_place(own))) for order, own in zip(orders, shapes, strict=True)
    )


def _layer_by_layer(names: Iterable[str]) -> tuple[str, ...]:
    layers: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        found = _ROLE.match(name)
        layer, rank = ((found[1] or ""), _RANKS[found[2].lower()]) if found else (name, -1)
        layers.setdefault(layer, []).append((rank, name))
    return tuple(name for held in layers.values() for _, name in sorted(held, key=lambda each: each[0]))


def named_by_order(
    module: nn.Module, tensors: Mapping[str, Tensor], order: Sequence[str], *, file_name: str, title: str
) -> dict[str, Tensor]:
    """Return the weights under ``module``'s names for the same places in the order.

    ``order`` lists the names of ``tensors`` in the architecture's order, see :func:`ordered_weights`.

    Raises:
        InvalidCheckpoint: a variance would be negative, so the order is wrong.
    """
    own = [name for name in module.state_dict() if not name.endswith(COMPUTED_SUFFIXES)]
    for name, found in zip(own, order, strict=True):
        if name.endswith(_VARIANCE_SUFFIX) and bool((tensors[found] < 0).any()):
            raise InvalidCheckpoint(
                f"The shapes of {file_name} fit {title} in their order, but {found} would be a variance and holds "
                "negative numbers, so the order is another one. Save the weights under the names of the architecture."
            )
    return {name: tensors[found] for name, found in zip(own, order, strict=True)}
