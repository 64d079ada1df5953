"""Schedules of pruning that truly meet their budget: only pruning tells what neighbouring layers save together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from senseapp.layers import profile_model
from senseapp.results import ResourceBudget, Schedule, SensitivityResult
from senseapp.results.schedule import BudgetKind
from senseapp.schedule import with_true_size
from senseapp.validation.apply import apply_schedule, configs_for
from senseapp.validation.sizes import sizes_of

__all__ = ["schedule_of_true_size"]

_KINDS: tuple[BudgetKind, ...] = ("params", "bytes", "macs")
_EXAMPLE_IMAGES = 2


def schedule_of_true_size(
    make: Callable[[float], Schedule], result: SensitivityResult, model: nn.Module, budget: ResourceBudget
) -> Schedule:
    """Return the gentlest schedule found that truly meets ``budget``, by pruning copies of ``model``.

    Args:
        make: returns the schedule for a predicted fraction removed.
        result: the run that it is made from.
        model: the network of that run; never touched.
        budget: what must truly be saved.

    Returns:
        The schedule, with true figures in :attr:`~senseapp.results.Schedule.achieved`.

    Raises:
        InfeasibleBudget: no schedule tried saves enough; names the nearest target.
        InvalidSchedule: the model is not the one that the run measured.
    """
    generator = torch.Generator().manual_seed(result.spec.sensitivity.seed)
    images = torch.randn(_EXAMPLE_IMAGES, *result.profile.input_shape, generator=generator)
    profile = replace(profile_model(model, images), title=result.profile.title)

    def figures(schedule: Schedule) -> dict[str, float]:
        applied = apply_schedule(
            model,
            schedule,
            profile=profile,
            configs=configs_for(result.spec.sensitivity.compression),
            calibration=(images,),
            seed=result.spec.sensitivity.seed,
        )
        before, after = sizes_of(applied, model)
        return {kind: after.figure(kind, before) for kind in _KINDS}

    found = with_true_size(make, lambda tried: figures(tried)[budget.kind], budget.target)
    true = figures(found)
    note = f"Pruned for a trial, the network lost {100 * true[budget.kind]:.1f} % of its {budget.kind}."
    return replace(found, budget=budget, achieved={**found.achieved, **true}, notes=(*found.notes, note))
