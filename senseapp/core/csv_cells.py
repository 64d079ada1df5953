"""CSV files whose text cells no spreadsheet evaluates as a formula; the only writer of CSV in senseapp.

Spreadsheets evaluate a cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return, and layer names
come from untrusted files. Such a text gets a leading apostrophe, as does one that begins with apostrophes before such a
character, so that :func:`plain_cell` restores the original exactly. Numbers are unchanged.

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
    """Return ``value`` as a safe CSV cell; only texts that are not numbers change.

    >>> [safe_cell(value) for value in ("=1+1", "'=1+1", "layer.0", "-0.25", -0.25)]
    ["'=1+1", "''=1+1", 'layer.0', '-0.25', -0.25]
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _is_number(value):
        return value
    return f"'{value}"


def plain_cell(text: str) -> str:
    """Return the argument of :func:`safe_cell` from its result.

    >>> [plain_cell(safe_cell(text)) for text in ("=1+1", "'=1+1", "'quoted'", "-0.25")]
    ['=1+1', "'=1+1", "'quoted'", '-0.25']
    """
    return text[1:] if _ESCAPED.match(text) else text


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table with a header as CSV, with safe texts."""
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
