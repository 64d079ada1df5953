"""Schedules of pruning that truly meet their budget: neighbouring layers share the weights between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from senseapp.compressions import BudgetKind
from senseapp.results import ModelProfile, ResourceBudget, Schedule
from senseapp.results.coupling import CoupledGroup
from senseapp.schedule.problem import PRUNING_NOTE
from senseapp.schedule.search import with_true_size

_ROUNDING = 1e-9  # what floor() may lose to binary fractions


def truly_sized(
    make: Callable[[float], Schedule], profile: ModelProfile, groups: Sequence[CoupledGroup], budget: ResourceBudget
) -> Schedule:
    """Return the gentlest schedule found that truly meets ``budget``, with true figures in place of estimated ones.

    Args:
        make: returns the schedule of pruning for a predicted fraction removed.
        profile: of the model.
        groups: what shrinks together in it.
        budget: what must truly be saved.

    Raises:
        InfeasibleBudget: no schedule tried saves enough; names the nearest target.
    """
    found = with_true_size(make, lambda tried: true_figures(tried, profile, groups)[budget.kind], budget.target)
    return replace(
        found,
        budget=budget,
        achieved=found.achieved | dict(true_figures(found, profile, groups)),
        notes=tuple(note for note in found.notes if note != PRUNING_NOTE),
    )


def true_figures(schedule: Schedule, profile: ModelProfile, groups: Sequence[CoupledGroup]) -> dict[BudgetKind, float]:
    """Return the fractions of weights, weight bytes and multiply-accumulates that ``schedule`` truly removes."""
    return true_shares({group.layer: schedule.level_of(group.layer) or 0.0 for group in groups}, profile, groups)


def true_shares(
    ratios: Mapping[str, float], profile: ModelProfile, groups: Sequence[CoupledGroup]
) -> dict[BudgetKind, float]:
    """Return the fractions that go when each group loses the share of its units that ``ratios`` gives its first member.

    A layer of (O, I) channels that loses o and i keeps (O − o)(I − i) / (O I) of its weights and of its
    multiply-accumulates, whichever groups they belong to.
    """
    kept = _kept_shares(ratios, groups)
    params = sum(layer.num_params * kept.get(layer.name, 1.0) for layer in profile.layers)
    macs = sum(layer.macs * (1 - kept.get(layer.name, 1.0)) for layer in profile.layers)
    macs += sum(group.other_macs * _gone(ratios, group) for group in groups)
    removed = 1 - params / max(1, sum(layer.num_params for layer in profile.layers))
    return {"params": removed, "bytes": removed, "macs": macs / profile.macs if profile.macs else 0.0}


def _kept_shares(ratios: Mapping[str, float], groups: Sequence[CoupledGroup]) -> dict[str, float]:
    """Return the share of each touched layer's weights that stays."""
    gone: dict[tuple[str, str], float] = {}
    for group in groups:
        ratio = _gone(ratios, group)
        for cut in group.axes:
            axis = cut.layer, cut.axis
            gone[axis] = gone.get(axis, 0.0) + ratio * cut.share
    kept: dict[str, float] = {}
    for (layer, _), share in gone.items():
        kept[layer] = kept.get(layer, 1.0) * (1 - share)
    return kept


def _gone(ratios: Mapping[str, float], group: CoupledGroup) -> float:
    """Return the share of the group's units that goes: whole ones."""
    return math.floor(ratios.get(group.layer, 0.0) * group.num_units + _ROUNDING) / group.num_units
