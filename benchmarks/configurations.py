"""How well whole configurations are predicted from single layers: ``python -m benchmarks.configurations``.

The strongest level of a configuration is drawn at random, and then each layer's own up to that, or none, until there
are a hundred whose network still works: beyond a divergence of 1 nat answers come near to chance, and ranks of those
are noise. (Ranks of all that were drawn stand in brackets.) The KL divergence of the compressed network to the original
is measured, and set beside what is predicted from measurements of single layers on the same images:

- *sum*: the damages of the layers, added up;
- *pairs*: that, and for pairs that were measured together 2 ρ √(dᵢ dⱼ): the interaction of second order (Deng et al.
  2023, "CLADO", eq. 4), ρ found at one level of each. Measured are neighbours, and all pairs of the most harmed layers;
- *usual pair*: that, and for all other pairs the mean ρ of those that were measured;
- *together*: as schedules are predicted, from what each layer alone does to the answers; it needs no further pass (see
  `senseapp/solve/joint.py`).

    python -m benchmarks.configurations [--networks NAME,NAME] [--kinds bits,zeros]
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn

from benchmarks.networks import NETWORKS
from benchmarks.real.network import ARCHITECTURE
from benchmarks.results import write_row
from benchmarks.scans import DEMO, Scan, opened
from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.compressions.base import CompressionRequest, Prepared, WeightCompressor, build_compressor
from senseapp.core.process import become_measuring
from senseapp.descriptions import CompressionConfig
from senseapp.networks.profile import profile_model
from senseapp.solve.problem import manual_schedule

TITLE = "Whole configurations (`python -m benchmarks.configurations`)"
KINDS: dict[str, tuple[CompressionConfig, tuple[float, ...]]] = {
    "bits": (QuantizationConfig(), (8.0, 6.0, 5.0, 4.0, 3.0, 2.0)),
    "zeros": (SparsityConfig(), (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)),
}
_GENTLE_ZEROS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)  # of the real network, where one in thirty of the others works
_CONFIGURATIONS = 100
_BROKEN = 1.0  # nats
_CALIBRATION = 64  # images
_MOST_HARMED = 8
_MODERATE = 0.1  # nats: of this damage or nearest to it, layers are measured in pairs

_COLUMNS = (
    *("network", "levels of", "layers", "images", "drawn", "measured KL: 10 / 50 / 90 %"),
    *("sum", "pairs", "usual pair", "together", "pairs measured"),
)
_HEAD = (
    f"Spearman of the predicted with the measured KL divergence, of {_CONFIGURATIONS} random configurations of each "
    f"network that lose at most {_BROKEN:g} nat (of all that were drawn); see `benchmarks/configurations.py`.",
    "",
    f"| {' | '.join(_COLUMNS)} |",
    f"|{'---|' * len(_COLUMNS)}",
)

Levels = Mapping[str, float]
Layer = tuple[str, float]


@dataclass
class Compressed:
    """One network with some layers compressed, on some images."""

    network: nn.Module
    images: Tensor
    compressor: WeightCompressor
    _prepared: dict[Layer, Prepared] = field(default_factory=dict)

    def log_probabilities(self, levels: Levels) -> Tensor:
        """Return what the network says of each image, (N, classes), with these layers compressed."""
        targets = {target.layer: target for target in self.compressor.targets}
        with ExitStack() as stack:
            for key in levels.items():
                if key not in self._prepared:
                    self._prepared[key] = self.compressor.prepare(targets[key[0]], key[1])
                stack.enter_context(self._prepared[key].active())
            with torch.inference_mode():
                scores = torch.cat([self.network(part.clone()) for part in self.images.split(64)])
        return scores.double().log_softmax(1)


def divergence(original: Tensor, other: Tensor) -> float:
    """Return the mean KL divergence of log-probabilities (N, classes), in nats."""
    return max(0.0, float((original.exp() * (original - other)).sum(1).mean()))


def row_of(name: str, kind: str) -> str:
    """Measure one network and compression; return a row of the table."""
    model, known = opened(name)
    config, levels = KINDS[kind]
    if (name, kind) == (ARCHITECTURE, "zeros"):
        levels = _GENTLE_ZEROS
    images = known.curves.batch(0, len(known.curves))
    layers = profile_model(model.module, images[:1]).layers
    request = CompressionRequest(model=model.module, layers=layers, calibration=(images[:_CALIBRATION],))
    compressed = Compressed(model.module, images, cast(WeightCompressor, build_compressor(config, request)))
    original = compressed.log_probabilities({})
    names = [target.layer for target in compressed.compressor.targets]
    result = Scan(network=name, config=config, levels=levels, mode="exact").evaluator().result
    damage = {found.key: change.delta for found in result.measurements if (change := found.change("kl"))}
    pairs = dict(interactions(compressed, original, names, levels, damage))
    mean = float(np.mean(list(pairs.values()))) if pairs else 0.0
    usual = {frozenset(pair): pairs.get(frozenset(pair), mean) for pair in itertools.combinations(names, 2)}
    drawn, measured = _measured(compressed, original, names, levels)
    owns = [{layer: damage[layer, level] for layer, level in each.items()} for each in drawn]
    predicted = {
        "sum": [sum(own.values()) for own in owns],
        "pairs": [damage_together(own, pairs) for own in owns],
        "usual pair": [damage_together(own, usual) for own in owns],
        "together": [manual_schedule(result, each, metric="kl").predicted_damage for each in drawn],
    }
    works = np.array(measured) <= _BROKEN
    ranks = [
        f"{_spearman(found, measured, works):.3f} ({_spearman(found, measured):.3f})" for found in predicted.values()
    ]
    low, middle, high = np.percentile(np.array(measured)[works], [10, 50, 90])
    spread = f"{low:.2g} / {middle:.2g} / {high:.2g}"
    cells = [model.title, kind, str(len(names)), str(len(images)), str(len(drawn)), spread, *ranks, str(len(pairs))]
    return f"| {' | '.join(cells)} |"


def _measured(
    compressed: Compressed, original: Tensor, names: Sequence[str], levels: Sequence[float]
) -> tuple[list[Levels], list[float]]:
    """Return configurations and their divergence, drawn until enough of them work."""
    generator = np.random.default_rng(0)
    drawn: list[Levels] = []
    measured: list[float] = []
    while sum(found <= _BROKEN for found in measured) < _CONFIGURATIONS:
        drawn.append(_drawn(names, levels, generator))
        measured.append(divergence(original, compressed.log_probabilities(drawn[-1])))
    return drawn, measured


def _spearman(predicted: Sequence[float], measured: Sequence[float], chosen: NDArray[np.bool_] | None = None) -> float:
    pairs = np.array([predicted, measured])
    return float(spearmanr(*(pairs if chosen is None else pairs[:, chosen])).statistic)


def _drawn(names: Sequence[str], levels: Sequence[float], generator: np.random.Generator) -> Levels:
    """Return the levels of one configuration, of layers that have one."""
    strongest = int(generator.integers(1, len(levels) + 1))
    places = generator.integers(0, strongest + 1, len(names))
    return {layer: levels[place - 1] for layer, place in zip(names, places, strict=True) if place}


def interactions(
    compressed: Compressed,
    original: Tensor,
    names: Sequence[str],
    levels: Sequence[float],
    damage: Mapping[Layer, float],
) -> Iterator[tuple[frozenset[str], float]]:
    """Yield ρ of each pair that is measured, from -1 to 1: what two layers do together beyond the sum."""
    worst = sorted(names, key=lambda layer: -sum(damage[layer, level] for level in levels))[:_MOST_HARMED]
    chosen = dict.fromkeys(map(frozenset, [*itertools.pairwise(names), *itertools.combinations(worst, 2)]))
    level_of = {
        layer: min(levels, key=lambda level: abs(math.log(max(damage[layer, level], 1e-9) / _MODERATE)))
        for layer in names
    }
    for pair in chosen:
        first, second = (damage[layer, level_of[layer]] for layer in pair)
        if first > 0 and second > 0:
            both = divergence(original, compressed.log_probabilities({layer: level_of[layer] for layer in pair}))
            yield pair, float(np.clip((both - first - second) / (2 * math.sqrt(first * second)), -1, 1))


def damage_together(own: Mapping[str, float], pairs: Mapping[frozenset[str], float]) -> float:
    """Return the damages of layers, added up, and what their ``pairs`` do beyond that."""
    together = (2 * rho * math.sqrt(math.prod(own.get(layer, 0.0) for layer in pair)) for pair, rho in pairs.items())
    return max(0.0, sum(own.values()) + sum(together))


def main() -> None:
    """Print each row, and write it in place of an older one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.configurations", description=__doc__)
    parser.add_argument("--networks", default=",".join((DEMO, *NETWORKS, ARCHITECTURE)), help="comma-separated")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("\n".join(_HEAD), flush=True)
    for name in options.networks.split(","):
        for kind in options.kinds.split(","):
            row = row_of(name, kind)
            print(row, flush=True)
            write_row(TITLE, _HEAD, row, named_by=2)


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
