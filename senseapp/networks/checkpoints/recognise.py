"""Recognition of a network's architecture by names and shapes of its weights, or by order and shapes alone.

Order and shapes serve checkpoints with unknown names, such as those converted from another framework. Exchanged
neighbours of equal shape would not be detected, so such a match is a guess that the accuracy of the uncompressed
network confirms or refutes. Only files that ``torch.save`` wrote are matched: writers of safetensors sort weights by
name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.architectures import (
    Architecture,
    BuiltWith,
    FreeDimensions,
    Shapes,
    architecture_named,
    is_layer,
    weights_only,
)
from senseapp.networks.sources.catalogue import find_entry

if TYPE_CHECKING:
    from torch import Tensor

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


def candidate_of(architecture: Architecture, shapes: Shapes, **fit: Any) -> ArchitectureMatch:
    """Return an architecture as a candidate, with the sizes that ``shapes`` have under its names.

    ``fit`` are further fields of the candidate.
    """
    sizes = asdict(architecture.free.read_off(shapes))
    return ArchitectureMatch(library=architecture.library, name=architecture.name, **sizes, **fit)


def _size_is_whole(architecture: Architecture, shapes: Shapes) -> bool:
    """Return whether the shapes give an image size, where they depend on one."""
    return (architecture.free.read_off(shapes).img_size is None) == (architecture.free.size is None)


def fit_by_order(architecture: Architecture, orders: Sequence[Shapes]) -> ArchitectureMatch | None:
    """Return the architecture as a candidate if its shapes fit those of the checkpoint in one of ``orders``."""
    for order in orders:
        if len(order) != len(architecture.places):
            continue
        placed = dict(zip(architecture.shapes, order.values(), strict=True))
        fits = architecture.fixed.items() <= placed.items() and architecture.free.fit(placed)
        if fits and _size_is_whole(architecture, placed):
            return candidate_of(architecture, placed, score=0.96, order=tuple(order))
    return None


def fit_by_names(architecture: Architecture, shapes: Shapes) -> ArchitectureMatch | None:
    """Return the architecture as a candidate if all its weights are in ``shapes``, but perhaps for its classifier.

    A classifier of another name is accepted if no other layer is surplus. None if another weight is missing, or if a
    surplus layer is inside the network: that is another architecture.
    """
    free, fixed = architecture.free, architecture.fixed
    missing = [name for name in free.patterns if name not in shapes]
    if not (fixed.items() <= shapes.items() and free.fit(shapes, free.patterns.keys() - missing)):
        return None
    surplus = [name for name in shapes if name not in fixed and name not in free.patterns]
    head = None
    if missing:
        classifier = missing[0].rpartition(".")[0]
        if not free.classes or free.classes[0].rpartition(".")[0] != classifier:
            return None
        if {name for name in (*fixed, *free.patterns) if name.startswith(f"{classifier}.")} != set(missing):
            return None
        head = _head_in(surplus, shapes, free, classifier)
        taken = {name.replace(classifier, head.found, 1) for name in missing}
        surplus = [name for name in surplus if name not in taken]
        if head.found and any(is_layer(shapes[name]) for name in surplus):
            return None
    if _layers_between(surplus, shapes, (*fixed, *free.patterns)) or not _size_is_whole(architecture, shapes):
        return None
    score = 0.97 if head and not head.found else 0.975 if surplus else 0.98
    if exact := not (head or surplus):
        score = 1.0 if free.read_off(shapes).img_size in (None, architecture.img_size) else 0.99
    renamed = head.renamed(shapes) if head else shapes
    return candidate_of(architecture, renamed, exact=exact, score=score, head=head, surplus=tuple(surplus))


def _head_in(surplus: Sequence[str], shapes: Shapes, free: FreeDimensions, own: str) -> HeadFit:
    """Return the only layer of ``surplus`` with the shapes of the classifier; an empty name if not exactly one."""
    patterns = {name.rpartition(".")[2]: name for name in free.patterns if name.startswith(f"{own}.")}
    found = []
    for layer in dict.fromkeys(name.rpartition(".")[0] for name in surplus):
        renamed = {own_name: shapes.get(f"{layer}.{suffix}", ()) for suffix, own_name in patterns.items()}
        if free.fit(renamed, patterns.values()) and len({shape[0] for shape in renamed.values()}) == 1:
            found.append(layer)
    return HeadFit(own=own, found=found[0] if len(found) == 1 else "")


def _layers_between(surplus: Iterable[str], shapes: Shapes, own: Iterable[str]) -> list[str]:
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


def ordered_weights(tensors: Mapping[str, Tensor]) -> tuple[Shapes, ...]:
    """Return the shapes of the weights in the orders to try: as in the file, and grouped by layer.

    A layer's weights are its weight, bias, running mean and running variance. Integer tensors (counters and tables of
    positions) are left out, whatever their names. None where weights are computed from others.
    """
    names = [name for name in weights_only(dict.fromkeys(tensors, ())) if tensors[name].is_floating_point()]
    if len(names) > 10_000 or any(map(PARAMETRIZED.search, names)):  # the largest architecture has 2,683
        return ()
    orders = dict.fromkeys((_layer_by_layer(names), tuple(names)))
    return tuple({name: tuple(tensors[name].shape) for name in order} for order in orders)


def _layer_by_layer(names: Iterable[str]) -> tuple[str, ...]:
    layers: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        found = _ROLE.match(name)
        layer, rank = ((found[1] or ""), _RANKS[found[2].lower()]) if found else (name, -1)
        layers.setdefault(layer, []).append((rank, name))
    return tuple(name for held in layers.values() for _, name in sorted(held, key=lambda each: each[0]))


def named_by_order(match: ArchitectureMatch, tensors: Mapping[str, Tensor], *, file_name: str) -> dict[str, Tensor]:
    """Return the weights in the order of ``match`` under the names of its architecture.

    Raises InvalidCheckpoint if a variance would be negative, so the order is wrong.
    """
    architecture = architecture_named(match.library, match.name)
    named = dict(zip(architecture.shapes if architecture else (), match.order, strict=True))
    for name, found in named.items():
        if name.endswith(_VARIANCE_SUFFIX) and bool((tensors[found] < 0).any()):
            raise InvalidCheckpoint(
                f"The shapes of {file_name} fit {match.title} in their order, but {found} would be a variance and "
                "holds negative numbers, so the order is another one. Save the weights under the architecture's names."
            )
    return {name: tensors[found] for name, found in named.items()}
