"""What TFLite's ``benchmark_model --enable_op_profiling=true`` prints, or writes as CSV.

Operations stand under *Run Order*, first those of the initialisation, then those of the runs. Older versions have a
column more, when the operation began. What a delegate computes is one operation there, and its own ones stand under
*Delegate internal*: these count in its place.

Source: TensorFlow, ``core/util/stats_calculator.cc`` and ``lite/profiling/profile_summary_formatter.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from senseapp.core.texts import printable
from senseapp.store.device_times.base import (
    BadReport,
    Report,
    ReportFile,
    ReportFormat,
    ReportRow,
    bounded,
    seconds_of,
)

_HEADING, _ORDER = "=====", "Run Order"
_RUNS = "Profiling Info for Regular Benchmark Runs"
_INTERNAL, _SUBGRAPH = "Delegate internal:", "Subgraph ("
_NUMBER = r"[-+]?(?:\d[\d.]{0,39}(?:e[-+]?\d{1,9})?|nan|inf)"
_GAP = r"(?:, ?| )"
_FIGURES = re.compile(
    rf"{_GAP}(?:{_NUMBER}{_GAP}){{1,2}}(?P<mean>{_NUMBER}){_GAP}{_NUMBER}%{_GAP}{_NUMBER}%{_GAP}"
    rf"{_NUMBER}{_GAP}(?P<called>\d{{1,9}}){_GAP}",
    re.IGNORECASE,
)
"""Between the kind of an operation and its name, single blanks. Its parts are bounded, so that a search is linear."""
_PLACE = re.compile(r"\]?(?::\d{1,9})?$")  # after a name: its place in the run
_ASIDE = re.compile(r"\s*\[?node type|(?:INFO|WARNING|ERROR|VERBOSE)\b")
"""The names of columns, and lines of a log."""
_PRODUCT = re.compile("conv|fully|matmul", re.IGNORECASE)


@dataclass(kw_only=True)
class _Section:
    """The rows under one *Run Order*."""

    is_internal: bool
    is_subgraph: bool
    rows: list[ReportRow] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)


def _read(file: ReportFile) -> Report:
    text = file.text
    begins = text.find(_RUNS)
    sections = [section for section in _sections(text[max(0, begins) :]) if section.rows]
    primary = next((each for each in sections if not each.is_internal and not each.is_subgraph), None)
    if primary is None:
        raise BadReport("it has no operations under Run Order; run benchmark_model with --enable_op_profiling=true")
    internal = [row for section in sections if section.is_internal for row in section.rows]
    rows, in_order = _with_internal(primary.rows, internal)
    notes: tuple[str, ...] = ()
    if any(each.is_subgraph for each in sections):
        notes = (f"Subgraphs in {file.shown} count within the operations that call them.",)
    return Report(rows=tuple(bounded(rows)), whole_seconds=primary.seconds, in_order=in_order, notes=notes)


def _with_internal(rows: list[ReportRow], internal: list[ReportRow]) -> tuple[list[ReportRow], bool]:
    """Return ``rows`` with a delegate's own in place of its calls, and whether they are in the order in which they ran.

    Of several calls it is not said which of the delegate's operations each computes.
    """
    calls = ["delegate" in row.kind.lower() for row in rows] if internal else []
    if not any(calls):
        return rows, True
    others = [row for row, is_call in zip(rows, calls, strict=True) if not is_call]
    before = rows[: calls.index(True)]
    in_order = sum(calls) == 1 or not any(_PRODUCT.search(row.kind) for row in others)
    return [*before, *internal, *others[len(before) :]], in_order


def _sections(text: str) -> Iterator[_Section]:
    """Yield the sections of a text in their order; one ends at an empty line or at the next heading."""
    section: _Section | None = None
    is_internal = is_subgraph = False
    for place, line in enumerate(text.splitlines(), 1):
        if _INTERNAL in line:
            is_internal = True
        elif line.lstrip().startswith(_SUBGRAPH):
            is_subgraph = True
        if _HEADING in line or not line.strip():
            if section is not None:
                yield section
            section = _Section(is_internal=is_internal, is_subgraph=is_subgraph) if _ORDER in line else None
        elif section is not None and not _ASIDE.match(line):
            section.rows.append(_row(line, place))
    if section is not None:
        yield section


def _row(line: str, place: int) -> ReportRow:
    line = " ".join(line.split())
    found = _FIGURES.search(line) if len(line) < 2000 else None
    kind = line[: found.start()] if found else ""
    if found is None or not kind:
        raise BadReport(f"line {place} after its heading is no operation with its times, but {printable(line)}")
    name = _PLACE.sub("", line[found.end() :], count=1).removeprefix("[") or kind
    seconds = seconds_of(found["mean"], per_second=1e3, row=place, name=name)
    called = min(int(found["called"]), 10**6)
    return ReportRow(name=name, seconds=seconds * max(1, called), kind=kind)


TFLITE = ReportFormat(
    name="tflite",
    label="TFLite's benchmark_model",
    written_by="`benchmark_model --graph=MODEL.tflite --enable_op_profiling=true`: what it prints, or the file of "
    "`--profiling_output_csv_file`",
    recognises=lambda file: not file.is_json and _ORDER in file.text,
    read=_read,
)
