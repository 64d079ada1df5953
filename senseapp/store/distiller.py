"""Distiller's sensitivity CSV: its rows, checked; the import as a :class:`RunResult`; and the file itself."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from senseapp.compressions import SparsityConfig
from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.errors import InvalidFile, InvalidSpec
from senseapp.core.foreign_values import BadValue
from senseapp.core.registry import grouped
from senseapp.core.tables import TableError, TableRecord, read_records
from senseapp.core.texts import csv_text, first_names, printable_text
from senseapp.descriptions.levels import LEVEL_DIGITS, whole_units
from senseapp.metrics import MetricChange
from senseapp.records.measurement import LayerMeasurement, RunResult, Status
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.tasks import CLASSIFICATION

COLUMNS = ("parameter", "sparsity", "top1", "top5", "loss")
_MOST_BYTES = 20_000_000  # a row for each layer and level: 100,000 of them
_LARGEST_LOSS = 1e9  # larger ones are damage
_OVERFLOWED = frozenset({"inf", "+inf", "infinity"})  # a loss
_MOST_SPARSITY = 0.9999  # below 1: a level that leaves nothing is none


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillerRow:
    """One measurement.

    Attributes:
        parameter: name of the weight, as in the file (``module.conv1.weight``).
        sparsity: fraction of zeros, in [0, 1); 0 is the uncompressed model.
        top1, top5: accuracies as fractions (the file has percent).
        loss: cross-entropy, nats; infinite where it overflowed.
    """

    parameter: str
    sparsity: float
    top1: float
    top5: float
    loss: float


def read_rows(content: bytes) -> tuple[tuple[DistillerRow, ...], tuple[str, ...]]:
    """Read and check every row; return them with notes on how the table was read.

    Raises InvalidFile where it is empty or too large, lacks a column, or a row is out of range, repeated or without
    numbers.
    """
    try:
        records, notes = read_records(content, COLUMNS, most_bytes=_MOST_BYTES)
    except TableError as error:
        raise InvalidFile(
            f"This sensitivity table cannot be read. {error} Choose a table with the columns {','.join(COLUMNS)}."
        ) from error
    rows = tuple(_row(record) for record in records)
    if not rows:
        raise InvalidFile("This sensitivity CSV has a header but no rows. Choose a file with measurements.")
    ((parameter, sparsity), most), *_ = Counter((row.parameter, row.sparsity) for row in rows).most_common(1)
    if most > 1:
        raise InvalidFile(f"{parameter} has two rows at sparsity {sparsity:g}; one is expected. Remove the other.")
    highest = max(100 * max(row.top1, row.top5) for row in rows)
    if 0 < highest <= 1:  # they would be read as a hundredth of their value
        raise InvalidFile(
            f"top1 and top5 must be percent, but none is above {highest:g}, which looks like fractions. "
            "Multiply both columns by 100."
        )
    return rows, notes


def _row(record: TableRecord) -> DistillerRow:
    parameter, line = record.cells["parameter"], record.line
    if not parameter:
        raise InvalidFile(f"Line {line} names no parameter. Each row needs one, such as module.conv1.weight.")
    try:
        sparsity = record.number("sparsity", least=0, most=_MOST_SPARSITY)
        top1, top5 = (record.number(column, least=0, most=100) / 100 for column in ("top1", "top5"))
        overflowed = record.cells["loss"].casefold() in _OVERFLOWED
        loss = math.inf if overflowed else record.number("loss", least=-_LARGEST_LOSS, most=_LARGEST_LOSS)
    except BadValue as error:
        raise InvalidFile(f"Line {line}: {error}. Correct the file.") from error
    # published files hold 0.15000000000000002
    return DistillerRow(parameter=parameter, sparsity=round(sparsity, LEVEL_DIGITS), top1=top1, top5=top5, loss=loss)


def match_names(
    by_layer: Mapping[str, list[DistillerRow]], profile: ModelProfile
) -> tuple[dict[str, list[DistillerRow]], str]:
    """Return the rows of the layers that the model has, and one sentence on the others; empty if there are none.

    Raises InvalidFile where the model has none of them.
    """
    known = [layer.name for layer in profile.layers]
    found = {name: rows for name, rows in by_layer.items() if name in set(known)}
    unknown = [printable_text(name) for name in by_layer if name not in found]
    if not unknown:
        return found, ""
    expected = " and ".join(([name for name in known if name not in found] or known)[:2])
    if not found:
        raise InvalidFile(
            f"None of the {len(unknown)} parameters is in {profile.title}: the table has {first_names(unknown)}, but "
            f"names such as {expected} were expected; choose the model that was measured, or import without one."
        )
    return found, (
        f"{len(unknown)} of the {len(by_layer)} parameters left out, as {profile.title} lacks them "
        f"({first_names(unknown)}), where names such as {expected} were expected; if another model was measured, "
        "import the table again with that one."
    )


_METRICS = ("top1", "top5", "loss")
_WRAPPER = "module."  # DataParallel puts it before every name
_DIGITS = 12  # enough for every digit that a percentage of a million images has, without binary dust


def can_be_distiller_csv(result: RunResult) -> bool:
    """Whether the table's columns are known: a sparsity or pruning run, measured with labels."""
    return not result.compression.description.sets_bits and any(_usable(result))


def write_distiller_csv(result: RunResult) -> str:
    """Write ``parameter,sparsity,top1,top5,loss``: fractions of zeros, accuracies in percent, loss in nats.

    Each layer begins with the row of the uncompressed model, at sparsity 0; names carry the ``module.`` that
    Distiller's have. Members of a coupled group have the group's figures; layers and levels without measured top-1,
    top-5 and loss are left out. Raises InvalidSpec for a run of bits, or without labels.
    """
    if not can_be_distiller_csv(result):
        raise InvalidSpec(
            "Distiller's CSV holds top-1, top-5 and loss by sparsity; this run has no such measurements. "
            "Run sparsity or pruning on labelled images, or take sensitivity.csv."
        )
    parameters = {layer.name: layer.parameter for layer in result.profile.layers}
    by_layer = grouped((member, item) for item in _usable(result) for member in item.members or (item.layer,))
    layers = (name for name in parameters if name in by_layer)
    return csv_text(
        COLUMNS, chain.from_iterable(_rows(_WRAPPER + parameters[layer], by_layer[layer]) for layer in layers)
    )


def _usable(result: RunResult) -> Iterator[LayerMeasurement]:
    measured = (item for item in result.shown if item.status is Status.MEASURED and not item.estimated)
    return (item for item in measured if all(map(item.change, _METRICS)))


def _rows(parameter: str, items: list[LayerMeasurement]) -> Iterator[tuple[str, ...]]:
    yield parameter, "0", *_figures(items[0], lambda change: change.baseline)
    for item in sorted(items, key=lambda item: item.level):
        yield parameter, f"{item.level:.{_DIGITS}g}", *_figures(item, lambda change: change.value)


def _figures(item: LayerMeasurement, figure: Callable[[MetricChange], float]) -> tuple[str, str, str]:
    top1, top5, loss = (figure(change) for metric in _METRICS if (change := item.change(metric)) is not None)
    return f"{100 * top1:.{_DIGITS}g}", f"{100 * top5:.{_DIGITS}g}", repr(loss)


_WEIGHT = ".weight"
_UNKNOWN_INTERVALS = (
    "Imported figures: neither the number of images nor the images' own differences are in the file, so intervals are "
    "unknown, and small differences may be chance."
)
_UNKNOWN_SIZES = (
    "The file holds no layer sizes, so parameters and multiplications are unknown, and every layer counts alike in a "
    "schedule."
)


def read_distiller_csv(
    content: bytes,
    *,
    title: str = "Imported",
    granularity: SparsityGranularity = "weight",
    profile: ModelProfile | None = None,
) -> RunResult:
    """Read a table with the columns ``parameter,sparsity,top1,top5,loss``.

    Each parameter's row at sparsity 0 is the baseline of its other rows. ``module.conv1.weight`` becomes the layer
    ``conv1``. Intervals are NaN and the number of images is 0: unknown. The unit that was zeroed is a ``weight`` or,
    for Distiller's filter-wise runs, a ``filter``. ``profile`` has the sizes and types of the layers of the model,
    called ``title``; None leaves them unknown. Parameters that it lacks are left out, and a note says so. Raises
    InvalidFile where a column is missing, a number is not one or out of range, a row is repeated, a parameter has no
    row at sparsity 0 or none above, or none is in ``profile``.
    """
    rows, notes_on_table = read_rows(content)
    wrapper = _WRAPPER if all(row.parameter.startswith(_WRAPPER) for row in rows) else ""
    by_layer = grouped((row.parameter.removeprefix(wrapper).removesuffix(_WEIGHT), row) for row in rows)
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
            model=ModelSpec(library="imported", name=title, task=CLASSIFICATION.name),
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
    """Return notes on how an imported table was read and what it left out."""
    return " ".join(note for note in result.notes if note not in (_UNKNOWN_INTERVALS, _UNKNOWN_SIZES))


def _described(by_layer: Mapping[str, object], title: str, profile: ModelProfile | None) -> ModelProfile:
    if profile is not None:  # the network was built for its sizes; the weights that were measured are unknown
        return replace(profile, pretrained=True, notes=())
    layers = tuple(
        LayerProfile(
            name=name, layer_type="", parameter=name + _WEIGHT, weight_shape=(), num_params=0, macs=0, order=order
        )
        for order, name in enumerate(by_layer)
    )
    return ModelProfile(title=title, layers=layers, num_params=0, macs=0, num_bytes=0, input_shape=(), num_classes=0)


def _baseline_row(layer: str, rows: Sequence[DistillerRow]) -> DistillerRow:
    for row in rows:
        if row.sparsity == 0 and math.isfinite(row.loss):
            return row
    raise InvalidFile(
        f"{layer} has no row at sparsity 0 with a finite loss, the baseline its other rows are compared with. Add one."
    )


def _measurements(
    name: str, rows: Sequence[DistillerRow], layer: LayerProfile, granularity: SparsityGranularity
) -> Iterator[LayerMeasurement]:
    baseline = _baseline_row(name, rows)
    filters = layer.weight_shape[layer.channel_axis] if granularity == "filter" and layer.weight_shape else 0
    for row in sorted((row for row in rows if row.sparsity > 0), key=lambda row: row.sparsity):
        # whole filters, rounded down as Distiller does
        reached = whole_units(row.sparsity, filters) / filters if filters else row.sparsity
        yield LayerMeasurement(
            layer=name,
            level=row.sparsity,
            status=Status.MEASURED,
            changes=tuple(_change(metric, getattr(baseline, metric), getattr(row, metric)) for metric in _METRICS),
            members=(name,),
            achieved_level=reached,
            removed_params=round(reached * layer.num_params),
            removed_macs=round(reached * layer.macs),
        )


def _change(metric: str, baseline: float, value: float) -> MetricChange:
    return MetricChange(
        metric=metric,
        baseline=baseline,
        value=value,
        delta=value - baseline if metric == "loss" else baseline - value,
        ci_low=math.nan,
        ci_high=math.nan,
        num_samples=0,
    )
