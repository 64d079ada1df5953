"""Importance of each weight; the least important go first."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.compressions.sparsity import SparsityCriterion


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreInputs:
    """What a criterion may look at.

    Attributes:
        weight: float32 (G, O/G, I/G, D, H, W).
        generator: on the CPU, seeded for this layer.
        input_norms: L2 norm of the input feature that each weight multiplies, of a shape that broadcasts to
            ``weight``; None unless the criterion asks for it.
    """

    weight: Tensor
    generator: torch.Generator
    input_norms: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """How important weights are, and which are compared.

    Attributes:
        score: importance of each weight, in the weight's shape; that of a larger unit is the mean over it.
        per_output: whether weights are compared within their output channel rather than over the layer.
        looks_at_inputs: whether ``input_norms`` are needed.
    """

    score: Callable[[ScoreInputs], Tensor]
    per_output: bool = False
    looks_at_inputs: bool = False


def layer_generator(seed: int, layer: str) -> torch.Generator:
    """Return a generator that depends on ``seed`` and the layer's name only, not on other layers or on the run."""
    # torch's CPU generator uses 32 bits of its seed only, so both are hashed into them.
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {layer}".encode()))


def _magnitude(inputs: ScoreInputs) -> Tensor:
    return inputs.weight.abs()


def _squared_magnitude(inputs: ScoreInputs) -> Tensor:
    return inputs.weight.square()


def _random(inputs: ScoreInputs) -> Tensor:
    # Means over units are exchangeable too, so that units of any size go in random order.
    return torch.rand(inputs.weight.shape, generator=inputs.generator).to(inputs.weight.device)


def _wanda(inputs: ScoreInputs) -> Tensor:
    """|W| · ‖x‖₂. Source: Sun et al. 2023, "A Simple and Effective Pruning Approach for LLMs", eq. 1."""
    if inputs.input_norms is None:
        raise ValueError("wanda needs the norms of the layer's input features, got none")
    return inputs.weight.abs() * inputs.input_norms


CRITERIA: Mapping[SparsityCriterion, Criterion] = {
    "magnitude": Criterion(score=_magnitude),
    "squared_magnitude": Criterion(score=_squared_magnitude),
    "random": Criterion(score=_random),
    "wanda": Criterion(score=_wanda, per_output=True, looks_at_inputs=True),
}
