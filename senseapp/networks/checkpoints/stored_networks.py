"""The networks in a checkpoint: prefixes of names below which all weights of an architecture are found.

All names of a file form one tree (``state_dict.module.conv1.weight``). A prefix below which the names and shapes of an
architecture are all found holds a network. So no list of names of dicts and wrappers is needed, and two networks in one
file (student and teacher, plain and averaged weights) are found as two prefixes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.architectures import (
    Architecture,
    Shapes,
    architecture_named,
    is_layer,
    load_index,
    shapes_of,
    weights_only,
)
from senseapp.networks.checkpoints.checkpoint import Checkpoint
from senseapp.networks.checkpoints.model_folder import ModelConfig
from senseapp.networks.checkpoints.recognise import (
    ArchitectureMatch,
    candidate_of,
    fit_by_names,
    fit_by_order,
    ordered_weights,
    ranked,
)

_MOST_PREFIXES = 5_000  # that hold weights enough for a network; a hostile file could have one for each weight
_AT_THE_TOP = "top level"
_WRAPPERS = ("_orig_mod", "module", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What compilers, data parallelism and checkpointing put around modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNetwork:
    """One network in a file.

    Attributes:
        prefix: common prefix of its weights' names in the file, with the dot at its end.
        tensors: its weights and all other tensors with the prefix, by the rest of the name.
        candidates: architectures that it may belong to, the likeliest first.
        beside: short names of other content of the file.
        config: the ``config.json`` beside the weights, where it describes exactly this network.
    """

    prefix: str
    tensors: Mapping[str, Tensor]
    candidates: tuple[ArchitectureMatch, ...] = ()
    beside: tuple[str, ...] = ()
    config: ModelConfig | None = None

    @property
    def title(self) -> str:
        """Display name: its prefix."""
        return self.prefix.rstrip(".") or _AT_THE_TOP

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return shapes_of(self.tensors)

    @property
    def fits(self) -> bool:
        """Whether it has all weights of an architecture."""
        return bool(self.candidates) and self.candidates[0].fits


def find_networks(checkpoint: Checkpoint, only: Architecture | None = None) -> tuple[StoredNetwork, ...]:
    """Return the networks in a file, in its order; ``only`` is the architecture to look for, None: all.

    The steps, of which the first that finds anything is the last:

    1. names: all weights of an architecture below one prefix, perhaps beside others, or but for its classifier, which
       may have another name or stand outside of the prefix;
    2. names without the wrappers inside of a network;
    3. order and shapes alone, under any names;
    4. what comes closest, as the one network, so that a message can say what differs.

    Of networks found by names, those without their classifier are left out where another one is whole.
    """
    search = _NetworkSearch(checkpoint, only)
    found = search.by_names() or search.by_names_without_wrappers() or search.by_order() or [search.closest()]
    return tuple([network for network in found if network.fits] or found)


def choose_network(networks: Sequence[StoredNetwork], wanted: str, *, file_name: str) -> StoredNetwork:
    """Return the network that ``wanted`` names, or the first.

    A name is the title of a network, or a part of the title that no other has.

    Raises InvalidCheckpoint if no network has this name, or several have.
    """
    if not wanted:
        return networks[0]
    alike = [item for item in networks if wanted.lower() in item.title.lower()]
    exact = [item for item in networks if item.title == wanted] or alike
    if len(exact) != 1:
        titles = ", ".join(item.title for item in alike or networks)
        what = f"several networks whose name holds {wanted!r}" if alike else f"no network named {wanted!r}"
        raise InvalidCheckpoint(f"{file_name} holds {what}. Choose one of: {titles}.")
    return exact[0]


class _NetworkSearch:
    """Searches for networks below each prefix of a file's names."""

    def __init__(self, checkpoint: Checkpoint, only: Architecture | None) -> None:
        self._checkpoint = checkpoint
        self._only = only
        self._prefixes = _prefixes(checkpoint.tensors)
        self._closest = (-1, "")
        self._alike: dict[str, list[tuple[Architecture, float]]] = {}

    def by_names(self) -> list[StoredNetwork]:
        """Return the networks whose weights have the names of an architecture, but perhaps for the classifier."""
        found = []
        for prefix, names in self._prefixes.items():
            shapes = {name.removeprefix(prefix): self._shape(name) for name in names}
            if fits := _best_fits(self._plausible(prefix, shapes), shapes):
                found.append(self._with_outer_head(prefix, fits) or self._network(prefix, fits))
        return found

    def by_names_without_wrappers(self) -> list[StoredNetwork]:
        """Return what :meth:`by_names` finds without wrappers inside a network (``layer1._orig_mod.0.weight``)."""
        named = self._checkpoint.tensors
        renamed = {".".join(part for part in name.split(".") if part not in _WRAPPERS): named[name] for name in named}
        if renamed.keys() == named.keys() or len(renamed) < len(named):
            return []
        return _NetworkSearch(replace(self._checkpoint, tensors=renamed), self._only).by_names()

    def by_order(self) -> list[StoredNetwork]:
        """Return the networks whose weights have the order and shapes of an architecture, under other names."""
        found: dict[tuple[str, ...], StoredNetwork] = {}
        known = (self._only,) if self._only else load_index().architectures
        if not self._checkpoint.keeps_order:
            return []
        for prefix, names in self._prefixes.items():
            fitting = [item for item in known if len(item.places) <= len(names)]
            orders = ordered_weights(self._tensors(prefix)) if fitting else ()
            fits = [fit for item in fitting if (fit := fit_by_order(item, orders)) is not None]
            if fits:
                found[tuple(names)] = self._network(prefix, fits)
        return list(found.values())

    def closest(self) -> StoredNetwork:
        """Return the weights below the prefix that shares most with an architecture."""
        shared, prefix = self._closest
        if shared <= 0:
            prefix = max(self._prefixes, key=lambda known: (len(self._prefixes[known]), len(known)))
        return self._network(prefix, ())

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._checkpoint.tensors[name].shape)

    def _tensors(self, prefix: str) -> dict[str, Tensor]:
        tensors = self._checkpoint.tensors
        return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}

    def _plausible(self, prefix: str, shapes: Shapes) -> list[Architecture]:
        """Return the architectures that may have all their fixed weights below ``prefix``, the largest first."""
        known, owners = load_index().architectures, _owners()
        places = [owners.places[weight] for weight in shapes.items() if weight in owners.places]
        shared = owners.matrix[places].sum(axis=0)
        if self._only is not None:
            shared = np.where([item is self._only for item in known], shared, 0)
        self._closest = max(self._closest, (int(shared.max()), prefix), key=lambda item: item[0])
        # the Jaccard index, below the scores of all that fit
        alike = 0.95 * shared / (len(shapes) + owners.sizes - shared).clip(1)
        likeliest = np.argsort(-alike, kind="stable")[:40]  # to be ranked where none fits
        self._alike[prefix] = [(known[at], round(float(alike[at]), 4)) for at in likeliest if shared[at]]
        found = [known[at] for at in np.nonzero((shared >= owners.fixed) & (shared > 0))[0]]
        return sorted(found, key=lambda item: -len(item.places))

    def _network(
        self, prefix: str, fits: Sequence[ArchitectureMatch], *, outer: Mapping[str, Tensor] | None = None
    ) -> StoredNetwork:
        """Return the network below ``prefix``, with the weights ``outer`` that stand outside of it."""
        tensors, beside = self._tensors(prefix) | dict(outer or {}), self._beside(prefix)
        shapes = weights_only(shapes_of(tensors))
        done = {(fit.library, fit.name) for fit in fits}
        alike = (each for each in self._alike.get(prefix, ()) if (each[0].library, each[0].name) not in done)
        candidates = ranked(
            [*fits, *(candidate_of(item, shapes, score=score) for item, score in alike)],
            arch_hint=self._checkpoint.arch_hint,
            file_name=self._checkpoint.file_name.rpartition(".")[0],
        )
        if outer:
            beside = tuple(name for name in beside if not any(each.startswith(f"{name}.") for each in outer))
        return StoredNetwork(prefix=prefix, tensors=tensors, candidates=candidates, beside=beside)

    def _beside(self, prefix: str) -> tuple[str, ...]:
        """Return the names of tensors outside ``prefix``, each up to the first part that differs from it."""
        names: dict[str, None] = {}
        for name in self._checkpoint.tensors:
            if not name.startswith(prefix):
                parts, own = name.split("."), prefix.split(".")
                parted = next((i for i, (a, b) in enumerate(zip(parts, own, strict=False)) if a != b), 0)
                names[".".join(parts[: parted + 1])] = None
        return tuple(names)

    def _with_outer_head(self, prefix: str, fits: Sequence[ArchitectureMatch]) -> StoredNetwork | None:
        """Return the network with a classifier that stands outside its prefix, where it is the only layer there."""
        if any(fit.fits for fit in fits) or not prefix:
            return None
        outer = {name: self._checkpoint.tensors[name] for name in self._outside(prefix)}
        weights = weights_only(shapes_of(self._tensors(prefix) | outer))
        fitting = _best_fits([item for fit in fits if (item := architecture_named(fit.library, fit.name))], weights)
        return self._network(prefix, fitting, outer=outer) if any(fit.fits for fit in fitting) else None

    def _outside(self, prefix: str) -> list[str]:
        """Return the names at the nearest level around ``prefix`` that has layers outside of it."""
        around = prefix
        while around:
            around = around.rstrip(".").rpartition(".")[0]
            around = f"{around}." if around else ""
            others = [name for name in self._prefixes.get(around, []) if not name.startswith(prefix)]
            if any(is_layer(self._shape(name)) for name in others):
                return others
        return []


def _prefixes(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return the names by prefix, with at least the size of the smallest architecture; at most the fullest prefixes."""
    fewest = min(_owners().sizes) - 2  # a classifier may be missing
    below = defaultdict[str, list[str]](list, {"": []})
    for name in weights_only(dict.fromkeys(tensors, ())):
        modules = name.split(".")[:-1][:12]  # they lie some ten levels deep with their wrappers
        for prefix in accumulate(modules, lambda outer, module: f"{outer}{module}.", initial=""):
            below[prefix].append(name)
    known = {prefix: names for prefix, names in below.items() if len(names) >= fewest or not prefix}
    if len(known) > _MOST_PREFIXES:
        known = dict(sorted(known.items(), key=lambda item: -len(item[1]))[:_MOST_PREFIXES])
    return known


def _best_fits(plausible: Sequence[Architecture], shapes: Shapes) -> list[ArchitectureMatch]:
    """Return the architectures that fit exactly, else the first that fits otherwise, and its twins."""
    fits = [(item, fit) for item in plausible if (fit := fit_by_names(item, shapes)) is not None]
    exact = [fit for _, fit in fits if fit.exact]
    return exact or [fit for item, fit in fits if item.fixed == fits[0][0].fixed]


class _Owners(NamedTuple):
    """Which architectures have which weights of the index: (weights, architectures).

    ``places`` are those of the weights; ``sizes`` and ``fixed`` count all weights and those of fixed shape of each
    architecture.
    """

    places: dict[tuple[str, tuple[int, ...]], int]
    matrix: csr_array
    sizes: npt.NDArray[np.intp]
    fixed: npt.NDArray[np.intp]


@cache
def _owners() -> _Owners:
    weights, known = load_index()
    sizes = np.array([len(item.places) for item in known])
    entries = np.concatenate([item.places for item in known]), np.repeat(np.arange(len(known)), sizes)
    return _Owners(
        places={weight: place for place, weight in enumerate(weights)},
        matrix=csr_array((np.ones(len(entries[0]), np.intp), entries), shape=(len(weights), len(known))),
        sizes=sizes,
        fixed=sizes - [len(item.free.patterns) for item in known],
    )
