"""A result of ours as Distiller's sensitivity CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from senseapp.errors import InvalidSpec
from senseapp.exchange.distiller_table import COLUMNS
from senseapp.results import LayerMeasurement, MetricChange, SensitivityResult, Status

_METRICS = ("top1", "top5", "loss")
_WRAPPER = "module."
_DIGITS = 12  # enough for every digit that a percentage of a million images has, without binary dust


def can_be_distiller_csv(result: SensitivityResult) -> bool:
    """Whether the table's columns are known: a sparsity or pruning run, measured with labels."""
    return not result.spec.sensitivity.compression.description.sets_bits and any(_usable(result))


def write_distiller_csv(result: SensitivityResult) -> str:
    """Write ``parameter,sparsity,top1,top5,loss``: fractions of zeros, accuracies in percent, loss in nats.

    Each layer begins with the row of the uncompressed model, at sparsity 0; names carry the ``module.`` that
    Distiller's have. Members of a coupled group have the group's figures; layers and levels without measured top-1,
    top-5 and loss are left out.

    Raises:
        InvalidSpec: a run whose levels are bits, or a run without labels.
    """
    if not can_be_distiller_csv(result):
        raise InvalidSpec(
            "Distiller's CSV holds top-1, top-5 and loss by sparsity; this run has no such measurements. "
            "Run sparsity or pruning on labelled images, or take sensitivity.csv."
        )
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    parameters = {layer.name: layer.parameter for layer in result.profile.layers}
    by_layer: dict[str, list[LayerMeasurement]] = {}
    for item in _usable(result):
        for member in item.members or (item.layer,):
            by_layer.setdefault(member, []).append(item)
    for layer in (name for name in parameters if name in by_layer):
        writer.writerows(_rows(_WRAPPER + parameters[layer], by_layer[layer]))
    return stream.getvalue()


def _usable(result: SensitivityResult) -> Iterator[LayerMeasurement]:
    for item in result.shown:
        if item.status is Status.MEASURED and not item.estimated and all(map(item.change, _METRICS)):
            yield item


def _rows(parameter: str, items: list[LayerMeasurement]) -> Iterator[tuple[str, ...]]:
    baseline = [change.baseline for change in _changes(items[0])]
    yield parameter, "0", *_figures(*baseline)
    for item in sorted(items, key=lambda item: item.level):
        yield parameter, f"{item.level:.{_DIGITS}g}", *_figures(*(change.value for change in _changes(item)))


def _changes(item: LayerMeasurement) -> list[MetricChange]:
    return [change for metric in _METRICS if (change := item.change(metric)) is not None]


def _figures(top1: float, top5: float, loss: float) -> tuple[str, str, str]:
    return f"{100 * top1:.{_DIGITS}g}", f"{100 * top5:.{_DIGITS}g}", repr(loss)
