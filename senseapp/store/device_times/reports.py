"""Reports of single tools: which fields hold the name, the time and the type of an operation.

====================  =======================================  ==========================================
tool                  operations                               source
====================  =======================================  ==========================================
onnxruntime           kernels among the events of a profile    ``SessionOptions.enable_profiling``
trtexec               layers                                   ``trtexec --exportProfile``
Qualcomm AI Hub       layers on the device; times are whole    ``qai_hub``: ``ProfileJobResult``
                      microseconds
OpenVINO              nodes of each pass, those that were      ``samples/cpp/benchmark_app/
                      optimised away among them                statistics_report.cpp``
TFLite                tables under *Run Order*, of the         ``core/util/stats_calculator.cc``,
                      initialisation and of the runs           ``lite/profiling/profile_summary_formatter.cc``
====================  =======================================  ==========================================

Of several passes the median counts.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from senseapp.core.foreign_values import BadValue, is_int, mapping, number, whole
from senseapp.core.texts import plural, printable
from senseapp.networks.onnx.names import modules_in
from senseapp.store.device_times.base import (
    MOST_SECONDS,
    Fields,
    Records,
    Report,
    ReportFile,
    ReportFormat,
    ReportRow,
    medians,
    records_in,
)

# ---- onnxruntime

_KERNEL = "_kernel_time"
_KERNELS = Fields(seconds=("dur",), per_second=1e6)


def _read_onnxruntime(file: ReportFile) -> Report:
    rows = [
        _kernel(event, place)
        for place, event in enumerate(records_in(file.payload, "it"), 1)
        if event.get("cat") == "Node" and str(event.get("name")).endswith(_KERNEL)
    ]
    if not rows:
        raise BadValue("it holds no times of kernels; profile at least one run of the network")
    return Report(rows=medians([(row.name, row)] for row in rows))


def _kernel(event: Mapping[str, Any], place: int) -> ReportRow:
    """Return a kernel with the shape of its only output: ``[{"float": [1, 64, 56, 56]}]``."""
    row, about = _KERNELS.row(event, place), event.get("args")
    about = about if isinstance(about, dict) else {}
    outputs = about.get("output_type_shape")
    only = outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else None
    shape = next(iter(only.values()), None) if isinstance(only, dict) else None
    if not isinstance(shape, list) or not all(is_int(size) and size >= 0 for size in shape):
        shape = []
    name, kind = row.name.removesuffix(_KERNEL), str(about.get("op_name", ""))
    return replace(row, name=name, kind=kind, output_shape=tuple(shape[1:]))


ONNXRUNTIME = ReportFormat(
    name="onnxruntime",
    label="onnxruntime",
    written_by="`SessionOptions.enable_profiling`: the JSON file that `end_profiling()` names",
    recognises=lambda file: isinstance(file.payload, list) and file.holds("ph"),
    read=_read_onnxruntime,
)

# ---- TensorRT

_LAYERS = Fields(seconds=("medianMs", "averageMs"), per_second=1e3)


def _read_trtexec(file: ReportFile) -> Report:
    rows = _LAYERS.rows(entry for entry in records_in(file.payload, "it") if "name" in entry)
    if not rows:
        raise BadValue(f"it names no layer; write it with trtexec --dumpProfile --exportProfile={file.shown}")
    return Report(rows=rows)


TRTEXEC = ReportFormat(
    name="trtexec",
    label="trtexec",
    written_by="`trtexec --dumpProfile --exportProfile=FILE.json`",
    recognises=lambda file: (
        isinstance(file.payload, list) and file.holds("averageMs", "medianMs", "timeMs", "count", "percentage")
    ),
    read=_read_trtexec,
)

# ---- Qualcomm AI Hub

_DETAIL, _SUMMARY, _WHOLE_TIME = "execution_detail", "execution_summary", "estimated_inference_time"
_TIMES = Fields(seconds=("execution_time",), per_second=1e6, kind="type", processor="compute_unit")


def _read_ai_hub(file: ReportFile) -> Report:
    """Read a profile job; layers without a time are left out, and a note counts them."""
    layers = records_in(file.payload.get(_DETAIL), f"{_DETAIL!r} in it")
    summary = file.payload.get(_SUMMARY)
    spent = summary.get(_WHOLE_TIME) if isinstance(summary, dict) else None
    call = replace(_TIMES, seconds=(_WHOLE_TIME,)).row({_WHOLE_TIME: spent}, 0).seconds if spent else None
    if not any(layer.get("execution_time") for layer in layers):
        raise BadValue("it has no times of layers, which the device did not report or rounded to 0 microseconds")
    rows = _TIMES.rows(known := [layer for layer in layers if layer.get("execution_time") is not None])
    untimed = len(layers) - len(known)
    notes = (f"{plural(untimed, 'row')} of {file.shown} without a time left out.",) if untimed else ()
    return Report(rows=rows, whole_seconds=call, notes=notes)


AI_HUB = ReportFormat(
    name="ai-hub",
    label="Qualcomm AI Hub",
    written_by='`download_profile("profile.json")` of a profile job in Python (`qai_hub`)',
    recognises=lambda file: isinstance(file.payload, dict) and file.holds(_DETAIL, _SUMMARY),
    read=_read_ai_hub,
)

# ---- OpenVINO

_PARTS = ("detailed_performance", "avg_performance")
_NODES = Fields(seconds=("real_time",), per_second=1e3, kind="node_type"), "status"
_LINES = Fields(name="layerName", seconds=("realTime (ms)",), per_second=1e3, kind="layerType"), "execStatus"
_EXECUTED = ("EXECUTED", "Status.EXECUTED")


def _read_openvino(file: ReportFile) -> Report:
    """Read performance counters: of one pass, of each, or of their mean."""
    is_json = file.payload is not None
    fields, status = _NODES if is_json else _LINES
    passes = [
        fields.rows(record for record in records if record.get(status) in _EXECUTED)
        for records in (_node_lists(file) if is_json else _blocks(file))
    ]
    if not any(passes):
        raise BadValue(
            "it has no times of operations that were executed; run benchmark_app with -report_type detailed_counters"
        )
    by_time = any(column in file.text[:2000] for column in ('"%"', "; %", ";%", "proportion (%)"))
    return Report(rows=medians([(row.name, row) for row in rows] for rows in passes), in_order=not by_time)


def _node_lists(file: ReportFile) -> Iterator[Records]:
    part = next(file.payload[name] for name in _PARTS if name in file.payload)
    for each in part if isinstance(part, list) else [part]:
        nodes = mapping(each, "a part of it").get("nodes")
        if isinstance(nodes, list) and nodes and all(isinstance(node, str) for node in nodes):
            raise BadValue("it names fields in place of operations, as benchmark_app of Python does; bring its CSV")
        yield records_in(nodes, "'nodes' in it")


def _blocks(file: ReportFile) -> Iterator[Records]:
    """Yield the lines of each block of the CSV: a header, rows, and a total."""
    fields, status = _LINES
    header: list[str] = []
    found: list[dict[str, str]] = []
    mark = ";" if ";" in file.text[:2000] else ","
    for cells in _cells(file, mark):
        if cells[0] == fields.name:
            if missing := [name for name in (status, fields.kind, *fields.seconds) if name not in cells]:
                raise BadValue(f"its columns lack {missing[0]}")
            yield records_in(found, "a block of it")
            header, found = cells, []
        elif not cells[0].startswith("Total") or any(cells[1:2]):
            if len(cells) != len(header):
                raise BadValue(f"the row of {printable(cells[0])} has {len(cells)} cells, its header {len(header)}")
            found.append(dict(zip(header, cells, strict=True)))
    yield records_in(found, "a block of it")


def _cells(file: ReportFile, mark: str) -> Iterator[list[str]]:
    """Yield the cells of the lines; some versions end lines with a mark, and put one into quotes of its own."""
    for cells in file.cells(mark):
        if mark == ";" and cells[-1:] == [""]:
            cells.pop()
        if any(cells):
            yield cells


OPENVINO = ReportFormat(
    name="openvino",
    label="OpenVINO's benchmark_app",
    written_by="`benchmark_app -m MODEL -pc -report_type detailed_counters -report_folder FOLDER`: "
    "`benchmark_detailed_counters_report.csv`, or `.json` with `-json_stats`",
    recognises=lambda file: (
        file.text.startswith("layerName") or (isinstance(file.payload, dict) and file.holds(*_PARTS))
    ),
    read=_read_openvino,
)

# ---- TFLite

_HEADING, _ORDER = "=====", "Run Order"
_RUNS = "Profiling Info for Regular Benchmark Runs"
_INTERNAL, _SUBGRAPH = "Delegate internal:", "Subgraph ("
_MEANS = Fields(seconds=("mean",), per_second=1e3, kind="kind")
_LOG = ("INFO", "WARNING", "ERROR", "VERBOSE")
_PLACE = re.compile(r"\]?(?::\d{1,9})?$")  # after a name: its place in the run
_PRODUCT = re.compile("conv|fully|matmul", re.IGNORECASE)
_CALL = re.compile(r"nference timings in us:.{0,120}?\bInference(?: \(avg\))?: ([^\s,]{1,40})")


def _read_tflite(file: ReportFile) -> Report:
    """Read the tables of the runs, a delegate's own operations in place of its calls, and the mean time of a call."""
    tables = list(_tables(file))
    own = next((rows for kind, rows in tables if rows and not kind), [])
    internal = [row for kind, rows in tables if kind == _INTERNAL for row in rows]
    has_subgraphs = any(kind == _SUBGRAPH for kind, _ in tables)
    printed = _CALL.search(file.text)
    call = number(printed[1], "the time of a call", least=0, most=1e6 * MOST_SECONDS) / 1e6 if printed else None
    if not own and call is None:
        raise BadValue("it has no operations under Run Order; run benchmark_model with --enable_op_profiling=true")
    notes = (f"Subgraphs in {file.shown} count within the operations that call them.",) if has_subgraphs else ()
    whole_seconds = sum(row.seconds for row in own) if call is None else call
    rows, in_order = _with_internal(own, internal)
    return Report(rows=tuple(rows), whole_seconds=whole_seconds, in_order=in_order, notes=notes)


def _with_internal(rows: list[ReportRow], internal: list[ReportRow]) -> tuple[list[ReportRow], bool]:
    """Return ``rows`` with a delegate's own in place of its calls, and whether they are in running order."""
    calls = [place for place, row in enumerate(rows) if "delegate" in row.kind.lower()] if internal else []
    if not calls:
        return rows, True
    others = [row for place, row in enumerate(rows) if place not in set(calls)]
    in_order = len(calls) == 1 or not any(_PRODUCT.search(row.kind) for row in others)
    return [*rows[: calls[0]], *internal, *others[calls[0] :]], in_order


def _tables(file: ReportFile) -> Iterator[tuple[str, list[ReportRow]]]:
    """Yield the rows of each table under *Run Order*, with what it is of; a table ends at an empty line or heading."""
    kind, of_runs = "", _RUNS not in file.text
    header: list[str] | None = None
    rows: list[ReportRow] = []
    for line in (*file.lines(), ""):
        of_runs = of_runs or _RUNS in line
        kind = next((mark for mark in (_INTERNAL, _SUBGRAPH) if mark in line), kind)
        if _HEADING in line or not line.strip():
            yield kind, rows
            header, rows = [] if _ORDER in line and of_runs else None, []
        elif header is not None and not line.startswith(_LOG):
            if header:
                rows.append(_operation(line, header, len(rows) + 1))
            else:
                header = [cell.strip("[]") for cell in _parted(line)]


def _parted(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().split("\t" if "\t" in line else ",")]


def _operation(line: str, header: list[str], place: int) -> ReportRow:
    """Return a row of a table; its kind and its name may hold the mark that separates cells."""
    cells = _parted(line)
    first = next((index for index, cell in enumerate(cells) if index and cell[:1].isdigit()), 0)
    figures = dict(zip(header[1:-1], cells[first:], strict=False))
    mean = next((figures[column] for column in figures if column.startswith("avg")), None)
    name = ", ".join(cells[first + len(header) - 2 :])
    if not first or not name:
        raise BadValue(f"row {place} of its table is no operation with its times, but {printable(line)}")
    told = {"name": _PLACE.sub("", name, count=1).removeprefix("["), "mean": mean, "kind": ", ".join(cells[:first])}
    row = replace(_MEANS.row(told, place), modules=modules_in(name))
    called = whole(figures.get("times called"), f"how often row {place} is called", most=10**6)
    return replace(row, seconds=row.seconds * max(1, called))


TFLITE = ReportFormat(
    name="tflite",
    label="TFLite's benchmark_model",
    written_by="`benchmark_model --graph=MODEL.tflite --enable_op_profiling=true`: what it prints, or the file of "
    "`--profiling_output_csv_file`",
    recognises=lambda file: file.payload is None and (_ORDER in file.text or _CALL.search(file.text) is not None),
    read=_read_tflite,
)
