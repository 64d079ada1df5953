"""Reports of Vela, Arm's compiler for Ethos-U: what it prints, or its summary as CSV (``ethosu/vela/stats_writer.py``).

All times are its own estimates: cycles divided by the clock. Operators on the CPU have none.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from senseapp.core.foreign_values import BadValue, number
from senseapp.core.texts import plural, printable
from senseapp.networks.onnx.names import modules_in
from senseapp.store.device_times.base import MOST_SECONDS, Fields, Report, ReportFile, ReportFormat

_SUMMARY, _ON_CPU = "experiment,network,", "CPU"
_ORIGINAL, _KIND = "Original Operator", "NNG Operator"
_PRODUCTS = ("Conv2D", "DepthwiseConv2D", "FullyConnected")
_FIELDS = Fields(name="Name", seconds=("Op Cycles",), per_second=1e6, kind=_KIND, processor="Target")
_ACCELERATOR = re.compile(r"^Accelerator configuration {1,99}(\S{1,80})", re.MULTILINE)
_CLOCK = re.compile(r"^Accelerator clock {1,99}(\d{1,9}) MHz", re.MULTILINE)
_CALL = re.compile(r"^Total cycles {1,99}(\d{1,18}) cycles", re.MULTILINE)


def _read(file: ReportFile) -> Report:
    if file.text.startswith(_SUMMARY):
        return _of_summary(file)
    clock, call = _CLOCK.search(file.text), _CALL.search(file.text)
    rows = list(_rows(file))
    if clock is None or not (rows or call):
        raise BadValue("it has no cycles; run vela with --verbose-performance and --verbose-cycle-estimate")
    hertz = 1e6 * number(clock[1], "the clock in MHz", least=1)
    fields = replace(_FIELDS, per_second=hertz)
    read = tuple(replace(fields.row(row, place), modules=modules_in(row["Name"])) for place, row in enumerate(rows, 1))
    return Report(
        rows=read,
        whole_seconds=None if call is None else number(call[1], "the cycles", most=MOST_SECONDS * hertz) / hertz,
        is_estimate=True,
        notes=_notes(file, hertz, sum(row.processor == _ON_CPU for row in read)),
    )


def _notes(file: ReportFile, hertz: float, on_cpu: int) -> tuple[str, ...]:
    found = _ACCELERATOR.search(file.text)
    where = printable(found[1]) if found is not None else "an Ethos-U"
    said = f"{file.shown} is an estimate of Vela for {where} at {hertz / 1e6:.0f} MHz, not a measurement."
    return (said, f"{plural(on_cpu, 'operator')} run on the CPU, without an estimate.") if on_cpu else (said,)


def _rows(file: ReportFile) -> Iterator[Mapping[str, str]]:
    """Yield the rows of the printed table: heads are above dashes, and only the last cell may hold blanks."""
    header, names = "", list[str]()
    for line in file.lines():
        if line.startswith(f"{_ORIGINAL} "):
            header, names = line, []
        elif header and not line.strip():
            return
        elif header and not names:
            names = [header[slice(*match.span())].strip() for match in re.finditer("-+", line)]
            if missing := [name for name in ("Name", "Op Cycles", "Target", _KIND) if name not in names]:
                raise BadValue(f"its table lacks the column {missing[0]}")
        elif names:
            cells = line.rstrip().split(maxsplit=len(names) - 1)
            if len(cells) != len(names):
                raise BadValue(f"a row of its table has {len(cells)} of {len(names)} cells")
            row = dict(zip(names, cells, strict=True))
            # a mean is computed as a depthwise product
            yield row | {_KIND: row[_ORIGINAL]} if row[_KIND] in _PRODUCTS else row


def _of_summary(file: ReportFile) -> Report:
    """Read the time of a call of the first network of a summary."""
    lines = file.lines()
    try:
        heads, cells = (next(csv.reader([next(lines, "")]), []) for _ in range(2))
    except csv.Error as error:
        raise BadValue("it cannot be read as a table") from error
    row = dict(zip(heads, cells, strict=False))
    seconds = number(row.get("inference_time"), "inference_time", least=0, most=MOST_SECONDS)
    hertz = number(row.get("core_clock"), "core_clock", least=1)
    where = printable(row.get("accelerator_configuration", ""))
    said = f"{file.shown} is an estimate of Vela for {where} at {hertz / 1e6:.0f} MHz, not a measurement."
    return Report(rows=(), whole_seconds=seconds, is_estimate=True, notes=(said,))


VELA = ReportFormat(
    name="vela",
    label="Vela (Ethos-U)",
    written_by="`vela MODEL.tflite --verbose-performance --verbose-cycle-estimate`: what it prints; or its "
    "`…_summary_….csv`, with the time of a call only. Estimates",
    recognises=lambda file: (
        file.payload is None and (file.text.startswith(_SUMMARY) or _ACCELERATOR.search(file.text) is not None)
    ),
    read=_read,
)
