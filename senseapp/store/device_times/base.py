"""Rows of a report, the file that they are read from, and the registry of formats.

A report says how long each operation of one network took. Anybody may have made the file: its bytes, its nesting, its
rows and its numbers are limited, and what breaks a limit is a :class:`~senseapp.core.foreign_values.BadValue`, the rest
of a sentence that begins with the file's name and ``is damaged:``.
"""

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from senseapp.core.errors import InvalidFile
from senseapp.core.foreign_values import BadValue, number, read_json, text
from senseapp.core.registry import Registry
from senseapp.core.texts import printable

MOST_SECONDS = 1e5
"""Of one row: more is a mistake of the unit."""
_MOST_ROWS = 500_000  # of a report: a hundred passes of a large network
_LONGEST_LINE = 4000  # characters
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One operation that ran on the device.

    Attributes:
        name: as the tool calls it.
        seconds: that it takes in one call of the network.
        kind: type of the operator as the tool calls it; empty where it says none.
        modules: dotted names of the modules that it computes, where the tool says them.
        output_shape: for one image, without the batch axis; empty where unknown.
        processor: what computes it, as the tool says: ``NPU``; empty where it says nothing.
    """

    name: str
    seconds: float
    kind: str = ""
    modules: tuple[str, ...] = ()
    output_shape: tuple[int, ...] = ()
    processor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The rows of a report.

    Attributes:
        rows: empty in a report of whole calls.
        whole_seconds: of one call of the network, where the report says it; None elsewhere.
        in_order: whether rows come in the order in which they ran.
        is_estimate: whether a compiler predicts the times, rather than a device.
        notes: sentences on how the report was read.
    """

    rows: tuple[ReportRow, ...]
    whole_seconds: float | None = None
    in_order: bool = True
    is_estimate: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSummary:
    """A report in a few figures.

    Attributes:
        tool: that wrote it.
        seconds: of one call of the network.
        is_estimate: as :attr:`Report.is_estimate`.
        processors: operators by what computes them, most first; empty where the tool does not say.
        kinds: type, number and seconds of operators, the slowest first; empty in a report of whole calls.
        notes: sentences on how the report was read.
    """

    tool: str
    seconds: float
    is_estimate: bool
    processors: tuple[tuple[str, int], ...]
    kinds: tuple[tuple[str, int, float], ...]
    notes: tuple[str, ...]


class ReportFile:
    """A file that may be a report: its text, and its JSON where it is some; raises InvalidFile where it is no text.

    ``shown`` is its name, as it may stand in a sentence.
    """

    def __init__(self, content: bytes, shown: str) -> None:
        self.shown = shown
        try:
            self.text = content.decode("utf-8-sig").lstrip()
        except UnicodeDecodeError as error:
            raise InvalidFile(f"{shown} is not a text file.") from error

    @cached_property
    def payload(self) -> Any:
        """The content of JSON, a list or an object; None for other texts."""
        return read_json(self.text) if self.text[:1] in ("[", "{") else None

    def holds(self, *keys: str) -> bool:
        """Return whether it is an object with one of ``keys``, or a list of objects of which an early one has one."""
        first = self.payload[:100] if isinstance(self.payload, list) else [self.payload]
        return any(isinstance(each, dict) and not each.keys().isdisjoint(keys) for each in first)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text; raises BadValue where one is endless."""
        for place, line in enumerate(self.text.splitlines(), 1):
            if len(line) > _LONGEST_LINE:
                raise BadValue(f"line {place} has more than {_LONGEST_LINE:,} characters")
            yield line

    def cells(self, mark: str = ",") -> Iterator[list[str]]:
        """Yield the cells of the lines as of CSV; raises BadValue where one cannot be read."""
        try:
            for line in self.lines():
                yield [cell.strip() for cell in next(csv.reader([line], delimiter=mark), [])]
        except csv.Error as error:
            raise BadValue("a line of it cannot be read as a table") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFormat:
    """One tool's report.

    Attributes:
        name: in the registry.
        label: the tool, for people.
        written_by: how the tool writes the file, in a few words for a table.
        recognises: whether a file is such a report, from its content alone.
        read: reads it; raises BadValue.
    """

    name: str
    label: str
    written_by: str
    recognises: Callable[[ReportFile], bool]
    read: Callable[[ReportFile], Report] = field(repr=False)


DEVICE_TIMES: Registry[ReportFormat] = Registry(
    "report of times",
    group="senseapp.device_times",
    own=(
        "senseapp.store.device_times.reports:ONNXRUNTIME",
        "senseapp.store.device_times.reports:TRTEXEC",
        "senseapp.store.device_times.reports:AI_HUB",
        "senseapp.store.device_times.embedded:EXECUTORCH",
        "senseapp.store.device_times.reports:OPENVINO",
        "senseapp.store.device_times.reports:TFLITE",
        "senseapp.store.device_times.embedded:VELA",
    ),
)
"""All formats, in the order in which they are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Keys of one operation in the records of a report.

    Attributes:
        name: of its name.
        seconds: of its time; the first that a record has.
        per_second: units of time in a second.
        kind: of the type of its operator; empty where there is none.
        processor: of what computes it; empty where there is none.
    """

    name: str = "name"
    seconds: tuple[str, ...]
    per_second: float
    kind: str = ""
    processor: str = ""

    def row(self, record: Mapping[str, Any], place: int) -> ReportRow:
        """Return the operation in ``record``, row ``place`` of its report."""
        name = text(record.get(self.name, ""), f"the name in row {place}")
        spent = next((record[key] for key in self.seconds if key in record), None)
        what = f"the time of row {place} ({printable(name) or 'without a name'})"
        return ReportRow(
            name=name,
            seconds=number(spent, what, least=0, most=MOST_SECONDS * self.per_second) / self.per_second,
            kind=text(record.get(self.kind, ""), f"the type in row {place}") if self.kind else "",
            processor=text(record.get(self.processor, ""), f"the processor in row {place}") if self.processor else "",
        )

    def rows(self, records: Iterable[Mapping[str, Any]]) -> tuple[ReportRow, ...]:
        """Return the operations in ``records``."""
        return tuple(self.row(record, place) for place, record in enumerate(records, 1))


def medians(passes: Iterable[Iterable[tuple[Hashable, ReportRow]]]) -> tuple[ReportRow, ...]:
    """Return each operation, told by its key, with its median over the passes; in one pass, equal ones add up."""
    rows: dict[Hashable, ReportRow] = {}
    spent: defaultdict[Hashable, list[float]] = defaultdict(list)
    for each in passes:
        together: defaultdict[Hashable, float] = defaultdict(float)
        for key, row in each:
            rows.setdefault(key, row)
            together[key] += row.seconds
        for key, seconds in together.items():
            spent[key].append(seconds)
    return tuple(replace(row, seconds=statistics.median(spent[key])) for key, row in rows.items())


def records_in(value: object, what: str) -> Records:
    """Return a list of objects; raises BadValue where it is none, or endless."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadValue(f"{what} is no list of objects")
    if len(value) > _MOST_ROWS:
        raise BadValue(f"it has more than {_MOST_ROWS:,} rows")
    return value
