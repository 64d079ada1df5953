"""Import Distiller's sensitivity CSV as a :class:`RunResult`; what the file lacks is marked as unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from senseapp.compressions import SparsityConfig
from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.errors import InvalidFile
from senseapp.metrics import MetricChange
from senseapp.records.measurement import LayerMeasurement, RunResult, Status
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.store.distiller_table import DistillerRow, match_names, read_rows

_WRAPPER = "module."  # DataParallel puts it before every name
_WEIGHT = ".weight"
_ROUNDING = 1e-9  # 0.15000000000000002 of 20 filters are 3
_UNKNOWN_INTERVALS = (
    "Imported figures: neither the number of images nor the images' own differences are in the file, so intervals are "
    "unknown, and small differences may be chance."
)
_UNKNOWN_SIZES = (
    "The file holds no layer sizes, so parameters and MACs are unknown and every layer counts alike in a schedule."
)


def read_distiller_csv(
    content: bytes | str,
    *,
    title: str = "Imported",
    granularity: SparsityGranularity = "weight",
    profile: ModelProfile | None = None,
) -> RunResult:
    """Read a table with the columns ``parameter,sparsity,top1,top5,loss``.

    Each parameter's row at sparsity 0 is the baseline of its other rows. ``module.conv1.weight`` becomes the layer
    ``conv1``. Intervals are NaN and the number of images is 0: unknown.

    Args:
        content: the file.
        title: what people call the model.
        granularity: what was zeroed as a unit: ``weight`` or, for Distiller's filter-wise runs, ``filter``.
        profile: of the model, for the sizes and types of its layers; None leaves them unknown. Its weights do not
            matter. Parameters that it lacks are left out, and a note says so.

    Raises:
        InvalidFile: a column is missing, a number is not one or out of range, a row is repeated, a parameter has no
            row at sparsity 0 or none above, or none is in ``profile``.
    """
    rows, notes_on_table = read_rows(content)
    by_layer = _by_layer(rows)
    left_out = ""
    if profile is not None:
        by_layer, left_out = match_names(by_layer, profile)
    levels = tuple(sorted({row.sparsity for rows in by_layer.values() for row in rows if row.sparsity > 0}))
    if not levels:
        raise InvalidFile("No row has a sparsity above 0, so nothing was measured. Choose a file with measurements.")
    described = _described(by_layer, title, profile)
    first = _baseline_row(*next(iter(by_layer.items())))
    return RunResult(
        spec=RunSpec(
            model=ModelSpec(library="imported", name=title),
            data=DataSpec(kind="imported"),
            sensitivity=SensitivitySpec(
                compression=SparsityConfig(granularity=granularity), levels=levels, metric="top1"
            ),
        ),
        profile=described,
        metric="top1",
        baseline={"top1": first.top1, "top5": first.top5, "loss": first.loss},
        measurements=tuple(
            measurement
            for name in (layer.name for layer in described.layers if layer.name in by_layer)
            for measurement in _measurements(name, by_layer[name], described.layer(name), granularity)
        ),
        precision="unknown",
        method="imported",
        notes=tuple(filter(None, (*notes_on_table, left_out, _UNKNOWN_INTERVALS, "" if profile else _UNKNOWN_SIZES))),
    )


def notes_on_names(result: RunResult) -> str:
    """Return how an imported table was read and what it left out; empty where there is nothing to say."""
    return " ".join(note for note in result.notes if note not in (_UNKNOWN_INTERVALS, _UNKNOWN_SIZES))


def _by_layer(rows: Sequence[DistillerRow]) -> dict[str, list[DistillerRow]]:
    wrapped = all(row.parameter.startswith(_WRAPPER) for row in rows)
    by_layer: dict[str, list[DistillerRow]] = {}
    for row in rows:
        name = row.parameter.removeprefix(_WRAPPER) if wrapped else row.parameter
        by_layer.setdefault(name.removesuffix(_WEIGHT), []).append(row)
    return by_layer


def _described(by_layer: Mapping[str, object], title: str, profile: ModelProfile | None) -> ModelProfile:
    if profile is not None:  # the network was built for its sizes; the weights that were measured are unknown
        return replace(profile, pretrained=True, notes=())
    layers = tuple(
        LayerProfile(
            name=name,
            layer_type="",
            parameter=name + _WEIGHT,
            weight_shape=(),
            num_params=0,
            macs=0,
            order=order,
        )
        for order, name in enumerate(by_layer)
    )
    return ModelProfile(title=title, layers=layers, num_params=0, macs=0, num_bytes=0, input_shape=(), num_classes=0)


def _baseline_row(layer: str, rows: Sequence[DistillerRow]) -> DistillerRow:
    for row in rows:
        if row.sparsity == 0:
            return row
    raise InvalidFile(
        f"{layer} has no row at sparsity 0, which is the baseline its other rows are compared with. Add one."
    )


def _measurements(
    name: str, rows: Sequence[DistillerRow], layer: LayerProfile, granularity: SparsityGranularity
) -> list[LayerMeasurement]:
    baseline = _baseline_row(name, rows)
    filters = layer.weight_shape[layer.channel_axis] if granularity == "filter" and layer.weight_shape else 0
    return [
        LayerMeasurement(
            layer=name,
            level=row.sparsity,
            status=Status.MEASURED,
            changes=(
                _change("top1", baseline.top1, row.top1, baseline.top1 - row.top1),
                _change("top5", baseline.top5, row.top5, baseline.top5 - row.top5),
                _change("loss", baseline.loss, row.loss, row.loss - baseline.loss),
            ),
            members=(name,),
            achieved_level=_reached(row.sparsity, filters),
            removed_params=round(_reached(row.sparsity, filters) * layer.num_params),
            removed_macs=round(_reached(row.sparsity, filters) * layer.macs),
        )
        for row in sorted(rows, key=lambda row: row.sparsity)
        if row.sparsity > 0
    ]


def _reached(sparsity: float, filters: int) -> float:
    """Return the share that whole filters make, rounded down as Distiller does; ``sparsity`` if none are counted."""
    return math.floor(sparsity * filters + _ROUNDING) / filters if filters else sparsity


def _change(metric: str, baseline: float, value: float, delta: float) -> MetricChange:
    return MetricChange(
        metric=metric,
        baseline=baseline,
        value=value,
        delta=delta,
        ci_low=math.nan,
        ci_high=math.nan,
        num_samples=0,
    )
