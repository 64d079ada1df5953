"""Reports of ExecuTorch, and of Vela, Arm's compiler for Ethos-U.

ExecuTorch: an ETDump as JSON holds the events of each pass, in nanoseconds (``devtools/etdump/schema_flatcc.py``); the
Inspector's table in pandas' JSON (``devtools/inspector/_inspector.py``) has medians, and the modules of operations
where an ETRecord was given.

Vela: what it prints, or its summary as CSV (``ethosu/vela/stats_writer.py``). All times are its own estimates: cycles
divided by the clock. Operators on the CPU have none.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from senseapp.core.foreign_values import BadValue, is_int, mapping, number
from senseapp.core.texts import listed, plural, printable
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

_WHOLE, _DELEGATE = "Method::execute", "DELEGATE_CALL"
_FRAMEWORK = ("Method::init", "Program::load_method", "OPERATOR_CALL")
"""A call of a delegate contains the operations that it reports, an ``OPERATOR_CALL`` the operator before it."""
_EVENTS = Fields(seconds=("spent",), per_second=1e9)
_COLUMN = re.compile(r"(?P<what>p50|avg)(?: \((?P<unit>[a-z]+)\))?")
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # units of time in a second
_SELF = re.compile(r"^(?:L\['self'\]|L__self__)[._]*")
_Event = tuple[ReportRow, bool]
"""An operation, and whether a delegate reports it."""


def _read_executorch(file: ReportFile) -> Report:
    if isinstance(file.payload, dict) and "run_data" in file.payload:
        return _executed(_of_etdump(file.payload["run_data"]), ())
    records = records_in(_table(file.payload), "it")
    column, unit = _time_column(records)
    notes = () if unit else (f"The columns of {file.shown} name no unit: times were taken as ms, the Inspector's.",)
    fields = Fields(name="event_name", seconds=(column,), per_second=_PER_SECOND[unit or "ms"])
    return _executed([_inspected(record, fields, place) for place, record in enumerate(records, 1)], notes)


def _executed(events: Sequence[_Event], notes: tuple[str, ...]) -> Report:
    call = sum(row.seconds for row, _ in events if row.name == _WHOLE) or None
    inside = (*_FRAMEWORK, _WHOLE, *((_DELEGATE,) if any(is_delegated for _, is_delegated in events) else ()))
    rows = tuple(replace(row, kind=row.kind or row.name) for row, _ in events if row.name not in inside)
    if not rows:
        raise BadValue("it has no times of operations; build the runtime with its event tracer")
    spent = sum(row.seconds for row in rows)
    # operations that take longer than this multiple of the call are in another unit
    if call is not None and spent > 2.0 * call:
        raise BadValue(
            f"its operations take {spent / call:.3g} times as long as the call, so its delegate counts in another "
            "unit; convert it with delegate_time_scale_converter of the Inspector"
        )
    return Report(rows=rows, whole_seconds=call, notes=notes)


def _of_etdump(runs: object) -> list[_Event]:
    """Return the operations of all passes; an event is told by its instruction and its number in the delegate."""
    delegated: dict[tuple[str, ...], bool] = {}
    passes: list[list[tuple[tuple[str, ...], ReportRow]]] = []
    for run in records_in(runs, "'run_data' in it"):
        events = [event.get("profile_event") for event in records_in(run.get("events") or [], "'events' in it")]
        passes.append([])
        for place, event in enumerate((each for each in events if isinstance(each, dict)), 1):
            start, end = event.get("start_time", 0), event.get("end_time")
            spent = end - start if is_int(start) and is_int(end) else None
            inside = event.get("delegate_debug_id_str") or ""
            row = _EVENTS.row({"name": event.get("name") or inside, "spent": spent}, place)
            number = str(event.get("delegate_debug_id_int", -1))
            key = (row.name, str(event.get("instruction_id", -1)), number, str(inside))
            delegated[key] = number != "-1" or bool(inside)
            passes[-1].append((key, row))
    return list(zip(medians(passes), delegated.values(), strict=True))


def _table(payload: Any) -> list[Any]:
    """Return the rows of a table that pandas wrote with ``to_json``, of orientation records or columns."""
    if isinstance(payload, list):
        return payload
    columns = {name: column for name, column in payload.items() if isinstance(column, dict)}
    if len(columns) > 100:  # the Inspector writes some twenty
        raise BadValue(f"its table has {len(columns):,} columns")
    places = mapping(columns.get("event_name"), "event_name")
    return [{name: column.get(place) for name, column in columns.items()} for place in places]


def _time_column(rows: Records) -> tuple[str, str]:
    """Return the column of times, medians if there are some, and its unit; empty where it names none."""
    found = {match["what"]: match for name in (rows[0] if rows else ()) if (match := _COLUMN.fullmatch(name))}
    if not found:
        raise BadValue("it has no column avg or p50 of times")
    chosen = found.get("p50") or found["avg"]
    if chosen["unit"] not in (None, *_PER_SECOND):
        raise BadValue(f"its times are in {chosen['unit']}, and not in {listed(_PER_SECOND)}")
    return chosen[0], chosen["unit"] or ""


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


EXECUTORCH = ReportFormat(
    name="executorch",
    label="ExecuTorch",
    written_by='`Inspector(etdump_path=…, etrecord=…).to_dataframe().to_json("FILE.json")`, or the ETDump itself as '
    "JSON (`flatc --json`)",
    recognises=lambda file: file.holds("event_name", "run_data"),
    read=_read_executorch,
)


_SUMMARY, _ON_CPU = "experiment,network,", "CPU"
_ORIGINAL, _KIND = "Original Operator", "NNG Operator"
_PRODUCTS = ("Conv2D", "DepthwiseConv2D", "FullyConnected")
_FIELDS = Fields(name="Name", seconds=("Op Cycles",), per_second=1e6, kind=_KIND, processor="Target")
_ACCELERATOR = re.compile(r"^Accelerator configuration {1,99}(\S{1,80})", re.MULTILINE)
_CLOCK = re.compile(r"^Accelerator clock {1,99}(\d{1,9}) MHz", re.MULTILINE)
_CALL = re.compile(r"^Total cycles {1,99}(\d{1,18}) cycles", re.MULTILINE)


def _read_vela(file: ReportFile) -> Report:
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
    row = dict(zip(*islice(chain(file.cells(), [[], []]), 2), strict=False))
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
    read=_read_vela,
)
