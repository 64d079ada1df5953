"""The per-layer targets that every run comes with, before anybody has chosen a budget."""

from __future__ import annotations

from senseapp.compressions import DENSE_BITS
from senseapp.errors import InfeasibleBudget, InvalidSchedule
from senseapp.results import ResourceBudget, Schedule, SensitivityResult
from senseapp.service.headline import shown_metric

_TARGET_BITS = 4.0
_ROUNDING_BITS = 1e-6


def default_targets(result: SensitivityResult) -> dict[str, float]:
    """Return one number per layer that could be measured, members of a group alike.

    Percent for sparsity and pruning: the classic rule on the drops of the ranking metric at the level nearest to
    50 %, for a mean of 50 % weighted by the layers' parameters (2:4 sparsity: 50 % everywhere). Bits for
    quantization: the least damage at 4 bits on average over all compressible weights, or at the nearest average that
    the measured levels reach; 32 for a layer that is better left as it is.
    """
    from senseapp.schedule import layer_targets  # it loads scipy, which the app does without until its first chart

    config = result.spec.sensitivity.compression
    if not any(item.changes for item in result.shown):
        return {}
    try:
        if config.description.sets_bits:
            return _bits(result)
        targets = layer_targets(result, metric=shown_metric(result))
    except InvalidSchedule:  # no layer has a finite figure either
        return {}
    if config.only_level is not None:
        return dict.fromkeys(targets, config.scale.shown(config.only_level[0]))
    percents = {layer: round(100 * fraction, 6) for layer, fraction in targets.items()}
    return {layer.name: percents[layer.name] for layer in result.profile.layers if layer.name in percents}


def _bits(result: SensitivityResult) -> dict[str, float]:
    schedule = _schedule_at_average(result, _TARGET_BITS)
    return {member: int(entry.level or DENSE_BITS) for entry in schedule.entries for member in entry.members}


def _schedule_at_average(result: SensitivityResult, bits: float) -> Schedule:
    from senseapp.schedule import make_schedule

    try:
        return make_schedule(result, budget=ResourceBudget(kind="bits", target=bits))
    except InfeasibleBudget as error:
        nearest = ResourceBudget(kind="bits", target=error.nearest + _ROUNDING_BITS)
        return make_schedule(result, budget=nearest)
