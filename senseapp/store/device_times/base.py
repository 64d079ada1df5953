"""Rows of a report, the file that they are read from, and the registry of formats.

A report says how long each operation of one network took. Anybody may have made the file: its bytes, its nesting, its
rows and its numbers are limited, and what breaks a limit is one sentence.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from senseapp.core.errors import InvalidFile
from senseapp.core.foreign_values import BadValue, is_int, number, read_json, shown
from senseapp.core.registry import Registry
from senseapp.core.texts import printable

MOST_SECONDS = 1e5
"""Of one row: more is a mistake of the unit."""
MOST_ROWS = 500_000
"""Of a report, all of its passes together: a hundred passes of a large network."""
_LONGEST_LINE = 4000  # characters


class BadReport(ValueError):
    """A report cannot be read; the rest of a sentence that begins with the file's name and ``is damaged:``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One operation that ran on the device.

    Attributes:
        name: as the tool calls it.
        seconds: that it takes in one call of the network.
        kind: type of the operator as the tool calls it; empty where it says none.
        modules: dotted names of the modules that it computes, where the tool says them.
        output_shape: for one image, without the batch axis; empty where unknown.
    """

    name: str
    seconds: float
    kind: str = ""
    modules: tuple[str, ...] = ()
    output_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The rows of a report.

    Attributes:
        whole_seconds: of one call of the network, where the report says it; None elsewhere.
        in_order: whether rows come in the order in which they ran.
        names_are_unique: whether one name twice is unusual, and noted.
        notes: sentences on how the report was read.
    """

    rows: tuple[ReportRow, ...]
    whole_seconds: float | None = None
    in_order: bool = True
    names_are_unique: bool = False
    notes: tuple[str, ...] = ()


class ReportFile:
    """A file that may be a report: its text, and its JSON where it is some.

    Args:
        content: of the file.
        shown: its name, as it may stand in a sentence.

    Raises:
        InvalidFile: it is no text.
    """

    def __init__(self, content: bytes, shown: str) -> None:
        self.shown = shown
        try:
            self.text = content.decode("utf-8-sig").lstrip()
        except UnicodeDecodeError as error:
            raise InvalidFile(f"{shown} is not a text file.") from error

    @property
    def is_json(self) -> bool:
        """Whether the text begins as JSON does."""
        return self.text[:1] in ("[", "{")

    @cached_property
    def payload(self) -> Any:
        """The content of JSON; None for other texts.

        Raises:
            BadReport: it is broken off, too deep, or holds a number that JSON does not have.
        """
        if not self.is_json:
            return None
        try:
            return read_json(self.text)
        except BadValue as error:
            raise BadReport(str(error)) from error

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines of the text, each with its number from 1.

        Raises:
            BadReport: one is endless.
        """
        for place, line in enumerate(self.text.splitlines(), 1):
            if len(line) > _LONGEST_LINE:
                raise BadReport(f"line {place} has more than {_LONGEST_LINE:,} characters")
            yield place, line


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFormat:
    """One tool's report.

    Attributes:
        name: in the registry.
        label: the tool, for people.
        written_by: how the tool writes the file, in a few words for a table.
        recognises: whether a file is such a report, from its content alone.
        read: reads it; raises BadReport.
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
        "senseapp.store.device_times.reports:EXECUTORCH",
        "senseapp.store.device_times.reports:OPENVINO",
        "senseapp.store.device_times.tflite:TFLITE",
    ),
)
"""All formats, in the order in which they are tried."""


def seconds_of(value: object, *, per_second: float, row: int, name: object) -> float:
    """Return a time of a report in seconds, ``per_second`` of whose units are one.

    Raises:
        BadReport: it is no number, negative, not finite, or of no network.
    """
    try:
        return number(value, "its time", least=0, most=MOST_SECONDS * per_second) / per_second
    except BadValue as error:
        raise BadReport(
            f"row {row} ({printable(str(name)) or 'without a name'}) has no time from 0 to {MOST_SECONDS:,.0f} s, "
            f"but {shown(value)}"
        ) from error


def text_of(value: object, what: str) -> str:
    """Return a text of a report; raise BadReport where it is none."""
    if not isinstance(value, str):
        raise BadReport(f"{what} is no text but {shown(value)}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Keys of one operation in the records of a report.

    Attributes:
        name: of its name.
        seconds: of its time; the first that a record has.
        per_second: units of time in a second.
        kind: of the type of its operator; empty where there is none.
    """

    name: str = "name"
    seconds: tuple[str, ...]
    per_second: float
    kind: str = ""

    def row(self, record: Mapping[str, Any], place: int) -> ReportRow:
        """Return the operation in ``record``, the row ``place`` of its report; raises BadReport."""
        name = text_of(record.get(self.name, ""), f"the name in row {place}")
        spent = next((record[key] for key in self.seconds if key in record), None)
        return ReportRow(
            name=name,
            seconds=seconds_of(spent, per_second=self.per_second, row=place, name=name),
            kind=text_of(record.get(self.kind, ""), f"the type in row {place}") if self.kind else "",
        )


def medians(passes: Iterable[Iterable[tuple[Hashable, ReportRow]]]) -> tuple[ReportRow, ...]:
    """Return each operation, told by its key, with its median over the passes; in one pass, equal ones add up.

    Raises:
        BadReport: there are too many rows.
    """
    rows: dict[Hashable, ReportRow] = {}
    spent: defaultdict[Hashable, list[float]] = defaultdict(list)
    for each in passes:
        together: defaultdict[Hashable, float] = defaultdict(float)
        for key, row in each:
            rows.setdefault(key, row)
            together[key] += row.seconds
        for key, seconds in together.items():
            spent[key].append(seconds)
    bounded([key for key in spent for _ in spent[key]])
    return tuple(replace(row, seconds=statistics.median(spent[key])) for key, row in rows.items())


def records_in(value: object, what: str) -> list[Mapping[str, Any]]:
    """Return a list of objects; raise BadReport where it is none, or endless."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadReport(f"{what} is no list of objects")
    return bounded(value)


RowT = TypeVar("RowT")


def bounded(rows: list[RowT]) -> list[RowT]:
    """Return ``rows``; raise BadReport where there are too many."""
    if len(rows) > MOST_ROWS:
        raise BadReport(f"it has more than {MOST_ROWS:,} rows")
    return rows


def shape_of(dimensions: Sequence[object]) -> tuple[int, ...]:
    """Return the shape of one image's tensor from that of a batch; empty where it is no shape."""
    sizes = tuple(size for size in dimensions if is_int(size) and size >= 0)
    return sizes[1:] if len(sizes) == len(dimensions) else ()
