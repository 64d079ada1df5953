"""Units of weights that are zeroed together, the sets in which they compete, and their importance."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from senseapp.compressions.base import COLUMN, DEPTH, GROUP, INPUT, OUTPUT, ROW, LayerWeight, WeightLayout
from senseapp.compressions.quantization.activations import observe_inputs
from senseapp.compressions.sparsity import SparsityCriterion, SparsityGranularity

Score = Callable[[Tensor, torch.Generator, Tensor | None], Tensor]
"""Importance of each weight, from the float32 weight, (G, O/G, I/G, D, H, W), a generator seeded for its layer, and the
L2 norms of the input feature of each weight, broadcastable to it, where these are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """Importance of weights, in their shape, and the set in which they are compared.

    The score of a larger unit is the mean over it. With ``per_output``, weights are compared within their output
    channel rather than over the layer; ``chooses`` says whether scores depend on the weights.
    """

    score: Score
    per_output: bool = False
    looks_at_inputs: bool = False
    chooses: bool = True


def layer_generator(seed: int, layer: str) -> torch.Generator:
    """Return a generator that depends only on ``seed`` and the layer's name, not on other layers or the run."""
    # torch's CPU generator uses only 32 bits of its seed, so both are hashed into these.
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {layer}".encode()))


def _random(weight: Tensor, generator: torch.Generator, _norms: Tensor | None) -> Tensor:
    # Means over units are exchangeable too, so that units of any size have a random order.
    return torch.rand(weight.shape, generator=generator).to(weight.device)


def _wanda(weight: Tensor, _generator: torch.Generator, norms: Tensor | None) -> Tensor:
    """|W| · ‖x‖₂. Source: Sun et al. 2023, "A Simple and Effective Pruning Approach for LLMs", eq. 1."""
    if norms is None:
        raise ValueError("wanda needs the norms of the layer's input features, got none")
    return weight.abs() * norms


CRITERIA: Mapping[SparsityCriterion, Criterion] = {
    "magnitude": Criterion(score=lambda weight, *_: weight.abs()),
    "squared_magnitude": Criterion(score=lambda weight, *_: weight.square()),
    "random": Criterion(score=_random, chooses=False),
    "wanda": Criterion(score=_wanda, per_output=True, looks_at_inputs=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """A partition of a weight in the form (G, O/G, I/G, D, H, W) of :class:`WeightLayout` into equal units.

    A unit spans ``axes`` whole; along the others, each index is another unit. If ``block_size`` is above 0, so many
    consecutive units along the input axis compete only with each other.
    """

    unit: str
    axes: tuple[int, ...] = ()
    block_size: int = 0

    def units_shape(self, shape: torch.Size) -> torch.Size:
        """Return the split weight's ``shape`` with length 1 along the axes that a unit spans."""
        return torch.Size(1 if axis in self.axes else size for axis, size in enumerate(shape))

    def unit_scores(self, scores: Tensor) -> Tensor:
        """Average ``scores``, one per weight (G, O/G, I/G, D, H, W), over each unit."""
        return scores.mean(dim=self.axes, keepdim=True) if self.axes else scores

    def obstacle(self, shape: torch.Size) -> str:
        """Return why a split weight of ``shape`` cannot be divided into units; empty if it can."""
        if self.block_size and shape[INPUT] % self.block_size:
            return (
                f"{self.unit} sparsity takes weights in fours along the input axis, which must be divisible by four; "
                f"here each output reads {shape[INPUT]} input channel{'s' if shape[INPUT] > 1 else ''}."
            )
        if self.units_shape(shape).numel() == 1:
            return f"The weight is a single {self.unit}, and zeroing it would remove the layer."
        return ""

    def arrange(self, unit_scores: Tensor, *, per_output: bool) -> Tensor:
        """Return the scores of units as (contests, competitors).

        Units compete within their block; else, if ``per_output``, with the units of the same output channel where each
        unit is inside one; else with all units of the layer.
        """
        if self.block_size:
            return unit_scores.movedim(INPUT, -1).reshape(-1, self.block_size)
        if per_output and OUTPUT not in self.axes and INPUT not in self.axes:
            return unit_scores.flatten(0, OUTPUT).flatten(1)
        return unit_scores.reshape(1, -1)

    def arrange_back(self, arranged: Tensor, shape: torch.Size) -> Tensor:
        """Invert :meth:`arrange`: return one entry per unit, broadcastable to a split weight of ``shape``."""
        if self.block_size:
            *others, inputs = (shape[axis] for axis in (GROUP, OUTPUT, DEPTH, ROW, COLUMN, INPUT))
            return arranged.view(*others, inputs).movedim(-1, INPUT)
        return arranged.view(self.units_shape(shape))


GRANULARITIES: Mapping[SparsityGranularity, Granularity] = {
    "weight": Granularity(unit="weight"),
    "kernel": Granularity(unit="kernel", axes=(DEPTH, ROW, COLUMN)),
    "filter": Granularity(unit="filter", axes=(INPUT, DEPTH, ROW, COLUMN)),
    "channel": Granularity(unit="channel", axes=(OUTPUT, DEPTH, ROW, COLUMN)),
    "row": Granularity(unit="row", axes=(COLUMN,)),
    "column": Granularity(unit="column", axes=(ROW,)),
    "2:4": Granularity(unit="2:4", block_size=4),
}


class InputNorms:
    """L2 norms of the input features of a layer; ``squared``: float64 (S, I), S = 3 for attention, or None."""

    def __init__(self, num_kernel_axes: int) -> None:
        self._num_kernel_axes = num_kernel_axes
        self.squared: Tensor | None = None

    def update(self, inputs: tuple[Tensor, ...]) -> None:
        """Add the inputs of one call, each (N, I, ...) before a convolution or (..., I) before a product."""
        rows = torch.stack([self._sum_of_squares(values) for values in inputs])  # (S, I)
        self.squared = rows if self.squared is None else self.squared + rows

    def _sum_of_squares(self, values: Tensor) -> Tensor:
        feature_axis = values.dim() - 1 - self._num_kernel_axes
        axes = [axis for axis in range(values.dim()) if axis != feature_axis]
        norms: Tensor = torch.linalg.vector_norm(values, dim=axes, dtype=torch.float32)
        return norms.cpu().double().square()

    def matched_to(self, layout: WeightLayout, num_outputs: int) -> Tensor:
        """Return the norms, float32 (G, O/G, I/G, 1, 1, 1), as factors of a split weight; ``num_outputs`` is O/G.

        Attention's rows for query, key and value follow one another. ValueError before any input.
        """
        if self.squared is None:
            raise ValueError("no input was seen")
        num_inputs = len(self.squared)
        norms = self.squared.sqrt().float().view(num_inputs, layout.groups, -1).transpose(0, 1)  # (G, S, I/G)
        return norms.repeat_interleave(num_outputs // num_inputs, dim=1)[..., None, None, None]


def gather_input_norms(
    model: nn.Module, weights: Sequence[LayerWeight], batches: Sequence[Tensor]
) -> dict[str, InputNorms]:
    """Return the input norms by layer name, from one pass over ``batches``; layers never called are absent."""
    norms = {weight.profile.name: InputNorms(len(weight.profile.weight_shape) - 2) for weight in weights}

    def watch(weight: LayerWeight, inputs: tuple[Tensor, ...]) -> None:
        norms[weight.profile.name].update(inputs[weight.inputs_read])

    observe_inputs(model, [(weight.module, partial(watch, weight)) for weight in weights], batches)
    return {name: found for name, found in norms.items() if found.squared is not None}
