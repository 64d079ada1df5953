"""Numbers, switches, texts, JSON and YAML of files that anybody may have written: one reader of each, for every format.

Python takes more for a number than a file can mean: ``True``, ``"no"`` as a switch, ``NaN``, ``1_000``, ``1e999``, an
integer of thousands of digits, which no float can hold. A value is read here or refused with a clause that names it.
"""

import ast
import json
import math
import re
import reprlib
import warnings
from collections.abc import Mapping
from typing import Any, TypeGuard, TypeVar

from senseapp.core.texts import printable

LARGEST_COUNT = 10**18
"""Of anything that is counted: below 2**63, so that sums stay exact."""
_DIGITS = frozenset("0123456789+-.eE")
_MOST_YAML_CHARACTERS = 1_000_000  # of thousands of layers
_MOST_PYTHON_CHARACTERS = 400_000  # ten times the names of ImageNet's thousand classes
_JSON_BEGINS = frozenset("-0123456789tfn")  # a number, true, false or null
KindT = TypeVar("KindT")


class BadValue(ValueError):
    """A value is not what its place in a file needs: a clause that says what was expected and what came."""


def decimal(text: str) -> float | None:
    """Return the finite number that ``text`` writes with ASCII digits, and None where it writes none.

    >>> [decimal(text) for text in ("-1.5e3", "1e999", "nan", "1_000", "٣", " 1")]
    [-1500.0, None, None, None, None, None]
    """
    return _finite(text) if len(text) <= 400 and _DIGITS.issuperset(text) else None


def number(value: object, what: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a finite number from ``least`` to ``most``, also where a text writes it; BadValue for anything else."""
    found = decimal(value) if isinstance(value, str) else _as_float(value)
    if found is None or not least <= found <= most:
        raise BadValue(f"{what} must be a finite number{_span(least, most)}, got {shown(value)}")
    return found


def whole(value: object, what: str, *, least: int = 0, most: int = LARGEST_COUNT) -> int:
    """Return a whole number from ``least`` to ``most``, also from a float (3.0) or digits; else BadValue."""
    found = value if is_int(value) else _digits(value) if isinstance(value, str) else _as_float(value)
    if found is None or not least <= found <= most or found != int(found):
        raise BadValue(f"{what} must be a whole number{_span(least, most)}, got {shown(value)}")
    return int(found)


def _of_kind(value: object, kind: type[KindT], what: str, wanted: str) -> KindT:
    if not isinstance(value, kind):
        raise BadValue(f"{what} must be {wanted}, got {shown(value)}")
    return value


def truth(value: object, what: str) -> bool:
    """Return a switch; raises BadValue for anything but true and false."""
    return _of_kind(value, bool, what, "true or false")


def text(value: object, what: str) -> str:
    """Return a text; raises BadValue for anything else."""
    return _of_kind(value, str, what, "a text")


def items(value: object, what: str) -> list[Any]:
    """Return a list; raises BadValue for anything else."""
    return _of_kind(value, list, what, "a list")


def texts(value: object, what: str) -> tuple[str, ...]:
    """Return a list of texts; raises BadValue for anything else."""
    return tuple(text(each, f"an entry of {what}") for each in items(value, what))


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """Return an object whose names are texts; raises BadValue for anything else."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadValue(f"{what} must be an object with names, got {shown(value)}")
    return value


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer, which Python's truth values are too."""
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Return a value for a sentence, however long or deep it is."""
    return printable(reprlib.repr(value))


def read_json(content: str | bytes) -> Any:
    """Return the content of a JSON text; BadValue if it is broken, nested too deeply, or holds NaN or infinity."""
    try:
        return json.loads(content, parse_constant=_refused)
    except RecursionError as error:
        raise BadValue("it is nested too deeply") from error
    except ValueError as error:
        raise BadValue(f"it is no JSON: {error}") from error


def read_yaml(content: str) -> Any:
    """Return the content of a YAML text as plain values; numbers and switches are written as in JSON.

    YAML's own forms of numbers (``1:30`` for 90, ``010`` for 8), its ``yes`` and its dates stay texts. BadValue for a
    text that is broken, too long, nested too deeply, or more than one document, and for aliases, anchors and tags: a
    few lines of them stand for gigabytes, or name types of a program.
    """
    import yaml  # not needed by readers of other formats

    if len(content) > _MOST_YAML_CHARACTERS:
        raise BadValue(f"it has more than {_MOST_YAML_CHARACTERS:,} characters of YAML")

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers = {None: [("!plain", re.compile(""))]}  # noqa: RUF012
        yaml_constructors = yaml.SafeLoader.yaml_constructors | {"!plain": lambda _, node: _scalar(node.value)}

    try:
        depth = 0
        for event in yaml.parse(content, Loader=Loader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
                raise BadValue("it holds aliases, anchors or tags, which senseapp does not write")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > 9:  # a schedule is nested four deep
                raise BadValue("it is nested too deeply")
        return yaml.load(content, Loader)
    except yaml.YAMLError as error:
        raise BadValue(f"it is no YAML: {' '.join(str(error).split())}") from error


def _digits(written: str) -> int | None:
    """Return the integer in a text of up to as many ASCII digits as :data:`LARGEST_COUNT` has."""
    digits = written.removeprefix("-")
    return int(written) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def read_python(content: str) -> Any:
    """Return the content of a text that Python printed of lists, dictionaries, numbers and texts; else BadValue.

    Its length is limited, as the parser takes 500 bytes of memory for each character.

    >>> read_python("{0: 'cat', 1: 'dog'}")
    {0: 'cat', 1: 'dog'}
    """
    if len(content) > _MOST_PYTHON_CHARACTERS:
        raise BadValue(f"it has more than {_MOST_PYTHON_CHARACTERS:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of texts with backslashes
            found = ast.literal_eval(content)
        json.dumps(found, allow_nan=False)  # nothing that JSON does not have
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise BadValue("it is no list or dictionary as Python prints it") from error
    return found


def _as_float(value: object) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else _finite(value)


def _finite(value: float | str) -> float | None:
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _span(least: float, most: float) -> str:
    if math.isinf(most) or most == LARGEST_COUNT:
        return "" if math.isinf(least) else f" from {least:g}"
    return f" from {least:g} to {most:g}"


def _refused(constant: str) -> float:
    raise BadValue(f"{constant} is no number")


def _scalar(plain: str) -> object:
    """Return what a text without quotes means: a word or a number of JSON, or itself."""
    if plain in ("", "~"):
        return None
    if plain[0] not in _JSON_BEGINS:
        return plain
    try:
        found = read_json(plain)
    except BadValue:
        return plain
    return plain if isinstance(found, float) and math.isinf(found) else found
