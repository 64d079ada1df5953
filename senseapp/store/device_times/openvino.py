"""Performance counters of OpenVINO's ``benchmark_app``: CSV or JSON, of one pass, of each, or of their mean.

Every pass is a block of its own in the CSV and an object of its own in the JSON. Operations that were optimised away
have no time, and are no rows.

Source: OpenVINO, ``samples/cpp/benchmark_app/statistics_report.cpp`` and its namesake in Python.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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

_PARTS = ("detailed_performance", "avg_performance")
_LAYER, _STATUS, _KIND, _SPENT = "layerName", "execStatus", "layerType", "realTime (ms)"
_EXECUTED = ("EXECUTED", "Status.EXECUTED")
_Pass = list[tuple[str, str, float]]
"""Names, types and seconds of the operations of one pass."""


def _read(file: ReportFile) -> Report:
    passes = list(_json_passes(file) if file.is_json else _csv_passes(file))
    if not any(passes):
        raise BadReport(
            "it has no times of operations that were executed; run benchmark_app with -report_type detailed_counters"
        )
    bounded([row for each in passes for row in each])
    spent: defaultdict[str, list[float]] = defaultdict(list)
    kinds: dict[str, str] = {}
    for each in passes:
        together: defaultdict[str, float] = defaultdict(float)
        for name, kind, seconds in each:
            together[name] += seconds
            kinds.setdefault(name, kind)
        for name, seconds in together.items():
            spent[name].append(seconds)
    rows = (ReportRow(name=name, seconds=statistics.median(every), kind=kinds[name]) for name, every in spent.items())
    return Report(rows=tuple(rows), in_order=not _is_sorted(file))


def _is_sorted(file: ReportFile) -> bool:
    """Return whether operations come by their time, and not as they ran."""
    head = file.text[:2000]
    return '"%"' in head or "; %" in head or ";%" in head or "proportion (%)" in head


# ---- CSV


def _csv_passes(file: ReportFile) -> Iterator[_Pass]:
    """Yield the operations of each block: a header, rows, and a total."""
    header: list[str] = []
    found: _Pass = []
    for place, line in file.lines():
        cells = _cells(line, ";" if ";" in line else ",")
        if cells[:1] == [_LAYER]:
            if missing := [name for name in (_STATUS, _KIND, _SPENT) if name not in cells]:
                raise BadReport(f"its columns lack {missing[0]}")
            if header:
                yield found
            header, found = cells, []
        elif header and not _is_total(cells):
            found += _row(header, cells, place)
    if header:
        yield found


def _is_total(cells: Sequence[str]) -> bool:
    """Return whether a line is the end of a block: nothing, a sum, or a sentence with one."""
    return not any(cells) or (cells[0].startswith("Total") and (len(cells) == 1 or not cells[1]))


def _cells(line: str, mark: str) -> list[str]:
    try:
        cells = next(csv.reader([line], delimiter=mark), [])
    except csv.Error as error:
        raise BadReport("a line of it cannot be read as a table") from error
    cells = [cell.strip() for cell in cells]
    return cells[:-1] if cells[-1:] == [""] and mark == ";" else cells  # older versions end lines with a mark


def _row(header: Sequence[str], cells: Sequence[str], place: int) -> _Pass:
    if len(cells) != len(header):
        raise BadReport(f"line {place} has {len(cells)} cells, its header {len(header)}")
    row = dict(zip(header, cells, strict=True))
    if row[_STATUS] not in _EXECUTED:
        return []
    return [(row[_LAYER], row[_KIND], seconds_of(row[_SPENT], per_second=1e3, row=place, name=row[_LAYER]))]


# ---- JSON


def _json_passes(file: ReportFile) -> Iterator[_Pass]:
    part = next(file.payload[name] for name in _PARTS if name in file.payload)
    for each in part if isinstance(part, list) else [part]:
        nodes = each.get("nodes") if isinstance(each, dict) else None
        if isinstance(nodes, list) and nodes and all(isinstance(node, str) for node in nodes):
            raise BadReport("it names fields in place of operations, as benchmark_app of Python does; bring its CSV")
        yield [_node(node, place) for place, node in enumerate(records_in(nodes, "'nodes' in it"), 1) if _ran(node)]


def _ran(node: Mapping[str, Any]) -> bool:
    return node.get("status") in _EXECUTED


def _node(node: Mapping[str, Any], place: int) -> tuple[str, str, float]:
    name = text_of(node.get("name"), f"the name in row {place}")
    kind = text_of(node.get("node_type", ""), f"the type in row {place}")
    return name, kind, seconds_of(node.get("real_time"), per_second=1e3, row=place, name=name)


def _recognises(file: ReportFile) -> bool:
    if file.is_json:
        return isinstance(file.payload, dict) and any(name in file.payload for name in _PARTS)
    return file.text.startswith(_LAYER)


OPENVINO = ReportFormat(
    name="openvino",
    label="OpenVINO's benchmark_app",
    written_by="`benchmark_app -m MODEL -pc -report_type detailed_counters -report_folder FOLDER`: "
    "`benchmark_detailed_counters_report.csv`, or `.json` with `-json_stats`",
    recognises=_recognises,
    read=_read,
)
