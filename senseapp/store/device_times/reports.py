"""Reports that are JSON or CSV: which fields hold the name, the time and the type of an operation.

====================  =======================================  ==========================================
tool                  operations                               source
====================  =======================================  ==========================================
onnxruntime           kernels among the events of a profile    ``SessionOptions.enable_profiling``
trtexec               layers                                   ``trtexec --exportProfile``
Qualcomm AI Hub       layers on the device; times are whole    ``qai_hub``: ``ProfileJobResult``
                      microseconds, cycles are exact
OpenVINO              nodes of each pass, those that were      ``samples/cpp/benchmark_app/
                      optimised away among them                statistics_report.cpp``
ExecuTorch, ETDump    events of each pass, in nanoseconds      ``devtools/etdump/schema_flatcc.py``
ExecuTorch,           a table in pandas' JSON, with modules    ``devtools/inspector/_inspector.py``
Inspector             where an ETRecord was given
====================  =======================================  ==========================================

Of several passes the median counts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from senseapp.core.foreign_values import is_int
from senseapp.core.texts import listed, plural
from senseapp.store.device_times.base import (
    BadReport,
    Fields,
    Report,
    ReportFile,
    ReportFormat,
    ReportRow,
    bounded,
    medians,
    records_in,
    shape_of,
)

_ROWS_TO_RECOGNISE = 100
_Records = Sequence[Mapping[str, Any]]


def _lists(file: ReportFile, *keys: str) -> bool:
    """Return whether the file is a list of objects of which one of the first has one of ``keys``."""
    payload = file.payload if file.is_json else None
    return isinstance(payload, list) and any(
        isinstance(each, dict) and not each.keys().isdisjoint(keys) for each in payload[:_ROWS_TO_RECOGNISE]
    )


def _holds(file: ReportFile, *keys: str) -> bool:
    """Return whether the file is an object with one of ``keys``."""
    payload = file.payload if file.is_json else None
    return isinstance(payload, dict) and not payload.keys().isdisjoint(keys)


# ---- onnxruntime

_KERNEL = "_kernel_time"
_KERNELS = Fields(seconds=("dur",), per_second=1e6)


def _read_onnxruntime(file: ReportFile) -> Report:
    events = records_in(file.payload, "it")
    rows = [_kernel(event, place) for place, event in enumerate(events, 1) if _is_kernel(event)]
    if not rows:
        raise BadReport("it holds no times of kernels; profile at least one run of the network")
    return Report(rows=medians([(row.name, row)] for row in rows))


def _is_kernel(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "Node" and str(event.get("name")).endswith(_KERNEL)


def _kernel(event: Mapping[str, Any], place: int) -> ReportRow:
    """Return a kernel with the shape of its only output: ``[{"float": [1, 64, 56, 56]}]``."""
    row, about = _KERNELS.row(event, place), event.get("args")
    about = about if isinstance(about, dict) else {}
    outputs = about.get("output_type_shape")
    only = outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else None
    shape = next(iter(only.values()), None) if isinstance(only, dict) else None
    return replace(
        row,
        name=row.name.removesuffix(_KERNEL),
        kind=str(about.get("op_name", "")),
        output_shape=shape_of(shape) if isinstance(shape, list) else (),
    )


ONNXRUNTIME = ReportFormat(
    name="onnxruntime",
    label="onnxruntime",
    written_by="`SessionOptions.enable_profiling`: the JSON file that `end_profiling()` names",
    recognises=lambda file: _lists(file, "ph"),
    read=_read_onnxruntime,
)

# ---- TensorRT

_LAYERS = Fields(seconds=("medianMs", "averageMs"), per_second=1e3)


def _read_trtexec(file: ReportFile) -> Report:
    entries = enumerate(records_in(file.payload, "it"), 1)
    rows = tuple(_LAYERS.row(entry, place) for place, entry in entries if "name" in entry)
    if not rows:
        raise BadReport(f"it names no layer; write it with trtexec --dumpProfile --exportProfile={file.shown}")
    return Report(rows=rows, names_are_unique=True)


TRTEXEC = ReportFormat(
    name="trtexec",
    label="trtexec",
    written_by="`trtexec --dumpProfile --exportProfile=FILE.json`",
    recognises=lambda file: _lists(file, "averageMs", "medianMs", "timeMs", "count", "percentage"),
    read=_read_trtexec,
)

# ---- Qualcomm AI Hub

_DETAIL, _SUMMARY, _WHOLE_TIME = "execution_detail", "execution_summary", "estimated_inference_time"
_TIMES = Fields(seconds=("execution_time",), per_second=1e6, kind="type")
_CYCLES = replace(_TIMES, seconds=("execution_cycles",))


def _read_ai_hub(file: ReportFile) -> Report:
    """Read a profile job; where every time is 0, the time of the call is shared out by cycles, and a note says so."""
    layers = records_in(file.payload.get(_DETAIL), f"{_DETAIL!r} in it")
    if not layers:
        raise BadReport("it lists no layer; profile the network again, or choose a runtime that reports layers")
    summary = file.payload.get(_SUMMARY)
    spent = summary.get(_WHOLE_TIME) if isinstance(summary, dict) else None
    whole = replace(_TIMES, seconds=(_WHOLE_TIME,)).row({"name": "", _WHOLE_TIME: spent}, 0).seconds if spent else None
    known = [layer for layer in layers if layer.get("execution_time") is not None]
    rows = _rows(_TIMES, known)
    if any(row.seconds for row in rows):
        untimed = len(layers) - len(known)
        notes = (f"{plural(untimed, 'row')} of {file.shown} without a time left out.",) if untimed else ()
        return Report(rows=rows, whole_seconds=whole, names_are_unique=True, notes=notes)
    rows = _rows(_CYCLES, [{**layer, "execution_cycles": layer.get("execution_cycles") or 0} for layer in layers])
    cycles = sum(row.seconds for row in rows)
    if whole is None or not cycles:
        raise BadReport(
            "it has no times of layers; the device reported none, or the version of qai_hub that saved it left them out"
        )
    note = f"{file.shown} has cycles of layers and no times: the time of the call was shared out by cycles."
    rows = tuple(replace(row, seconds=whole * row.seconds / cycles) for row in rows)
    return Report(rows=rows, whole_seconds=whole, names_are_unique=True, notes=(note,))


def _rows(fields: Fields, records: _Records) -> tuple[ReportRow, ...]:
    return tuple(fields.row(record, place) for place, record in enumerate(records, 1))


AI_HUB = ReportFormat(
    name="ai-hub",
    label="Qualcomm AI Hub",
    written_by='`download_profile("profile.json")` of a profile job in Python (`qai_hub`)',
    recognises=lambda file: _holds(file, _DETAIL, _SUMMARY),
    read=_read_ai_hub,
)

# ---- OpenVINO

_PARTS = ("detailed_performance", "avg_performance")
_NODES = Fields(seconds=("real_time",), per_second=1e3, kind="node_type"), "status"
_LINES = Fields(name="layerName", seconds=("realTime (ms)",), per_second=1e3, kind="layerType"), "execStatus"
_EXECUTED = ("EXECUTED", "Status.EXECUTED")


def _read_openvino(file: ReportFile) -> Report:
    """Read performance counters: of one pass, of each, or of their mean."""
    fields, status = _NODES if file.is_json else _LINES
    passes = [
        [
            (row.name, row)
            for place, record in enumerate(records, 1)
            if record.get(status) in _EXECUTED
            for row in (fields.row(record, place),)
        ]
        for records in (_node_lists(file) if file.is_json else _blocks(file))
    ]
    if not any(passes):
        raise BadReport(
            "it has no times of operations that were executed; run benchmark_app with -report_type detailed_counters"
        )
    head = file.text[:2000]
    by_time = any(column in head for column in ('"%"', "; %", ";%", "proportion (%)"))
    return Report(rows=medians(passes), in_order=not by_time)


def _node_lists(file: ReportFile) -> Iterator[_Records]:
    part = next(file.payload[name] for name in _PARTS if name in file.payload)
    for each in part if isinstance(part, list) else [part]:
        nodes = each.get("nodes") if isinstance(each, dict) else None
        if isinstance(nodes, list) and nodes and all(isinstance(node, str) for node in nodes):
            raise BadReport("it names fields in place of operations, as benchmark_app of Python does; bring its CSV")
        yield records_in(nodes, "'nodes' in it")


def _blocks(file: ReportFile) -> Iterator[_Records]:
    """Yield the lines of each block of the CSV: a header, rows, and a total."""
    header: list[str] = []
    found: list[Mapping[str, Any]] = []
    fields, status = _LINES
    for place, line in file.lines():
        cells = _cells(line, ";" if ";" in line else ",")
        if cells[:1] == [fields.name]:
            if missing := [name for name in (status, fields.kind, *fields.seconds) if name not in cells]:
                raise BadReport(f"its columns lack {missing[0]}")
            if header:
                yield found
            header, found = cells, []
        elif header and any(cells) and not (cells[0].startswith("Total") and not any(cells[1:2])):
            if len(cells) != len(header):
                raise BadReport(f"line {place} has {len(cells)} cells, its header {len(header)}")
            found.append(dict(zip(header, cells, strict=True)))
    if header:
        yield found


def _cells(line: str, mark: str) -> list[str]:
    try:
        cells = next(csv.reader([line], delimiter=mark), [])
    except csv.Error as error:
        raise BadReport("a line of it cannot be read as a table") from error
    cells = [cell.strip() for cell in cells]
    return cells[:-1] if cells[-1:] == [""] and mark == ";" else cells  # some versions end lines with a mark


OPENVINO = ReportFormat(
    name="openvino",
    label="OpenVINO's benchmark_app",
    written_by="`benchmark_app -m MODEL -pc -report_type detailed_counters -report_folder FOLDER`: "
    "`benchmark_detailed_counters_report.csv`, or `.json` with `-json_stats`",
    recognises=lambda file: _holds(file, *_PARTS) if file.is_json else file.text.startswith("layerName"),
    read=_read_openvino,
)

# ---- ExecuTorch

_WHOLE, _DELEGATE = "Method::execute", "DELEGATE_CALL"
_FRAMEWORK = ("Method::init", "Program::load_method", "OPERATOR_CALL")
"""A call of a delegate contains the operations that it reports, an ``OPERATOR_CALL`` the operator before it."""
_COLUMN = re.compile(r"(?P<what>p50|avg)(?: \((?P<unit>[a-z]+)\))?")
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # units of time in a second
_SELF = re.compile(r"^(?:L\['self'\]|L__self__)[._]*")
_Event = tuple[ReportRow, bool]
"""An operation, and whether a delegate reports it."""


def _read_executorch(file: ReportFile) -> Report:
    if isinstance(file.payload, dict) and "run_data" in file.payload:
        notes: tuple[str, ...] = (f"Times in {file.shown} were taken as nanoseconds, which the runtime counts.",)
        return _executed(_of_etdump(file.payload["run_data"]), notes)
    records = bounded(list(_table(file.payload)))
    column, unit = _time_column(records)
    notes = () if unit else (f"The columns of {file.shown} name no unit: times were taken as ms, the Inspector's.",)
    fields = Fields(name="event_name", seconds=(column,), per_second=_PER_SECOND[unit or "ms"])
    return _executed([_inspected(record, fields, place) for place, record in enumerate(records, 1)], notes)


def _executed(events: Sequence[_Event], notes: tuple[str, ...]) -> Report:
    whole = sum(row.seconds for row, _ in events if row.name == _WHOLE) or None
    inside = (*_FRAMEWORK, _WHOLE, *((_DELEGATE,) if any(is_delegated for _, is_delegated in events) else ()))
    rows = tuple(replace(row, kind=row.kind or row.name) for row, _ in events if row.name not in inside)
    if not rows:
        raise BadReport("it has no times of operations; build the runtime with its event tracer")
    spent = sum(row.seconds for row in rows)
    # operations that take longer than this multiple of the call are in another unit
    if whole is not None and spent > 2.0 * whole:
        raise BadReport(
            f"its operations take {spent / whole:.3g} times as long as the call, so its delegate counts in another "
            "unit; convert it with delegate_time_scale_converter of the Inspector"
        )
    return Report(rows=rows, whole_seconds=whole, notes=notes)


def _of_etdump(runs: object) -> list[_Event]:
    """Return the operations of all passes; an event is told by its instruction and its number in the delegate."""
    fields = Fields(seconds=("spent",), per_second=1e9)
    delegated: dict[object, bool] = {}
    passes: list[list[tuple[object, ReportRow]]] = []
    for run in records_in(runs, "'run_data' in it"):
        events = [event.get("profile_event") for event in records_in(run.get("events") or [], "'events' in it")]
        passes.append([])
        for place, event in enumerate((each for each in events if isinstance(each, dict)), 1):
            start, end = event.get("start_time", 0), event.get("end_time")
            spent = end - start if is_int(start) and is_int(end) else None
            inside = event.get("delegate_debug_id_str") or ""
            row = fields.row({"name": event.get("name") or inside, "spent": spent}, place)
            number = str(event.get("delegate_debug_id_int", -1))
            key = (row.name, str(event.get("instruction_id", -1)), number, str(inside))
            delegated[key] = number != "-1" or bool(inside)
            passes[-1].append((key, row))
    return list(zip(medians(passes), delegated.values(), strict=True))


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


def _time_column(rows: _Records) -> tuple[str, str]:
    """Return the column of times, medians if there are some, and its unit; empty where it names none."""
    found = {}
    for name in dict.fromkeys(name for row in rows[:_ROWS_TO_RECOGNISE] for name in row):
        if match := _COLUMN.fullmatch(name):
            found[match["what"]] = name, match["unit"] or ""
    if not found:
        raise BadReport("it has no column avg or p50 of times")
    column, unit = found.get("p50") or found["avg"]
    if unit and unit not in _PER_SECOND:
        raise BadReport(f"its times are in {unit}, and not in {listed(_PER_SECOND)}")
    return column, unit


def _inspected(record: Mapping[str, Any], fields: Fields, place: int) -> _Event:
    (column,) = fields.seconds
    spent = 0 if record.get(column) is None else record[column]
    row = fields.row({"event_name": record.get("event_name") or "", column: spent}, place)
    kinds = record.get("op_types") or []
    kind = " ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds)
    modules = tuple(_modules(record.get("module_hierarchy")))
    return replace(row, kind=kind, modules=modules), record.get("is_delegated_op") is True


def _modules(hierarchy: object) -> Iterator[str]:
    """Yield the deepest module of each operation: ``{"conv": {"key": ["layer1.conv", "Conv2d"]}}``."""
    for stack in hierarchy.values() if isinstance(hierarchy, dict) else ():
        places = list(stack.values()) if isinstance(stack, dict) else []
        deepest = places[-1] if places else None
        path = deepest[0] if isinstance(deepest, list) and deepest else deepest
        if isinstance(path, str) and _SELF.sub("", path):
            yield _SELF.sub("", path)


def _is_of_executorch(file: ReportFile) -> bool:
    if _lists(file, "event_name") or _holds(file, "run_data"):
        return True
    payload = file.payload if isinstance(file.payload, dict) else {}
    columns = payload.get("columns")
    return isinstance(payload.get("event_name"), dict) or (isinstance(columns, list) and "event_name" in columns)


EXECUTORCH = ReportFormat(
    name="executorch",
    label="ExecuTorch",
    written_by='`Inspector(etdump_path=…, etrecord=…).to_dataframe().to_json("FILE.json")`, or the ETDump itself as '
    "JSON (`flatc --json`)",
    recognises=_is_of_executorch,
    read=_read_executorch,
)
