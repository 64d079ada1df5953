"""Sparsity: the least important units of one layer's weight become zero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.compressions import SparsityConfig, base
from senseapp.compressions.sparsity import criteria
from senseapp.core.errors import InvalidDataset, MeasurementFailed
from senseapp.descriptions.levels import whole_units
from senseapp.networks.profile import acting_zero_share


class Ranking:
    """Units that compete within contests, and the least important of them in any number.

    Each contest loses the same number of units, or one more for the contests whose next unit scores least. So any
    number of units can be zeroed exactly, and a larger number includes the zeros of a smaller one. Ties are broken by
    position; NaN scores count as the most important.
    """

    def __init__(self, scores: Tensor) -> None:
        """Set the ``scores``, float32 (contests, competitors)."""
        self._scores = scores.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        self.num_units = scores.numel()

    def kept(self, num_lost: int) -> Tensor:
        """Return bool (contests, competitors): all but the ``num_lost`` least important, fewer than ``num_units``."""
        each, extra = divmod(num_lost, len(self._scores))
        quotas = torch.full((len(self._scores), 1), each, device=self._scores.device)
        threshold = self._smallest(max(each, 1))
        if extra:
            following = self._smallest(each + 1)
            more = following[:, 0].argsort(stable=True)[:extra]
            quotas[more] += 1
            threshold = threshold.index_put((more,), following[more])
        kept = self._scores > threshold
        if int(kept.count_nonzero()) == self.num_units - num_lost:
            return kept  # counting per contest takes as long as all of the above
        spared = self._scores.shape[1] - quotas - kept.sum(dim=1, keepdim=True)  # of those at the threshold
        tied = self._scores == threshold
        return kept | (tied & (tied.cumsum(dim=1) > tied.sum(dim=1, keepdim=True) - spared))

    def _smallest(self, place: int) -> Tensor:
        """Return the score of each contest that is the ``place``-th smallest, from 1 on: (contests, 1)."""
        return self._scores.kthvalue(place, dim=1, keepdim=True).values


class SparsityCompressor(base.WeightCompressor):
    """A :class:`~senseapp.compressions.base.Compressor` that zeroes units of a weight.

    The model's own weights must not change during its lifetime: importances are sorted once for the current layer and
    used for all its levels.
    """

    def __init__(self, config: SparsityConfig, request: base.CompressionRequest) -> None:
        self._usual_granularity, self._spanned = criteria.GRANULARITIES[config.granularity], request.spanned
        self._criterion, self._own_score = criteria.CRITERIA[config.criterion], request.score
        self._seed, self._model = request.seed, request.model
        self._weights, self._reasons = base.find_weights(request.model, request.layers)
        self._leave_out_indivisible()
        self._norms = self._gather_norms(request)
        self.not_applicable: Mapping[str, str] = self._reasons
        self.targets: Sequence[base.Target] = tuple(weight.target for weight in self._weights.values())
        self._latest: _Ranked | None = None

    def _leave_out(self, layer: str, reason: str) -> None:
        del self._weights[layer]
        self._reasons[layer] = reason

    def _leave_out_indivisible(self) -> None:
        for layer, weight in list(self._weights.items()):
            shape = weight.layout.split(torch.empty(weight.profile.weight_shape, device="meta")).shape
            if reason := self._granularity(weight).obstacle(shape):
                self._leave_out(layer, reason)

    def _granularity(self, weight: base.LayerWeight) -> criteria.Granularity:
        axes = self._spanned(weight.profile)
        return self._usual_granularity if axes is None else criteria.Granularity(unit="unit", axes=axes)

    def _gather_norms(self, request: base.CompressionRequest) -> dict[str, criteria.InputNorms]:
        if not self._criterion.looks_at_inputs:
            return {}
        if not request.calibration:
            raise InvalidDataset(
                "The wanda criterion weighs weights by what flows through them and needs at least one batch of "
                "calibration images, got none. Add images or choose the magnitude criterion."
            )
        norms = criteria.gather_input_norms(request.model, tuple(self._weights.values()), request.calibration)
        for layer in [layer for layer in self._weights if layer not in norms]:
            self._leave_out(layer, "The input of this layer cannot be observed: its weight is read without a call.")
        return norms

    def prepare(self, target: base.Target, level: float) -> base.Prepared:
        """Zero floor(``level`` · n) of the n units of ``target``; MeasurementFailed where that is none."""
        weight = self._weights[target.layer]
        with base.ordinary_tensors():
            ranked, kept = self._ranked(weight), self._kept(weight, level)
            num_zeros = kept.numel() - int((kept & (ranked.values != 0)).count_nonzero())  # including zeros before
            lost = ~kept  # a byte per weight, as the quick scan keeps all layers and levels
            acting = self._acting_zero_share(weight, num_zeros, _without(ranked.values, lost))
        applied = base.Applied(
            achieved_level=num_zeros / weight.parameter.numel(),
            removed_params=num_zeros,
            removed_macs=round(weight.profile.macs * acting),
        )
        return base.Prepared(
            applied=applied,
            parameter=weight.parameter,
            weight=lambda: _without(ranked.values, lost),
            constraint=base.UpdateConstraint(kept=self._chooser(weight, level, kept)),
        )

    def _chooser(self, weight: base.LayerWeight, level: float, kept: Tensor) -> base.KeptWeights:
        """Return a function that selects as many units by other importances; random zeros, a comparison, stay fixed."""
        if not self._criterion.chooses:
            fixed = weight.layout.split(kept)
            return lambda scores, _share: fixed.reshape(scores.shape)
        granularity, shape = self._granularity(weight), self._ranked(weight).shape
        num_lost = whole_units(level, self._ranked(weight).ranking.num_units)

        def choose(scores: Tensor, share: float) -> Tensor:
            number = num_lost if granularity.block_size else int(share * num_lost)
            if number == 0:
                return torch.ones_like(scores, dtype=torch.bool)
            units = granularity.unit_scores(scores.reshape(shape))
            left = Ranking(granularity.arrange(units, per_output=False)).kept(number)
            return granularity.arrange_back(left, shape).expand(shape).reshape(scores.shape)

        return choose

    def _acting_zero_share(self, weight: base.LayerWeight, num_zeros: int, sparse: Tensor) -> float:
        """Return the share of the layer's products that zeros save, but for a standardised weight's own."""
        if weight.profile.keeps_zeros:
            return num_zeros / weight.parameter.numel()
        before = acting_zero_share(self._model, weight.profile)
        with base.swapped(weight.parameter, sparse):
            return max(0.0, acting_zero_share(self._model, weight.profile) - before)

    def _kept(self, weight: base.LayerWeight, level: float) -> Tensor:
        """Return a bool mask of the kept weights, in the weight's layout."""
        ranked = self._ranked(weight)
        ranking = ranked.ranking
        num_lost = whole_units(level, ranking.num_units)
        if num_lost == 0:
            unit = self._granularity(weight).unit
            raise MeasurementFailed(
                f"The layer has {ranking.num_units} {unit}s, and {100 * level:g} % of them is less "
                f"than one; choose a level of at least {100 / ranking.num_units:.3g} %."
            )
        kept = self._granularity(weight).arrange_back(ranking.kept(num_lost), ranked.shape)
        return weight.layout.merge(kept.expand(ranked.shape), weight.parameter)

    def _ranked(self, weight: base.LayerWeight) -> _Ranked:
        layer = weight.profile.name
        if self._latest is None or self._latest.layer != layer:
            values, criterion, norms = weight.parameter.detach(), self._criterion, None
            split = weight.layout.split(values)  # (G, O/G, I/G, D, H, W)
            if criterion.looks_at_inputs:
                norms = self._norms[layer].matched_to(weight.layout, split.shape[base.OUTPUT]).to(split.device)
            granularity, own = self._granularity(weight), self._own_score
            if own:
                scores = weight.layout.split(own(values.float()))
            else:
                scores = criterion.score(split.float(), criteria.layer_generator(self._seed, layer), norms)
            ranking = Ranking(
                granularity.arrange(granularity.unit_scores(scores), per_output=criterion.per_output and own is None)
            )
            self._latest = _Ranked(layer, values, split.shape, ranking)
        return self._latest


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The layer made sparse last: its weight, the split weight's shape, and the order of its units."""

    layer: str
    values: Tensor
    shape: torch.Size
    ranking: Ranking


def _without(values: Tensor, lost: Tensor) -> Tensor:
    """Return ``values``, in their memory order, with 0 in place of those that are ``lost``."""
    with base.ordinary_tensors():
        return values.clone().masked_fill_(lost, 0)
