"""Texts that people read: counts and names of files, patterns of names, cells without formulas, foreign texts.

A cell that begins with ``=``, ``+``, ``-``, ``@`` (also in full width), a tab or a carriage return is a formula to
spreadsheets, and names of layers come from files that anybody may have made. Which cells there are, whoever opens a
file decides: at commas, semicolons, tabs, bars, colons, blanks. So an apostrophe is put before such a character, and
before apostrophes in front of it, wherever a cell could begin; :func:`plain_cell` gives back exactly what there was.
Numbers and lone signs stay.

Texts of records that anybody may have written are made printable, and not endless. Whoever shows them escapes them.

Source: OWASP, "CSV Injection", https://owasp.org/www-community/attacks/CSV_Injection.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from fnmatch import translate
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar, cast

from senseapp.core.errors import InvalidSpec

OptionT = TypeVar("OptionT", bound=Hashable)
_LONGEST_NAME = 80  # characters: a longer name would push the rest of a sentence out of a line
_MOST_LISTED = 4  # names, where how many others there are is not known
_MOST_NAMED = 3  # names before the number of others: enough to find the rest by


def printable(name: str) -> str:
    """Return a file name with what cannot be shown (control characters, text direction, bad bytes) replaced.

    >>> printable("holiday" + chr(0x202E) + "gpj.exe")
    'holiday�gpj.exe'
    """
    shown = "".join(letter if letter.isprintable() else "�" for letter in name[: 4 * _LONGEST_NAME])
    return shown if len(shown) <= _LONGEST_NAME else "…" + shown[1 - _LONGEST_NAME :]


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun, in the plural where it is not one.

    >>> plural(1, "picture"), plural(2300, "picture"), plural(2, "class", "classes")
    ('1 picture', '2,300 pictures', '2 classes')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def distinct(labels: Mapping[OptionT, str]) -> dict[OptionT, str]:
    """Return labels of options with a number behind those that are repeated: a browser tells options by their label.

    >>> distinct({1: "run", 2: "run", 3: "other"})
    {1: 'run', 2: 'run (2)', 3: 'other'}
    """
    found: dict[str, OptionT] = {}
    for option, label in labels.items():
        number, text = 1, label
        while text in found:
            number += 1
            text = f"{label} ({number})"
        found[text] = option
    return {option: text for text, option in found.items()}


def listed(names: Iterable[str]) -> str:
    """Return the first few names, separated by commas.

    >>> listed("abcdef")
    'a, b, c, d, …'
    """
    first = list(islice(names, _MOST_LISTED + 1))
    return ", ".join([printable(name) for name in first[:_MOST_LISTED]] + ["…"] * (len(first) > _MOST_LISTED))


def first_names(names: Sequence[str], most: int = _MOST_NAMED, *, between: str = ", ", count: int = 0) -> str:
    """Return the first ``most`` names with ``between`` between them, and the number of the others, of ``count`` in all.

    >>> first_names(["a", "b", "c", "d", "e"]), first_names(["a", "b"])
    ('a, b, c and 2 more', 'a, b')
    """
    more = max(count, len(names)) - len(names[:most])
    return between.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def three_digits(value: float) -> str:
    """Return ``value`` with three significant digits and no exponent: ``1.82``, ``44.7``, ``512``."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def bytes_size(number: float) -> str:
    """Return a size in decimal units.

    >>> bytes_size(311_089), bytes_size(44_700_000), bytes_size(12)
    ('311 kB', '44.7 MB', '12 bytes')
    """
    for step, prefix in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(number) >= step:
            return f"{three_digits(number / step)} {prefix}"
    return f"{number:.0f} bytes"


MOST_NAMES = 10_000  # ten times the layers of the largest networks
MOST_PATTERNS = 500  # they become one regular expression, which is compiled and matched for each name
LONGEST_PATTERN = 400  # characters: far above names of layers; patterns are joined to one expression
_WILD = re.compile(r"[*?\[]")


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a test whether a name is one of ``patterns`` or matches one; InvalidSpec for too many or too long ones."""
    return _compiled(tuple(dict.fromkeys(patterns)))


def part_of_name(wanted: str) -> str:
    """Return the lower-case pattern of names that contain ``wanted``; to a pattern, nothing is added.

    >>> part_of_name(" Conv"), part_of_name("layer1.*")
    ('*conv*', 'layer1.*')
    """
    part = wanted.strip().lower()
    return part if "*" in part or "?" in part else f"*{part}*"


@lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    wild = [pattern for pattern in patterns if _WILD.search(pattern)]
    if len(patterns) > MOST_NAMES or len(wild) > MOST_PATTERNS:
        raise InvalidSpec(
            f"Up to {MOST_NAMES:,} names and {MOST_PATTERNS} patterns with * can be given at once; got "
            f"{len(patterns):,}, {len(wild):,} of them with *. Use fewer, wider patterns."
        )
    if any(len(pattern) > LONGEST_PATTERN for pattern in patterns):
        raise InvalidSpec(f"A name or pattern has up to {LONGEST_PATTERN} characters; one has more. Shorten it.")
    names = frozenset(patterns).difference(wild)
    fits = re.compile("|".join(map(translate, wild))).match if wild else lambda _: None
    return lambda name: name in names or fits(name) is not None


_SEPARATORS = r"\s,;:|\""
_SEPARATOR = re.compile(f"[{_SEPARATORS}]")
_HARMLESS = rf"[+\-](?:(?:\d+\.?\d*|\.\d+)(?:[eE][+\-]?\d+)?)?(?:[{_SEPARATORS}]|\Z)"  # a number or a lone sign
# Marks before a formula that could begin at any separator; possessive, so that long runs take linear time.
_CELL = re.compile(rf"(?:^|(?<=[{_SEPARATORS}]))(?!{_HARMLESS})'*+(?=[=+\-@＝＋－＠])|\A'*+(?=[\t\r])")
T = TypeVar("T")


def safe_cell(value: T) -> T | str:
    """Return ``value`` as it may stand in a CSV file; only texts that are no numbers ever change.

    >>> [safe_cell(value) for value in ("=1+1", "'=1+1", "x;=1+1", "layer.0", "a - b", "-0.25", -0.25)]
    ["'=1+1", "''=1+1", "x;'=1+1", 'layer.0', 'a - b', '-0.25', -0.25]
    """
    return _CELL.sub(lambda found: f"'{found[0]}", value) if isinstance(value, str) else value


def plain_cell(text: str) -> str:
    """Invert :func:`safe_cell`.

    >>> [plain_cell(safe_cell(text)) for text in ("=1+1", "'=1+1", "x;=1+1", "'quoted'", "-0.25")]
    ['=1+1', "'=1+1", 'x;=1+1', "'quoted'", '-0.25']
    """
    return _CELL.sub(lambda found: found[0].removeprefix("'"), text)


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table with a header, its texts made safe; those that hold any separator are in quotes."""
    return "".join(f"{','.join(map(_written, row))}\n" for row in (columns, *rows))


def _written(value: object) -> str:
    text = "" if value is None else str(safe_cell(value))
    return '"' + text.replace('"', '""') + '"' if _SEPARATOR.search(text) else text


_FLAGS = re.compile(r" \((?:with )?--[a-z][^()]*\)")


def without_flags(text: str) -> str:
    """Return a message as pages show it: options of the command line stand in parentheses, which are left out.

    >>> without_flags("Choose another output (--onnx-output boxes).")
    'Choose another output.'
    """
    return _FLAGS.sub("", text) if "(" in text else text


_LONGEST_TEXT = 2000  # characters of one text from a foreign file that pages and logs show


def printable_text(text: str) -> str:
    """Return ``text`` with a space for each control character, and no longer than 2,000 characters."""
    if len(text) <= _LONGEST_TEXT and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST_TEXT])


def with_printable_texts(record: T) -> T:
    """Return a record or a container with :func:`printable_text` of every text in it, however deep."""
    found: Any = record
    if type(found) is str:  # members of an enumeration stay
        found = printable_text(found)
    elif isinstance(found, tuple | list):
        found = type(found)(map(with_printable_texts, found))
    elif isinstance(found, dict):
        found = {with_printable_texts(key): with_printable_texts(each) for key, each in found.items()}
    elif is_dataclass(found) and not isinstance(found, type):
        names = (each.name for each in fields(found) if each.init)
        found = replace(found, **{name: with_printable_texts(getattr(found, name)) for name in names})
    return cast(T, found)
