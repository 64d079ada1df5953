"""Read times of layers from files of other programs, as untrusted text.

A table of ``layer,level,ms`` holds every level. A report of a device (:mod:`senseapp.store.device_times`) is of one
network as it was, with the names of its runtime; which file is what is recognised from its content.
"""

from __future__ import annotations

from collections.abc import Iterable

from senseapp.core.errors import InvalidFile
from senseapp.core.foreign_values import BadValue
from senseapp.core.tables import TableError, TableRecord, read_records
from senseapp.core.texts import listed, plural, printable
from senseapp.descriptions import LevelScale
from senseapp.records.deployment import LayerTime, LayerTimes
from senseapp.records.profile import ModelProfile
from senseapp.store.device_times.base import DEVICE_TIMES, MOST_SECONDS, Report, ReportFile
from senseapp.store.device_times.matching import matched

MOST_BYTES = 50_000_000  # a hundred passes of a large network, profiled
_COLUMNS = ("layer", "level", "ms")


def read_layer_times(content: bytes, profile: ModelProfile, scale: LevelScale, *, name: str, level: float | None = None
                     ) -> LayerTimes:  # fmt: skip
    """Return the times in a file called ``name`` of the layers of ``profile``.

    ``level``, in the engine's unit, is what the network was at when it was profiled; a CSV says its own, in people's.

    Raises:
        InvalidFile: it is none of these files, damaged, or of another network; one sentence.
    """
    shown = printable(name)
    if len(content) > MOST_BYTES:
        raise InvalidFile(f"{shown} has more than {MOST_BYTES // 10**6} MB. {_advice()}")
    if not is_report(content):
        found_here = _from_table(content, profile, scale, shown)
        if level is not None:
            raise InvalidFile(f"{shown} says the levels itself: give it without one.")
        return found_here
    found = _report(content, shown)
    if level is None:
        raise InvalidFile(f"{shown} is a profile of one network: say at which level its layers were, as LEVEL=FILE.")
    return matched(found, profile, level, shown)


def is_report(content: bytes) -> bool:
    """Return whether a file is to be read as a tool's report of one network, and not as a table of every level.

    >>> is_report(b"layerName;execStatus;"), is_report(b'[{"ph": "X"}]'), is_report(b"layer,level,ms")
    (True, True, False)
    """
    head = content[:1000].lstrip(b"\xef\xbb\xbf \r\n\t")
    return head[:1] in (b"[", b"{") or head.startswith(b"layerName") or b"= Run Order =" in content


def report_tools() -> str:
    """Return the tools whose reports are read, for a sentence."""
    *first, last = [each.label for each in DEVICE_TIMES.values()]
    return f"{', '.join(first)} or {last}"


def _report(content: bytes, shown: str) -> Report:
    """Read a report; which it is, its content says."""
    try:
        file = ReportFile(content, shown)
        if known := next((each for each in DEVICE_TIMES.values() if each.recognises(file)), None):
            return known.read(file)
    except InvalidFile as error:
        raise InvalidFile(f"{error} {_advice()}") from error
    except BadValue as error:
        raise InvalidFile(f"{shown} is damaged: {error}.") from error
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError, OverflowError) as error:
        raise InvalidFile(f"{shown} is damaged, or no report that senseapp knows. {_advice()}") from error
    raise InvalidFile(f"{shown} is damaged, or no report that senseapp knows. {_advice()}")


def _advice() -> str:
    return f"Choose a CSV with the columns layer,level,ms, or a report of {report_tools()}."


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


def _from_table(content: bytes, profile: ModelProfile, scale: LevelScale, shown: str) -> LayerTimes:
    try:
        table = read_records(content, _COLUMNS, most_bytes=MOST_BYTES)
    except TableError as error:
        raise InvalidFile(
            f"{shown} is none of the files that senseapp reads times from. {error} {_advice()}"
        ) from error
    known, times, other = {layer.name for layer in profile.layers}, {}, []
    for row in table.rows:
        try:
            found = _time(row, scale)
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
    if not times:
        named = f": it names {listed(strangers)}" if strangers else ""
        raise InvalidFile(f"{shown} has no time of any layer of this network{named}.")
    return LayerTimes(times=tuple(times.values()), other_seconds=0.0, source=shown, unmatched=strangers, notes=notes)


def _time(row: TableRecord, scale: LevelScale) -> LayerTime:
    """Return the time in a row; raises ValueError for numbers that are no level and no time."""
    shown = row.number("level")
    found = scale.from_shown(shown) if shown else scale.untouched
    if found != scale.untouched and not scale.allows(found):
        raise ValueError
    seconds = row.number("ms", least=0, most=1000 * MOST_SECONDS) / 1000
    return LayerTime(layer=row.cells["layer"], level=found, seconds=seconds)
