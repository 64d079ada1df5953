"""ExecuTorch: the ETDump of a run as JSON, and the table of its Inspector as JSON.

An ETDump has one event per instruction and pass, with two clock readings. The clock of the runtime counts nanoseconds;
delegates may count something else, as one does whose operations take longer than the whole call. The Inspector names
the unit in its columns, and knows the modules of each operation where it was given an ETRecord. A call of a delegate
contains the operations that the delegate reports, and an ``OPERATOR_CALL`` the operator before it: neither counts
twice.

Source: ExecuTorch, ``devtools/etdump/schema_flatcc.py`` and ``devtools/inspector/_inspector.py``.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from senseapp.core.foreign_values import is_int
from senseapp.core.texts import listed
from senseapp.store.device_times.base import (
    BadReport,
    Report,
    ReportFile,
    ReportFormat,
    ReportRow,
    bounded,
    records_in,
    seconds_of,
    text_of,
)

_WHOLE = "Method::execute"
_FRAMEWORK = ("Method::init", "Program::load_method", "OPERATOR_CALL")
_DELEGATE = "DELEGATE_CALL"
_COLUMN = re.compile(r"(?P<what>p50|avg)(?: \((?P<unit>[a-z]+)\))?")
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # units of time in a second
_MOST_OVERLAP = 2.0  # operations that take longer than this multiple of the call are in another unit
_SELF = re.compile(r"^(?:L\['self'\]|L__self__)[._]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """One operation, with its seconds in one or in all passes."""

    name: str
    seconds: float
    is_delegated: bool
    kind: str = ""
    modules: tuple[str, ...] = ()


def _read(file: ReportFile) -> Report:
    if isinstance(file.payload, dict) and "run_data" in file.payload:
        notes: tuple[str, ...] = (f"Times in {file.shown} were taken as nanoseconds, which the runtime counts.",)
        return _report(list(_etdump_events(file.payload)), notes)
    rows = bounded(list(_table(file.payload)))
    column, unit = _time_column(rows)
    notes = () if unit else (f"The columns of {file.shown} name no unit: times were taken as ms, the Inspector's.",)
    return _report([_inspected(row, column, unit or "ms", place) for place, row in enumerate(rows, 1)], notes)


def _report(events: Sequence[_Event], notes: tuple[str, ...]) -> Report:
    whole = sum(event.seconds for event in events if event.name == _WHOLE) or None
    any_delegated = any(event.is_delegated for event in events)
    inside = (*_FRAMEWORK, _WHOLE, *((_DELEGATE,) if any_delegated else ()))
    operations = [event for event in events if event.name not in inside]
    if not operations:
        raise BadReport("it has no times of operations; build the runtime with its event tracer")
    spent = sum(event.seconds for event in operations)
    if whole is not None and spent > _MOST_OVERLAP * whole:
        raise BadReport(
            f"its operations take {spent / whole:.3g} times as long as the call, so its delegate counts in another "
            "unit; convert it with delegate_time_scale_converter of the Inspector"
        )
    rows = (
        ReportRow(name=event.name, seconds=event.seconds, kind=event.kind or event.name, modules=event.modules)
        for event in operations
    )
    return Report(rows=tuple(rows), whole_seconds=whole, notes=notes)


# ---- ETDump


def _etdump_events(payload: Mapping[str, Any]) -> Iterator[_Event]:
    """Yield the operations of an ETDump, each with its median over all passes."""
    spent: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    total = 0
    for run in records_in(payload["run_data"], "'run_data' in it"):
        passed: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for event in records_in(run.get("events") or [], "'events' in it"):
            total += 1
            profiled = event.get("profile_event")
            if isinstance(profiled, dict):
                key, seconds = _profiled(profiled, total)
                passed[key] += seconds
        for key, seconds in passed.items():
            spent[key].append(seconds)
    bounded([key for key in spent for _ in spent[key]])
    for (name, _, number, text), every in spent.items():
        yield _Event(name=name, seconds=statistics.median(every), is_delegated=number != "-1" or bool(text))


def _profiled(event: Mapping[str, Any], place: int) -> tuple[tuple[str, ...], float]:
    """Return what tells an event from others, and its seconds."""
    text = event.get("delegate_debug_id_str") or ""
    name = text_of(event.get("name") or text, f"the name in row {place}")
    start, end = event.get("start_time", 0), event.get("end_time")
    seconds = seconds_of(end - start if is_int(start) and is_int(end) else None, per_second=1e9, row=place, name=name)
    key = (name, str(event.get("instruction_id", -1)), str(event.get("delegate_debug_id_int", -1)), str(text))
    return key, seconds


# ---- Inspector


def _table(payload: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a table that pandas wrote with ``to_json``, of orientation records, columns or split."""
    if isinstance(payload, list):
        yield from records_in(payload, "it")
    elif {"columns", "data"} <= payload.keys():
        names, data = payload["columns"], payload["data"]
        if not isinstance(names, list) or not isinstance(data, list) or not all(isinstance(row, list) for row in data):
            raise BadReport("its table has no lists of columns and rows")
        if any(len(row) != len(names) for row in data):
            raise BadReport("a row of its table has another length than its columns")
        yield from (dict(zip(map(str, names), row, strict=True)) for row in data)
    else:
        columns = {name: column for name, column in payload.items() if isinstance(column, dict)}
        places = columns.get("event_name", {})
        yield from ({name: column.get(place) for name, column in columns.items()} for place in places)


def _time_column(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the column of times, medians if there are some, and its unit; empty where it names none."""
    found = {}
    for name in dict.fromkeys(name for row in rows[:100] for name in row):
        if match := _COLUMN.fullmatch(name):
            found[match["what"]] = name, match["unit"] or ""
    if not found:
        raise BadReport("it has no column avg or p50 of times")
    column, unit = found.get("p50") or found["avg"]
    if unit and unit not in _PER_SECOND:
        raise BadReport(f"its times are in {unit}, and not in {listed(_PER_SECOND)}")
    return column, unit


def _inspected(row: Mapping[str, Any], column: str, unit: str, place: int) -> _Event:
    name = text_of(row.get("event_name") or "", f"the name in row {place}")
    spent = row.get(column)
    kinds = row.get("op_types") or []
    return _Event(
        name=name,
        seconds=0.0 if spent is None else seconds_of(spent, per_second=_PER_SECOND[unit], row=place, name=name),
        is_delegated=row.get("is_delegated_op") is True,
        kind=" ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds),
        modules=tuple(_modules(row.get("module_hierarchy"))),
    )


def _modules(hierarchy: object) -> Iterator[str]:
    """Yield the deepest module of each operation: ``{"conv": {"key": ["layer1.conv", "Conv2d"]}}``."""
    for stack in hierarchy.values() if isinstance(hierarchy, dict) else ():
        places = list(stack.values()) if isinstance(stack, dict) else []
        deepest = places[-1] if places else None
        path = deepest[0] if isinstance(deepest, list) and deepest else deepest
        if isinstance(path, str) and _SELF.sub("", path):
            yield _SELF.sub("", path)


def _recognises(file: ReportFile) -> bool:
    payload = file.payload
    if isinstance(payload, list):
        return any(isinstance(each, dict) and "event_name" in each for each in payload[:100])
    if not isinstance(payload, dict):
        return False
    columns = payload.get("columns")
    return (
        "run_data" in payload
        or isinstance(payload.get("event_name"), dict)
        or (isinstance(columns, list) and "event_name" in columns)
    )


EXECUTORCH = ReportFormat(
    name="executorch",
    label="ExecuTorch",
    written_by='`Inspector(etdump_path=…, etrecord=…).to_dataframe().to_json("FILE.json")`, or the ETDump itself as '
    "JSON (`flatc --json`)",
    recognises=_recognises,
    read=_read,
)
