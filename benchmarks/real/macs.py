"""Multiply-accumulates of layers and of whole networks, beside those of ``torch.utils.flop_counter``.

Architectures of timm and torchvision, spread over their families, on torch's ``meta`` device, which does no arithmetic.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.results import Row
from senseapp.networks.profile import compressible_weights, profile_model
from senseapp.networks.sources.catalogue import CatalogueEntry, load_catalogue
from senseapp.networks.sources.libraries import build_on_meta
from senseapp.records.profile import ModelProfile

_ARCHITECTURES = 200
_LARGEST_PARAMS = 120_000_000  # larger ones repeat the blocks of smaller ones, more often
_SEED = 0

_PRODUCTS = frozenset({torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.convolution})
"""Operations with a weight; the others multiply two activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MacComparison:
    """One architecture.

    Attributes:
        layers: by layer, or by the module that calls several layers' weights itself: (senseapp, flop_counter).
        whole: the same of all operations.
    """

    title: str
    layers: dict[str, tuple[int, int]]
    whole: tuple[int, int]

    @property
    def ratios(self) -> list[float]:
        """Senseapp's counts over flop_counter's, of every layer that multiplies and of the whole."""
        pairs = [*self.layers.values(), self.whole]
        return [found / wanted if wanted else float("inf") for found, wanted in pairs if found or wanted]

    @property
    def worst(self) -> float:
        """The ratio farthest from 1."""
        return max(self.ratios, key=lambda ratio: abs(ratio - 1))


def compare_macs(title: str, module: nn.Module, input_shape: tuple[int, int, int]) -> MacComparison:
    """Count one image through ``module``, which is on the ``meta`` device, both ways."""
    image = torch.empty((1, *input_shape), device="meta")
    module.requires_grad_(False)  # the counter hooks what has gradients, and trips over tokens that are parameters
    counter = FlopCounterMode(display=False)
    torch.backends.mha.set_fastpath_enabled(False)  # the fused kernel of nn.MultiheadAttention has no shape rule
    profile = profile_model(module, image)
    with torch.no_grad(), counter:
        module(image)
    counts = _by_module(counter, type(module).__name__)
    return MacComparison(
        title=title, layers=_layers(module, profile, counts), whole=(profile.macs, sum(counts[""].values()))
    )


def _by_module(counter: FlopCounterMode, root: str) -> dict[str, dict[object, int]]:
    """Return half of the counted operations, by dotted name of the module and by kind of operation."""
    counts: dict[str, dict[object, int]] = defaultdict(dict)
    for name, kinds in counter.get_flop_counts().items():
        if name != "Global":
            counts[name.removeprefix(root).removeprefix(".")] = {kind: count // 2 for kind, count in kinds.items()}
    return counts


def _layers(
    module: nn.Module, profile: ModelProfile, counts: dict[str, dict[object, int]]
) -> dict[str, tuple[int, int]]:
    """Pair the counts of layers; those whose weight other code multiplies, together with all that is there."""
    weights: dict[int, str] = {}
    found: dict[str, int] = defaultdict(int)
    for name, owner, attribute in compressible_weights(module):
        first = weights.setdefault(id(getattr(owner, attribute)), name)  # a weight that is shared counts once
        place = first
        while place and place not in counts:
            place = place.rpartition(".")[0]
        found[place] += profile.layer(name).macs
    layers = {name for name, owner, _ in compressible_weights(module) if not isinstance(owner, nn.MultiheadAttention)}
    return {
        place: (macs, _own(place, counts, all_kinds=place in layers))
        for place, macs in found.items()
        if macs or place in layers  # of layers that never run, neither counts anything
    }


def _own(place: str, counts: dict[str, dict[object, int]], *, all_kinds: bool) -> int:
    """Return the products in a module's own code, not in that of its children; only those with a weight, or all."""
    prefix = f"{place}." if place else ""
    children = [name for name in counts if name.startswith(prefix) and name and "." not in name[len(prefix) :]]
    kinds = counts[place] if all_kinds else _PRODUCTS
    return sum(counts[place].get(kind, 0) - sum(counts[child].get(kind, 0) for child in children) for kind in kinds)


def architectures(number: int, seed: int = _SEED) -> list[CatalogueEntry]:
    """Return ``number`` architectures, drawn family by family: the part of the name before the first digit or dash."""
    entries = [entry for entry in load_catalogue() if entry.num_classes >= 2 and entry.num_params <= _LARGEST_PARAMS]
    random.Random(seed).shuffle(entries)
    turns: dict[str, int] = defaultdict(int)
    order = []
    for entry in entries:
        family = f"{entry.library}/{entry.name.rstrip('0123456789').split('_')[0].rstrip('0123456789')}"
        order.append((turns[family], entry))
        turns[family] += 1
    order.sort(key=lambda pair: pair[0])
    return [entry for _, entry in order[:number]]


def rows() -> Iterator[Row]:
    """Compare two hundred architectures."""
    compared = [
        compare_macs(entry.title, build_on_meta(entry.library, entry.name), entry.input_shape)
        for entry in architectures(_ARCHITECTURES)
    ]
    worst = max(compared, key=lambda one: abs(one.worst - 1))
    differing = [one.title for one in compared if one.worst != 1]
    count = sum(len(one.layers) for one in compared)
    yield Row(
        what=f"MACs of listed layers, and of the whole, over `flop_counter`'s, {len(compared)} architectures",
        wanted="1.00 for all",
        found=f"{worst.worst:.4f} at worst ({worst.title}); {len(differing)} differ; {count:,} layers",
        holds=not differing,
    )
