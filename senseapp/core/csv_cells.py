"""CSV files whose text cells no spreadsheet takes for a formula: the one way that senseapp writes them.

A cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return is a formula to spreadsheets, and names
of layers come from files that anybody may have made. Such a text gets an apostrophe in front, as does one that begins
with apostrophes before such a character, so that :func:`plain_cell` gives back exactly what there was. Numbers stay.

Source: OWASP, "CSV Injection", https://owasp.org/www-community/attacks/CSV_Injection.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r]")
T = TypeVar("T")


def safe_cell(value: T) -> T | str:
    """Return ``value`` as it may stand in a CSV file; only texts that are no numbers ever change.

    >>> [safe_cell(value) for value in ("=1+1", "'=1+1", "layer.0", "-0.25", -0.25)]
    ["'=1+1", "''=1+1", 'layer.0', '-0.25', -0.25]
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _is_number(value):
        return value
    return f"'{value}"


def plain_cell(text: str) -> str:
    """Return what :func:`safe_cell` was given.

    >>> [plain_cell(safe_cell(text)) for text in ("=1+1", "'=1+1", "'quoted'", "-0.25")]
    ['=1+1', "'=1+1", "'quoted'", '-0.25']
    """
    return text[1:] if _ESCAPED.match(text) else text


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table with a header, its texts made safe."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([safe_cell(name) for name in columns])
    writer.writerows([safe_cell(value) for value in row] for row in rows)
    return stream.getvalue()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()
