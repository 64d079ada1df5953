"""Every reader of foreign text: what it reads, a sound text of its format, and how that is made hostile.

A new reader is one line of :data:`READERS`. Its sound text is changed token by token: a name, a number or a mark is
replaced by each of :data:`FILLERS`, which grow to any length, and by each of :data:`VALUES`.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import yaml

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidInput
from senseapp.core.foreign_values import BadValue, number, read_json, read_python, read_yaml
from senseapp.data.label_columns import labels_in
from senseapp.data.label_tables import read_label_table
from senseapp.descriptions import get
from senseapp.formats.plain import read_schedule
from senseapp.formats.registry import FORMATS
from senseapp.networks.checkpoints.model_folder import read_config
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.network import nested
from senseapp.networks.onnx.metadata import CLASSES, PREPARATION, class_names_in, preparation_in
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import ResourceBudget
from senseapp.solve.methods import make_schedule
from senseapp.store.distiller import read_distiller_csv
from senseapp.store.layer_times import read_layer_times
from senseapp.store.run_file import check_result
from senseapp.tasks.labels import read_class_map
from tests import device_reports
from tests.distiller_tables import TABLE
from tests.pages.records import result as finished_run
from tests.schedule_cases import SIZES, profile_of, sparse_run

Read = Callable[[str], Any]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One reader with a sound text; ``row`` is a part of a table that may come any number of times."""

    read: Read
    sound: str
    row: str = ""

    @property
    def has_rows(self) -> bool:
        """Whether :meth:`with_rows` can be made."""
        with suppress(ValueError):
            return any(_lists(json.loads(self.sound)))
        return bool(self.row)

    def with_rows(self, number: int) -> str:
        """Return the sound text with ``number`` more rows, or entries of the longest list of JSON, of other names."""
        if self.row:
            return self.sound + "".join(_renamed(self.row, place) for place in range(number))
        content = json.loads(self.sound)
        longest = max(_lists(content), key=lambda entries: len(json.dumps(entries)))
        entry = json.dumps(longest[0])
        longest += [json.loads(_renamed(entry, place)) for place in range(number)]
        return json.dumps(content)


def _renamed(row: str, place: int) -> str:
    return re.sub(
        r"(?<![\w.])(dog|cat|h|fc|head|module\.fc|stem\.conv|conv1|[/\w.]*stem[/\w.]*)(?!\w)", rf"\g<0>{place}", row
    )


def _lists(content: Any) -> Iterator[list[Any]]:
    """Yield the lists of objects or rows in JSON."""
    if isinstance(content, list) and content and isinstance(content[0], dict | list):
        yield content
    inside = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    for each in inside:
        yield from _lists(each)


def _label_tables(text: str) -> object:
    entry = object()
    contents = SimpleNamespace(
        pictures=tuple(f"{name}.png" for name in "abcdefgh"),
        entry=lambda path: entry,
        offered_tables=lambda: ("t.csv",),
    )
    source = SimpleNamespace(title="pictures.zip", contents=contents, read=lambda found: text.encode())
    table = read_label_table(source, "t.csv")  # type: ignore[arg-type]
    return labels_in(table, several=False), labels_in(table, several=True)


def _schedule(text: str) -> object:
    return read_schedule(text, _PROFILE)


def _distiller(text: str) -> object:
    """Return the figures without the loss, which is infinite where it overflowed."""
    found = read_distiller_csv(text)
    check_result(found)
    changes = [change for item in found.measurements for change in item.changes]
    assert not any(math.isnan(change.delta) for change in changes)
    return found.baseline, [change for change in changes if change.metric != "loss"]


def _class_map(text: str) -> object:
    return read_class_map(text.encode())


def _nested(text: str) -> object:
    return nested([1, 2], text)


def _names(text: str) -> object:
    return [class_names_in({key: text}, 2) for key in (CLASSES, "names", "character")]


def _preparation(text: str) -> Preprocessing | None:
    return preparation_in({PREPARATION: text}, (3, 8, 8))


def _run(text: str) -> RunResult:
    found = loads(text, RunResult)
    check_result(found)
    return found


def _times(text: str) -> object:
    scale = get("quantization").scale
    level = None if text.startswith(("layer,", "layer;")) else 32.0
    return read_layer_times(text.encode(), device_reports.profile(), scale, name="r.json", level=level)


def _finite_json(text: str) -> object:
    return [number(each, "a number") for each in numbers_in(read_json(text))]


_SCHEDULE = make_schedule(sparse_run(), budget=ResourceBudget(kind="params", target=0.6))
_PROFILE = profile_of(SIZES)
_CONFIG = {
    "architecture": "resnet18",
    "num_classes": 2,
    "label_names": ["cat", "dog"],
    "model_args": {"depth": 3, "act": "relu"},
    "pretrained_cfg": {"input_size": [3, 8, 8], "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "crop_pct": 0.9},
}
_PREPARED = {
    "input_shape": [3, 8, 8],
    "mean": [0.5, 0.5, 0.5],
    "std": [0.2, 0.2, 0.2],
    "crop_pct": 0.9,
    "interpolation": "bilinear",
    "channel_order": "rgb",
}
_TABLE = "file,label,tags\n" + "".join(f"{name}.png,{place},x|y\n" for place, name in enumerate("abcdefgh"))

READERS: dict[str, Reader] = {
    **{
        f"schedule, {name}": Reader(read=_schedule, sound=FORMATS[name].write(_SCHEDULE, _PROFILE))
        for name in ("json", "yaml", "csv")
    },
    "Distiller table": Reader(read=_distiller, sound=TABLE, row="module.fc.weight,0.5,68.0,88.0,1.35\n"),
    "class map, table": Reader(read=_class_map, sound="label,class\ncat,0\ndog,1\n", row="dog,1\n"),
    "class map, list": Reader(read=_class_map, sound="cat\ndog\n", row="dog\n"),
    "class map, JSON": Reader(read=_class_map, sound='{"cat": 0, "dog": 1}'),
    "label table": Reader(read=_label_tables, sound=_TABLE, row="h.png,7,x|y\n"),
    "times, table": Reader(read=_times, sound="layer,level,ms\nstem.conv,8,1.5\nhead,8,0.5\n", row="head,8,0.5\n"),
    **{f"times, {form}": Reader(read=_times, sound=text) for form, text in device_reports.SOUND.items()},
    "model folder": Reader(read=lambda text: read_config(text.encode(), of="net"), sound=json.dumps(_CONFIG)),
    "class names": Reader(read=_names, sound="{0: 'cat', 1: 'dog'}"),
    "preparation": Reader(read=_preparation, sound=json.dumps(_PREPARED)),
    "nested outputs": Reader(read=_nested, sound='{"dict": {"out": 1, "aux": {"list": [0, null]}}}'),
    "run": Reader(read=_run, sound=dumps(finished_run())),
    "JSON": Reader(read=_finite_json, sound='{"a": [1, 2.5, true, null, "b"]}'),
    "YAML": Reader(read=read_yaml, sound=yaml.safe_dump({"a": [1, 2.5, True, None, "b"], "c": {"d": "1:2"}})),
    "Python": Reader(read=read_python, sound=repr({0: "it's", 1: ["b", 2.5]})),
}  # fmt: skip

FILLERS: Mapping[str, Callable[[int], str]] = {
    what: lambda number, part=part, end=end: part * number + end
    for what, (part, end) in {
        "points": ("1.", "x"),
        "digits": ("9", "x"),
        "a number": ("9", ""),
        "blanks": (" ", "x"),
        "tabs": ("\t", "x"),
        "words": ("a ", ""),
        "commas": ("1,", "x"),
        "semicolons": ("a;", ""),
        "bars": ("| ", ""),
        "pluses": (" +  ", ""),
        "quotes": ("'", ""),
        "double quotes": ('"', ""),
        "formulas": (';="', ""),
        "backslashes": ("\\'", ""),
        "brackets": ("[", ""),
        "braces": ("{a: ", ""),
        "dashes": ("- ", ""),
        "colons": ("1:", "1"),
        "slashes": ("/a", ""),
        "dots": ("a.", ""),
        "shares": ("1 1% ", ""),
        "exponents": ("1e", "1"),
        "lines": ("\n", ""),
        "short lines": ("a\n", ""),
        "other lines": ("\u2028a", ""),
        "hashes": ("# ", ""),
        "equals": ("=", ""),
        "letters": ("é_", ""),
        "questions": ("? ", ""),
        "ands": ("&a *a ", ""),
    }.items()
}

VALUES = (
    *("NaN", "nan", "Infinity", "-inf", "1e999", "-1e999", "1e308", "-0.0"),
    *("1_000", "0x10", "٣", "true", "yes", "null"),
    *("9" * 4000, "9" * 5000, "-" + "9" * 4000, "0." + "0" * 4000 + "1", "1" + ":1" * 2000, "1.1.1", "1,1,1", "", "[]"),
    *("{}", '"no"', "'no'", "[1, 2]", '{"a": 1}', "[" * 2000, "=1+1", "\x1b[31m", "\u202e", "é", "1e-400", "010", "-"),
)
"""In place of a token."""

_TOKEN = re.compile(r"[\w.:+-]+|\"\"|[\[{]")


def holes(reader: Reader, most: int) -> list[tuple[int, int]]:
    """Return up to ``most`` places of different tokens, spread over the sound text."""
    found: dict[str, tuple[int, int]] = {}
    for token in _TOKEN.finditer(reader.sound):
        found.setdefault(token[0], token.span())
    places = [*found.values()]
    return places[:: max(1, -(-len(places) // most))]


def filled(reader: Reader, hole: tuple[int, int], text: str) -> str:
    """Return the sound text with ``text`` in a hole."""
    return reader.sound[: hole[0]] + text + reader.sound[hole[1] :]


def numbers_in(value: Any, leave_out: Collection[str] = ()) -> Iterator[float]:
    """Yield every float in what a reader returned, without fields of the names in ``leave_out``."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from numbers_in(each, leave_out)
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from numbers_in(each, leave_out)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__.keys() - leave_out:
            yield from numbers_in(getattr(value, name), leave_out)


REFUSALS = (InvalidInput, BadValue)
"""What a reader raises; each with one sentence."""
