"""Read times of layers from files of other programs, as untrusted text.

A table of ``layer,level,ms`` holds every level. A report of a device (:mod:`senseapp.store.device_times`) is of one
network as it was, with the names of its runtime; which file is what is recognised from its content.

Rows of a report are matched with layers by name, or by order if names are lost. A name belongs to the layer whose
dotted name it holds, the longest of several, whether its parts are separated by dots, slashes or underscores. A fused
operation names several: its time is shared out among their layers by their multiply-accumulates. Rows without such a
name are assigned by order only if the report has as many products (convolutions and linear layers) as the network calls
layers, of fitting kinds and shapes at each place, and no name speaks against it. Whatever is not a plain match is
noted, and what is not matched is listed.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from senseapp.core.errors import InvalidFile
from senseapp.core.foreign_values import BadValue
from senseapp.core.registry import grouped
from senseapp.core.tables import TableError, TableRecord, read_records
from senseapp.core.texts import listed, plural, printable
from senseapp.descriptions import LevelScale
from senseapp.records.deployment import LayerTime, LayerTimes
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.store.device_times.base import (
    DEVICE_TIMES,
    MOST_SECONDS,
    Report,
    ReportFile,
    ReportFormat,
    ReportRow,
    ReportSummary,
)

MOST_BYTES = 50_000_000  # a hundred passes of a large network, profiled
_MOST_KINDS = 30  # of operators, in a summary
_COLUMNS = ("layer", "level", "ms")


def read_layer_times(content: bytes, profile: ModelProfile, scale: LevelScale, *, name: str, level: float | None = None
                     ) -> LayerTimes:  # fmt: skip
    """Return the times in a file called ``name`` of the layers of ``profile``.

    ``level``, in the engine's unit, is what the network was at when it was profiled; a CSV says its own, in people's.
    Raises InvalidFile where it is none of these files, damaged, or of another network; one sentence.
    """
    shown = printable(name)
    if not is_report(content):
        found_here = _from_table(content, profile, scale, shown)
        if level is not None:
            raise InvalidFile(f"{shown} says the levels itself: give it without one.")
        return found_here
    found, _ = _known_report(content, shown)
    if level is None:
        raise InvalidFile(f"{shown} is a profile of one network: say at which level its layers were, as LEVEL=FILE.")
    return matched(found, profile, level, shown)


def is_report(content: bytes) -> bool:
    """Return whether a file is to be read as a tool's report of one network, and not as a table of every level.

    >>> is_report(b"layerName;execStatus;"), is_report(b'[{"ph": "X"}]'), is_report(b"layer,level,ms")
    (True, True, False)
    """
    try:
        file = ReportFile(content, "")
    except InvalidFile:  # tables may be in another encoding
        return False
    return file.text.startswith(("[", "{")) or any(each.recognises(file) for each in DEVICE_TIMES.values())


def report_tools() -> str:
    """Return the tools whose reports are read, for a sentence."""
    *first, last = [each.label for each in DEVICE_TIMES.values()]
    return f"{', '.join(first)} or {last}"


def summarised(content: bytes, *, name: str) -> ReportSummary:
    """Return a report called ``name`` in a few figures; InvalidFile, in one sentence, where it is none or damaged."""
    report, tool = _known_report(content, printable(name))
    kinds = grouped((row.kind or row.name, row.seconds) for row in report.rows)
    named = sorted(((kind, len(each), sum(each)) for kind, each in kinds.items()), key=lambda kind: -kind[2])
    seconds = report.whole_seconds
    return ReportSummary(
        tool=tool.label,
        seconds=sum(row.seconds for row in report.rows) if seconds is None else seconds,
        is_estimate=report.is_estimate,
        processors=tuple(Counter(row.processor for row in report.rows if row.processor).most_common(8)),
        kinds=tuple((printable(kind), count, spent) for kind, count, spent in named[:_MOST_KINDS]),
        notes=report.notes,
    )


def _known_report(content: bytes, shown: str) -> tuple[Report, ReportFormat]:
    """Read a report; which it is, its content says."""
    if len(content) > MOST_BYTES:
        raise InvalidFile(f"{shown} has more than {MOST_BYTES // 10**6} MB. {_advice()}")
    try:
        file = ReportFile(content, shown)
        if known := next((each for each in DEVICE_TIMES.values() if each.recognises(file)), None):
            return known.read(file), known
    except InvalidFile as error:
        raise InvalidFile(f"{error} {_advice()}") from error
    except BadValue as error:
        raise InvalidFile(f"{shown} is damaged: {error}.") from error
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError, OverflowError):
        pass
    raise InvalidFile(f"{shown} is damaged, or no report that senseapp knows. {_advice()}")


def _advice() -> str:
    return f"Choose a CSV with the columns layer,level,ms, or a report of {report_tools()}."


def merged(parts: Iterable[LayerTimes]) -> LayerTimes:
    """Return the times of several files, of the first where no layer takes them; InvalidFile for two of one level."""
    every = tuple(parts)
    times = [each for part in every for each in part.times]
    keys = [(each.layer, each.level) for each in times]
    if len(set(keys)) < len(keys):
        raise InvalidFile("Two of the files are of the same level. Give each level once.")
    return LayerTimes(
        times=tuple(times),
        other_seconds=every[0].other_seconds,
        source=", ".join(part.source for part in every),
        unmatched=tuple(dict.fromkeys(name for part in every for name in part.unmatched)),
        notes=tuple(dict.fromkeys(note for part in every for note in part.notes)),
    )


def _from_table(content: bytes, profile: ModelProfile, scale: LevelScale, shown: str) -> LayerTimes:
    try:
        rows, notes = read_records(content, _COLUMNS, most_bytes=MOST_BYTES)
    except TableError as error:
        raise InvalidFile(
            f"{shown} is none of the files that senseapp reads times from. {error} {_advice()}"
        ) from error
    known, times, other = {layer.name for layer in profile.layers}, {}, []
    for row in rows:
        try:
            found = _time(row, scale)
        except ValueError as error:
            cells = printable(",".join(row.cells.values()))
            raise InvalidFile(
                f"Line {row.line} of {shown} is not a layer, a level and milliseconds from 0: {cells}."
            ) from error
        if (found.layer, found.level) in times:
            raise InvalidFile(f"Line {row.line} of {shown} gives {printable(found.layer)} the same level again.")
        if found.layer in known:
            times[found.layer, found.level] = found
        else:
            other.append(found.layer)
    strangers = tuple(dict.fromkeys(other))
    if strangers:
        notes += (f"{plural(len(strangers), 'name')} in {shown} of no layer of this network: {listed(strangers)}.",)
    if not times:
        named = f": it names {listed(strangers)}" if strangers else ""
        raise InvalidFile(f"{shown} has no time of any layer of this network{named}.")
    return LayerTimes(times=tuple(times.values()), other_seconds=0.0, source=shown, unmatched=strangers, notes=notes)


def _time(row: TableRecord, scale: LevelScale) -> LayerTime:
    """Return the time in a row; raises ValueError for numbers that are no level and no time."""
    shown = row.number("level")
    found = scale.from_shown(shown) if shown else scale.untouched
    if found != scale.untouched and not scale.allows(found):
        raise ValueError
    seconds = row.number("ms", least=0, most=1000 * MOST_SECONDS) / 1000
    return LayerTime(layer=row.cells["layer"], level=found, seconds=seconds)


_OF_NO_LAYER = ("Reformatting CopyNode", "{ForeignNode[")
"""Beginnings of TensorRT's names that hold those of layers without being theirs: a change of layout, and everything
between two layers in one row."""
_FUSED = re.compile(r"\|\||\s\+\s|[;,]")  # blanks beside it are removed later: a pattern of them takes quadratic time
_LONGEST_NAME = 2000  # characters that are looked at
_WORDS = re.compile(r"[A-Za-z0-9]+")
Parts = tuple[str, ...]
Kind = Literal["depthwise", "transposed", "conv", "linear"]


def matched(report: Report, profile: ModelProfile, level: float, shown: str) -> LayerTimes:
    """Return the times of layers, all at ``level``, in the report ``shown``; InvalidFile where no row is of a layer."""
    if not report.rows:
        raise InvalidFile(f"{shown} has the time of a call, and none of operations. Profile the operations too.")
    names = _Names(profile.layers)
    owners = [names.owners(row) for row in report.rows]
    by_order = _by_order(report, profile, owners)
    owners = [own or ((by_order[place],) if place in by_order else ()) for place, own in enumerate(owners)]
    seconds: defaultdict[str, float] = defaultdict(float)
    macs = {layer.name: layer.macs for layer in profile.layers}
    for row, own in zip(report.rows, owners, strict=True):
        total = sum(macs[layer] for layer in own)
        for layer in own:  # shared out by multiply-accumulates
            seconds[layer] += row.seconds * (macs[layer] / total if total else 1 / len(own))
    unmatched = [row for row, own in zip(report.rows, owners, strict=True) if not own]
    if not seconds:
        named = f": it names {listed(row.name for row in unmatched)}" if unmatched else ""
        raise InvalidFile(f"{shown} has no time of any layer of this network{named}.")
    other = sum(row.seconds for row in unmatched)
    if report.whole_seconds is not None:
        other = max(0.0, report.whole_seconds - sum(seconds.values()))
    return LayerTimes(
        times=tuple(LayerTime(layer=layer, level=level, seconds=spent) for layer, spent in seconds.items()),
        other_seconds=other,
        source=shown,
        unmatched=tuple(dict.fromkeys(row.name for row in unmatched)),
        notes=(
            *report.notes,
            *_notes(report, owners, by_order, shown),
            *_misses(unmatched, [layer for layer in profile.layers if layer.name not in seconds], shown),
        ),
    )


# ---- by name


class _Names:
    """The layers of a network, found in names of other programs by their parts."""

    def __init__(self, layers: Sequence[LayerProfile]) -> None:
        self._exact = {layer.name for layer in layers}
        self._layers: dict[Parts, str] = {}  # empty where several layers have these parts
        for name in self._exact:
            parts = tuple(_WORDS.findall(name))
            self._layers[parts] = "" if parts in self._layers else name
        self._depth = max(map(len, self._layers), default=0)

    def owners(self, row: ReportRow) -> tuple[str, ...]:
        """Return the layers that a row names, each once."""
        if row.name.startswith(_OF_NO_LAYER):
            return ()
        parts = row.modules or _FUSED.split(row.name[:_LONGEST_NAME])
        return tuple(dict.fromkeys(own for part in parts if (own := self._owner(part))))

    def _owner(self, text: str) -> str:
        text = text.strip("[] \t\r\n")
        if text in self._exact:
            return text
        found = (self._layers.get(parts, "") for parts in self._parts(text))
        paths = f"/{text.strip('/')}/"  # a name of digits alone stands in many names, and only in paths for its layer
        fits = (own for own in found if own and (re.search("[A-Za-z]", own) or f"/{own}/" in paths))
        return max(fits, key=len, default="")

    def _parts(self, text: str) -> Iterator[Parts]:
        """Yield every sequence of parts of ``text`` that is no longer than the name of a layer."""
        words = _WORDS.findall(text)
        for first in range(len(words)):
            for length in range(1, min(self._depth, len(words) - first) + 1):
                yield tuple(words[first : first + length])


# ---- by order


def _by_order(report: Report, profile: ModelProfile, owners: Sequence[tuple[str, ...]]) -> dict[int, str]:
    """Return the layer of each row without a name of one, by place; empty where the order does not fit."""
    products = [place for place, row in enumerate(report.rows) if owners[place] or kind_of(row.kind) is not None]
    layers = {layer.name: layer for layer in profile.layers}
    # as the network calls them: one that is called twice counts twice
    calls = [layers[node.name] for node in profile.flow if node.kind == "layer" and node.name in layers]
    calls = calls or sorted((layer for layer in profile.layers if layer.runs), key=lambda layer: layer.order)
    unnamed = [place for place in products if not owners[place]]
    if not unnamed or not report.in_order or len(products) != len(calls):
        return {}
    for place, layer in zip(products, calls, strict=True):
        row, own = report.rows[place], owners[place]
        if own and own != (layer.name,):
            return {}
        if not own and not (_fits(kind_of(row.kind), layer) and _fits_shape(row.output_shape, layer)):
            return {}
    return {place: layer.name for place, layer in zip(products, calls, strict=True) if not owners[place]}


_PRODUCTS: dict[Kind, str] = {
    "depthwise": "depthwiseconv|dwconv",
    "transposed": "convtranspose|transposeconv|deconv|convolutionbackprop",
    "conv": "conv(?!ert)",
    "linear": "^(?!.*batch).*(fullyconnected|gemm|matmul|innerproduct|addmm|(?<!bi)(?<!non)linear)",
}
"""What names of products hold, without all but letters and digits; the first that fits counts."""


def kind_of(operator: str) -> Kind | None:
    """Return the kind of product of an operator's name; None if it is none with weights.

    >>> [kind_of(name) for name in ("DEPTHWISE_CONV_2D", "Convolution (NHWC, F32) IGEMM", "FULLY_CONNECTED", "Add")]
    ['depthwise', 'conv', 'linear', None]
    """
    text = re.sub(r"[^a-z0-9]", "", operator.lower())
    return next((kind for kind, pattern in _PRODUCTS.items() if re.search(pattern, text)), None)


def _fits(kind: Kind | None, layer: LayerProfile) -> bool:
    """Return whether a layer may run as a product of that kind; tools compute 1 × 1 as either, depthwise as both."""
    kernel = layer.weight_shape[2:]
    if "Transpose" in layer.layer_type:
        return kind == "transposed"
    if not kernel or all(size == 1 for size in kernel):
        return kind in ("conv", "linear")
    is_depthwise = layer.weight_shape[1] == 1 and layer.weight_shape[0] > 1 and layer.input_shape[:1] != (1,)
    return kind == "conv" or (kind == "depthwise" and is_depthwise)


def _fits_shape(shape: Sequence[int], layer: LayerProfile) -> bool:
    """Return whether an output has the height and width of the layer's, in either order of memory; unknown ones do."""
    own = layer.output_shape
    if not shape or not own or len(shape) != len(own) or "Linear" in layer.layer_type:
        return True
    return tuple(shape[1:]) == own[1:] or tuple(shape[:-1]) == own[1:]


# ---- notes


def _notes(report: Report, owners: Sequence[tuple[str, ...]], by_order: Mapping[int, str], shown: str) -> Iterator[str]:
    """Yield how rows were assigned where that was no plain match."""
    if by_order:
        rows = plural(len(by_order), "row")
        yield f"{rows} of {shown} name no layer: they were assigned in order, which fits in number and kind."
    if fused := [row.name for row, own in zip(report.rows, owners, strict=True) if len(own) > 1]:
        rows = plural(len(fused), "row")
        yield f"{rows} of {shown} are of several layers, and shared out by their multiplications: {listed(fused)}."


def _misses(unmatched: Sequence[ReportRow], untimed: Iterable[LayerProfile], shown: str) -> Iterator[str]:
    """Yield which rows are of no layer, and which layers have no time."""
    if unmatched:
        rows, spent = plural(len(unmatched), "row"), 1000 * sum(row.seconds for row in unmatched)
        yield f"{rows} of {shown} of no layer, {spent:.3g} ms together: {listed(row.name for row in unmatched)}."
    if missing := [layer.name for layer in untimed if layer.runs]:
        yield f"{plural(len(missing), 'layer')} without a time in {shown}: {listed(missing)}."
