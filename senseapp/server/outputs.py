"""Files beside ``result.json``: ``sensitivity.csv``, one row per layer, level and metric, and ``targets.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from senseapp.core.csv_cells import csv_text
from senseapp.core.disk import replace_file
from senseapp.core.errors import InfeasibleBudget, InvalidSchedule
from senseapp.descriptions import DENSE_BITS
from senseapp.metrics import MetricChange
from senseapp.records.measurement import LayerMeasurement, RunResult, Status
from senseapp.records.profile import LayerProfile
from senseapp.records.schedule import ResourceBudget, Schedule
from senseapp.server.leaderboard import shown_metric

_FIGURES = ("baseline", "value", "delta", "ci_low", "ci_high")
COLUMNS = ("layer", "layer_type", "params", "macs", "compression", "level", "metric", *_FIGURES, "status", "group")
_ESTIMATED = "estimated"


def sensitivity_rows(result: RunResult) -> Iterator[dict[str, str | int | float]]:
    """Yield one row per layer, level and metric, with the keys of :data:`COLUMNS`.

    Levels are percent (bits for quantization), metrics are fractions, nats or dB as measured, ``delta`` > 0 is
    worse. Each member of a coupled group has its own row with the group's id and the group's figures. A layer that
    could not be measured at a level has one row, without figures, for the ranking metric. ``status`` is
    ``measured``, ``estimated`` (quick scan), ``not_applicable`` or ``failed``.
    """
    profiles = {layer.name: layer for layer in result.profile.layers}
    for item in result.shown:
        for member in item.members or (item.layer,):
            for change in item.changes or (None,):
                yield _row(result, item, profiles[member], change)


def _row(
    result: RunResult, item: LayerMeasurement, layer: LayerProfile, change: MetricChange | None
) -> dict[str, str | int | float]:
    estimated = item.estimated and item.status is Status.MEASURED
    return {
        "layer": layer.name,
        "layer_type": layer.layer_type,
        "params": layer.num_params,
        "macs": layer.macs,
        "compression": result.compression.kind,
        "level": f"{result.compression.scale.shown(item.level):.10g}",
        "metric": change.metric if change else result.metric,
        **{name: getattr(change, name) if change else "" for name in _FIGURES},
        "status": _ESTIMATED if estimated else item.status.value,
        "group": item.group,
    }


def sensitivity_csv(result: RunResult) -> str:
    """Return :func:`sensitivity_rows` as CSV text; see :mod:`senseapp.core.csv_cells`."""
    return csv_text(COLUMNS, (row.values() for row in sensitivity_rows(result)))


_TARGET_BITS = 4.0
_ROUNDING_BITS = 1e-6


def default_targets(result: RunResult) -> dict[str, float]:
    """Return one number per measured layer; members of a group have the same.

    Percent for sparsity and pruning: the gamma rule on the drops of the ranking metric at the level nearest to 50 %,
    for a mean of 50 % weighted by parameters (2:4 sparsity: 50 % everywhere). Bits for quantization: the least damage
    at 4 bits on average, or at the nearest average that the measured levels reach; 32 for an unchanged layer.
    """
    from senseapp.solve.gamma import (
        layer_targets,  # loads scipy, which the app avoids until its first chart
    )

    config = result.compression
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


def _bits(result: RunResult) -> dict[str, float]:
    schedule = _schedule_at_average(result, _TARGET_BITS)
    return {member: int(entry.level or DENSE_BITS) for entry in schedule.entries for member in entry.members}


def _schedule_at_average(result: RunResult, bits: float) -> Schedule:
    from senseapp.solve.methods import make_schedule

    try:
        return make_schedule(result, budget=ResourceBudget(kind="bits", target=bits))
    except InfeasibleBudget as error:
        nearest = ResourceBudget(kind="bits", target=error.nearest + _ROUNDING_BITS)
        return make_schedule(result, budget=nearest)


def write_outputs(result: RunResult, folder: Path) -> tuple[Path, ...]:
    """Write ``sensitivity.csv`` and ``targets.json`` into ``folder`` and return their paths."""
    table, targets = folder / "sensitivity.csv", folder / "targets.json"
    replace_file(table, sensitivity_csv(result))
    replace_file(targets, json.dumps(default_targets(result), indent=2, allow_nan=False) + "\n")
    return table, targets
