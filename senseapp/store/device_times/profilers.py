"""Profiles that onnxruntime and TensorRT write of a network: JSON lists of events or of layers."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from senseapp.store.device_times.base import (
    BadReport,
    Report,
    ReportFile,
    ReportFormat,
    ReportRow,
    records_in,
    seconds_of,
    shape_of,
    text_of,
)

_KERNEL = "_kernel_time"


def _has(file: ReportFile, *keys: str) -> bool:
    """Return whether the file is a list of objects of which one of the first has one of ``keys``."""
    payload = file.payload if file.text.startswith("[") else None
    return isinstance(payload, list) and any(
        isinstance(each, dict) and any(key in each for key in keys) for each in payload[:100]
    )


def _read_onnxruntime(file: ReportFile) -> Report:
    """Read the JSON of onnxruntime's ``enable_profiling``: the median of each kernel over all runs."""
    spent: defaultdict[str, list[float]] = defaultdict(list)
    about: dict[str, Mapping[str, Any]] = {}
    for place, event in enumerate(records_in(file.payload, "it"), 1):
        name = event.get("name")
        if event.get("cat") != "Node" or not isinstance(name, str) or not name.endswith(_KERNEL):
            continue
        name = name.removesuffix(_KERNEL)
        spent[name].append(seconds_of(event.get("dur"), per_second=1e6, row=place, name=name))
        arguments = event.get("args")
        about.setdefault(name, arguments if isinstance(arguments, dict) else {})
    if not spent:
        raise BadReport("it holds no times of kernels; profile at least one run of the network")
    rows = (
        ReportRow(
            name=name,
            seconds=statistics.median(each),
            kind=str(about[name].get("op_name", "")),
            output_shape=_output_shape(about[name]),
        )
        for name, each in spent.items()
    )
    return Report(rows=tuple(rows))


def _output_shape(about: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a kernel's only output for one image: ``[{"float": [1, 64, 56, 56]}]``."""
    outputs = about.get("output_type_shape")
    if not isinstance(outputs, list) or len(outputs) != 1 or not isinstance(outputs[0], dict):
        return ()
    shape = next(iter(outputs[0].values()), None)
    return shape_of(shape) if isinstance(shape, list) else ()


def _read_trtexec(file: ReportFile) -> Report:
    """Read the JSON of ``trtexec --exportProfile``: the median of each layer, where it has one, else the mean."""
    rows = []
    for place, entry in enumerate(records_in(file.payload, "it"), 1):
        if "name" not in entry:
            continue
        name = text_of(entry["name"], f"the name in row {place}")
        spent = entry.get("medianMs", entry.get("averageMs"))
        rows.append(ReportRow(name=name, seconds=seconds_of(spent, per_second=1e3, row=place, name=name)))
    if not rows:
        raise BadReport(f"it names no layer; write it with trtexec --dumpProfile --exportProfile={file.shown}")
    return Report(rows=tuple(rows), names_are_unique=True)


ONNXRUNTIME = ReportFormat(
    name="onnxruntime",
    label="onnxruntime",
    written_by="`SessionOptions.enable_profiling`: the JSON file that `end_profiling()` names",
    recognises=lambda file: _has(file, "ph"),
    read=_read_onnxruntime,
)
TRTEXEC = ReportFormat(
    name="trtexec",
    label="trtexec",
    written_by="`trtexec --dumpProfile --exportProfile=FILE.json`",
    recognises=lambda file: _has(file, "averageMs", "medianMs", "timeMs", "count", "percentage"),
    read=_read_trtexec,
)
