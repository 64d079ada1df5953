"""Read how long layers take from files of other programs; anybody may have made them.

A table of ``layer,level,ms`` holds every level. A profile is of one network as it was: the JSON of onnxruntime's
``enable_profiling``, that of ``trtexec --exportProfile``, or what ``benchmark_model --enable_op_profiling=true``
prints. Its names are those of the runtime, and belong to the layer whose name they hold.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from senseapp.core.errors import InvalidFile
from senseapp.core.table_records import TableRecord, read_records
from senseapp.core.tables import TableError
from senseapp.core.texts import listed, plural, printable
from senseapp.descriptions import LevelScale
from senseapp.records.deployment import LayerTime, LayerTimes
from senseapp.records.profile import ModelProfile

MOST_BYTES = 50_000_000  # a hundred passes of a large network, profiled
_MOST_SECONDS = 1e5  # of one layer: more is a mistake of the unit
_COLUMNS = ("layer", "level", "ms")
_ADVICE = (
    "Choose a CSV with the columns layer,level,ms, or a profile of onnxruntime, trtexec --exportProfile or "
    "benchmark_model --enable_op_profiling=true."
)
_TFLITE_ROW = re.compile(
    r"^\s*(?P<kind>[A-Za-z0-9_ ]+?)\s+(?P<first>[\d.]+)\s+(?P<mean>[\d.]+)\s+[\d.]+%\s+[\d.]+%\s+[\d.]+\s+\d+\s+"
    r"\[?(?P<name>[^\]\n]+?)\]?(?::\d+)?\s*$"
)
_TFLITE_ORDER = "Run Order"
_KERNEL = "_kernel_time"
_LONGEST_ROW = 2000  # characters, for the pattern


def read_layer_times(content: bytes, profile: ModelProfile, scale: LevelScale, *, name: str, level: float | None = None
                     ) -> LayerTimes:  # fmt: skip
    """Return the times in a file called ``name`` of the layers of ``profile``.

    ``level``, in the engine's unit, is what the network was at when it was profiled; a CSV says its own, in people's.

    Raises:
        InvalidFile: it is none of these files, damaged, or of another network; one sentence.
    """
    shown = printable(name)
    if len(content) > MOST_BYTES:
        raise InvalidFile(f"{shown} has more than {MOST_BYTES // 10**6} MB. {_ADVICE}")
    if not _is_profile(content):
        found_here = _from_table(content, profile, scale, shown)
        if level is not None:
            raise InvalidFile(f"{shown} says the levels itself: give it without one.")
        return found_here
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{shown} is not a text file. {_ADVICE}") from error
    found = _profiled(text, shown)
    if level is None:
        raise InvalidFile(f"{shown} is a profile of one network: say at which level its layers were, as LEVEL=FILE.")
    return _matched(found, profile, level, shown)


def merged(parts: Iterable[LayerTimes]) -> LayerTimes:
    """Return the times of several files together; what no layer takes is that of the first.

    Raises:
        InvalidFile: two of them give the same layer a time at the same level.
    """
    every = tuple(parts)
    times = [each for part in every for each in part.times]
    keys = [(each.layer, each.level) for each in times]
    if len(set(keys)) < len(keys):
        raise InvalidFile("Two of the files are of the same level. Give each level once.")
    return LayerTimes(
        times=tuple(times),
        other_seconds=every[0].other_seconds,
        source=", ".join(part.source for part in every),
        unmatched=tuple(dict.fromkeys(name for part in every for name in part.unmatched)),
        notes=tuple(dict.fromkeys(note for part in every for note in part.notes)),
    )


def _is_profile(content: bytes) -> bool:
    """Return whether this is JSON or what ``benchmark_model`` prints, and no table."""
    return content.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in (b"[", b"{") or _TFLITE_ORDER.encode() in content


def _from_table(content: bytes, profile: ModelProfile, scale: LevelScale, shown: str) -> LayerTimes:
    try:
        table = read_records(content, _COLUMNS, numbers=_COLUMNS[1:], most_bytes=MOST_BYTES)
    except TableError as error:
        raise InvalidFile(f"{shown} is none of the files that senseapp reads times from. {error} {_ADVICE}") from error
    if not table.has_header and _can_be_swapped(table.rows, scale):
        raise InvalidFile(
            f"{shown} has no header, and either of its columns of numbers may be the level. "
            f"Add a first line that names {','.join(_COLUMNS)}."
        )
    known, times, other = {layer.name for layer in profile.layers}, {}, []
    for row in table.rows:
        try:
            found = LayerTime(
                layer=row.cells["layer"],
                level=_level(row.number("level"), scale),
                seconds=_seconds(row.number("ms")),
            )
        except ValueError as error:
            cells = printable(",".join(row.cells.values()))
            raise InvalidFile(
                f"Line {row.line} of {shown} is not a layer, a level and milliseconds from 0: {cells}."
            ) from error
        if (found.layer, found.level) in times:
            raise InvalidFile(f"Line {row.line} of {shown} gives {printable(found.layer)} the same level again.")
        if found.layer in known:
            times[found.layer, found.level] = found
        else:
            other.append(found.layer)
    strangers = tuple(dict.fromkeys(other))
    notes = table.notes
    if strangers:
        notes += (f"{plural(len(strangers), 'name')} in {shown} of no layer of this network: {listed(strangers)}.",)
    return _checked(tuple(times.values()), strangers, 0.0, shown, notes)


def _can_be_swapped(rows: Iterable[TableRecord], scale: LevelScale) -> bool:
    """Return whether the milliseconds are levels too."""
    try:
        for row in rows:
            _level(row.number("ms"), scale)
            _seconds(row.number("level"))
    except ValueError:
        return False
    return True


def _level(number: float, scale: LevelScale) -> float:
    level = 0.0 if number == 0 else scale.from_shown(number)
    if not (level in (0.0, scale.untouched) or scale.allows(level)):
        raise ValueError
    return scale.untouched if level == 0 else level


def _seconds(milliseconds: float) -> float:
    seconds = milliseconds / 1000
    if not 0 <= seconds <= _MOST_SECONDS:
        raise ValueError
    return seconds


def _profiled(text: str, shown: str) -> dict[str, float]:
    """Return the seconds of each operation of a profile."""
    try:
        if text.lstrip()[:1] in ("[", "{"):
            return dict(_from_json(json.loads(text), shown))
        return dict(_from_benchmark_model(text, shown))
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError, OverflowError) as error:
        raise InvalidFile(f"{shown} is damaged, or no profile that senseapp knows. {_ADVICE}") from error


def _from_json(payload: Any, shown: str) -> Iterator[tuple[str, float]]:
    if not isinstance(payload, list) or not all(isinstance(each, dict) for each in payload):
        raise ValueError
    if any("ph" in each for each in payload):
        return _from_onnxruntime(payload, shown)
    return _from_trtexec(payload, shown)


def _from_onnxruntime(events: list[dict[str, Any]], shown: str) -> Iterator[tuple[str, float]]:
    durations: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_KERNEL):
            durations[name.removesuffix(_KERNEL)].append(_seconds(float(event["dur"]) / 1000))
    if not durations:
        raise InvalidFile(f"{shown} holds no times of kernels: profile at least one run of the network.")
    yield from ((name, statistics.median(each)) for name, each in durations.items())


def _from_trtexec(entries: list[dict[str, Any]], shown: str) -> Iterator[tuple[str, float]]:
    rows = [entry for entry in entries if "name" in entry]
    if not rows:
        raise InvalidFile(f"{shown} names no layer. Write it with trtexec --dumpProfile --exportProfile={shown}.")
    for entry in rows:
        yield str(entry["name"]), _seconds(float(entry["medianMs" if "medianMs" in entry else "averageMs"]))


def _from_benchmark_model(text: str, shown: str) -> Iterator[tuple[str, float]]:
    start = text.find(_TFLITE_ORDER)
    rows = [found for line in text[max(0, start) :].splitlines()[: 10**5] if (found := _row_of(line))]
    if start < 0 or not rows:
        raise InvalidFile(f"{shown} is none of the files that senseapp reads times from. {_ADVICE}")
    seen: set[str] = set()
    for row in rows:
        if row["name"] in seen:  # the same operations, sorted by time
            return
        seen.add(row["name"])
        yield row["name"], _seconds(float(row["mean"]))


def _row_of(line: str) -> re.Match[str] | None:
    return _TFLITE_ROW.match(line) if len(line) < _LONGEST_ROW else None


def _matched(found: Mapping[str, float], profile: ModelProfile, level: float, shown: str) -> LayerTimes:
    """Give the seconds of each operation to the layer whose name its name holds, the longest of several."""
    names = sorted((layer.name for layer in profile.layers), key=len, reverse=True)
    seconds: defaultdict[str, float] = defaultdict(float)
    other, unmatched = 0.0, []
    for name, spent in found.items():
        dotted = f".{re.sub(r'[^A-Za-z0-9_]+', '.', name)}."
        owner = next((layer for layer in names if f".{layer}." in dotted), None)
        if owner is None:
            other += spent
            unmatched.append(name)
        else:
            seconds[owner] += spent
    times = tuple(LayerTime(layer=layer, level=level, seconds=spent) for layer, spent in seconds.items())
    return _checked(times, tuple(unmatched), other, shown)


def _checked(
    times: tuple[LayerTime, ...], unmatched: tuple[str, ...], other: float, shown: str, notes: tuple[str, ...] = ()
) -> LayerTimes:
    if not times:
        named = f": it names {listed(unmatched)}" if unmatched else ""
        raise InvalidFile(f"{shown} has no time of any layer of this network{named}.")
    return LayerTimes(times=times, other_seconds=other, source=shown, unmatched=unmatched, notes=notes)
