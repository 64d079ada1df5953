"""Profile jobs of Qualcomm AI Hub: JSON with a summary of the call and one entry per layer.

Times are whole microseconds, 0 for what is quicker; layers on the NPU also have the cycles they take. Where every time
is 0, the time of the call is shared out by cycles, and a note says so.

Source: the client ``qai_hub``, ``ProfileJob.download_profile``, and its ``ProfileJobResult``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from senseapp.core.texts import plural
from senseapp.store.device_times.base import (
    BadReport,
    Report,
    ReportFile,
    ReportFormat,
    ReportRow,
    records_in,
    seconds_of,
    text_of,
)

_DETAIL, _SUMMARY = "execution_detail", "execution_summary"
_TIME, _CYCLES, _WHOLE = "execution_time", "execution_cycles", "estimated_inference_time"
_MICROSECONDS = 1e6  # in a second: the unit of its reports


def _recognises(file: ReportFile) -> bool:
    payload = file.payload
    return isinstance(payload, dict) and (_DETAIL in payload or _SUMMARY in payload)


def _read(file: ReportFile) -> Report:
    layers = records_in(file.payload.get(_DETAIL), f"{_DETAIL!r} in it")
    if not layers:
        raise BadReport("it lists no layer; profile the network again, or choose a runtime that reports layers")
    whole = _whole(file.payload.get(_SUMMARY))
    known = [layer for layer in layers if layer.get(_TIME) is not None]
    times = [_spent(layer, _TIME, place) for place, layer in enumerate(known, 1)]
    if any(times):
        rows = _rows(known, times)
        untimed = len(layers) - len(known)
        notes = (f"{plural(untimed, 'row')} of {file.shown} without a time left out.",) if untimed else ()
        return Report(rows=rows, whole_seconds=whole, names_are_unique=True, notes=notes)
    cycles = [_spent(layer, _CYCLES, place) for place, layer in enumerate(layers, 1)]
    if whole is None or not sum(cycles):
        raise BadReport(
            "it has no times of layers; the device reported none, or the version of qai_hub that saved it left them out"
        )
    note = f"{file.shown} has cycles of layers and no times: the time of the call was shared out by cycles."
    rows = _rows(layers, [whole * each / sum(cycles) for each in cycles])
    return Report(rows=rows, whole_seconds=whole, names_are_unique=True, notes=(note,))


def _whole(summary: object) -> float | None:
    spent = summary.get(_WHOLE) if isinstance(summary, dict) else None
    return None if not spent else seconds_of(spent, per_second=_MICROSECONDS, row=0, name=_WHOLE)


def _spent(layer: Mapping[str, Any], key: str, place: int) -> float:
    return seconds_of(layer.get(key) or 0, per_second=_MICROSECONDS, row=place, name=layer.get("name", ""))


def _rows(layers: Sequence[Mapping[str, Any]], times: Sequence[float]) -> tuple[ReportRow, ...]:
    return tuple(
        ReportRow(
            name=text_of(layer.get("name", ""), f"the name in row {place}"),
            seconds=seconds,
            kind=text_of(layer.get("type", ""), f"the type in row {place}"),
        )
        for place, (layer, seconds) in enumerate(zip(layers, times, strict=True), 1)
    )


AI_HUB = ReportFormat(
    name="ai-hub",
    label="Qualcomm AI Hub",
    written_by='`download_profile("profile.json")` of a profile job in Python (`qai_hub`)',
    recognises=_recognises,
    read=_read,
)
