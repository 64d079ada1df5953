"""The cases of ``make bench-schedule``: what is compressed how far, and what must be left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.networks import NETWORKS
from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.descriptions import BudgetKind, CompressionConfig

SPARSE = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
PRUNED = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
BITS = (8.0, 6.0, 5.0, 4.0, 3.0, 2.0)


@dataclass(frozen=True)
class Demand:
    """Most top-1 that may be lost without and with repair; enough gain over uniform excuses any loss."""

    plain: float | None = None
    repaired: float | None = None
    over_uniform: float | None = None

    def __str__(self) -> str:
        cells = [] if self.over_uniform is None else [f"uniform + {self.over_uniform:g}, or"]
        cells += [f"−{self.plain:g}"] if self.plain is not None else []
        cells += [f"repaired −{self.repaired:g}"] if self.repaired is not None else []
        return " ".join(cells) or "only never worse"


@dataclass(frozen=True)
class Case:
    network: str
    config: CompressionConfig
    levels: tuple[float, ...]
    kind: BudgetKind
    target: float
    demand: Demand

    def __str__(self) -> str:
        what = {"params": "zeros", "bits": "bits on average", "macs": "of the MACs, pruned"}[self.kind]
        size = f"{self.target:g}" if self.kind == "bits" else f"{100 * self.target:g} %"
        return f"{NETWORKS[self.network].title}, {size} {what}"


def cases(network: str, sparsities: dict[float, Demand]) -> Iterator[Case]:
    for target, demand in sparsities.items():
        yield Case(network, SparsityConfig(), SPARSE, "params", target, demand)
    yield Case(network, QuantizationConfig(), BITS, "bits", 4.0, Demand(plain=0.01, repaired=0.01))
    excused = Demand(plain=0.01, repaired=0.01, over_uniform=0.1)
    yield Case(network, PruningConfig(), PRUNED, "macs", 0.5, excused)


CASES = (
    *cases("resnet", {0.8: Demand(plain=0.03, repaired=0.01), 0.95: Demand(repaired=0.02)}),
    *cases("mobilenet", {0.7: Demand(repaired=0.02)}),
    *cases("vit", {0.7: Demand()}),
)
