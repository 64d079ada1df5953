"""The table ``sensitivity.csv``: one row per layer, level and metric, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from senseapp.results import LayerMeasurement, LayerProfile, MetricChange, SensitivityResult, Status

_FIGURES = ("baseline", "value", "delta", "ci_low", "ci_high")
COLUMNS = ("layer", "layer_type", "params", "macs", "compression", "level", "metric", *_FIGURES, "status", "group")
_ESTIMATED = "estimated"


def sensitivity_rows(result: SensitivityResult) -> Iterator[dict[str, str | int | float]]:
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
    result: SensitivityResult, item: LayerMeasurement, layer: LayerProfile, change: MetricChange | None
) -> dict[str, str | int | float]:
    estimated = item.estimated and item.status is Status.MEASURED
    return {
        "layer": layer.name,
        "layer_type": layer.layer_type,
        "params": layer.num_params,
        "macs": layer.macs,
        "compression": result.spec.sensitivity.compression.kind,
        "level": f"{result.spec.sensitivity.compression.scale.shown(item.level):.10g}",
        "metric": change.metric if change else result.metric,
        **{name: getattr(change, name) if change else "" for name in _FIGURES},
        "status": _ESTIMATED if estimated else item.status.value,
        "group": item.group,
    }


def sensitivity_csv(result: SensitivityResult) -> str:
    """Return :func:`sensitivity_rows` as CSV text."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sensitivity_rows(result))
    return stream.getvalue()
