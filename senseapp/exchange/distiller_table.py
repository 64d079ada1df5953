"""The rows of Distiller's sensitivity CSV: parameter, sparsity, top-1 and top-5 in percent, loss in nats."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass

from senseapp.errors import InvalidFile

COLUMNS = ("parameter", "sparsity", "top1", "top5", "loss")
_LEVEL_DIGITS = 9  # the published files hold 0.15000000000000002
_MOST_CHARACTERS = 20_000_000
_PERCENT_CEILING = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillerRow:
    """One measurement.

    Attributes:
        parameter: name of the weight, as in the file (``module.conv1.weight``).
        sparsity: fraction of zeros, in [0, 1); 0 is the uncompressed model.
        top1, top5: accuracies as fractions (the file has percent).
        loss: cross-entropy, nats; infinite where it overflowed.
    """

    parameter: str
    sparsity: float
    top1: float
    top5: float
    loss: float


def read_rows(text: str) -> tuple[DistillerRow, ...]:
    """Read and check every row.

    Raises:
        InvalidFile: it is empty or too large, lacks a column, or a row is out of range, repeated or without numbers.
    """
    if len(text) > _MOST_CHARACTERS:
        raise InvalidFile(f"A sensitivity CSV has at most {_MOST_CHARACTERS // 10**6} MB. Choose a smaller file.")
    try:
        records = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
        _check_header([name.strip() for name in records.fieldnames or ()])
        records.fieldnames = [name.strip() for name in records.fieldnames or ()]
        rows = tuple(_row(record, records.line_num) for record in records)
    except csv.Error as error:
        raise InvalidFile(f"This is not a CSV file ({error}). Choose a table with {','.join(COLUMNS)}.") from error
    if not rows:
        raise InvalidFile("This sensitivity CSV has a header but no rows. Choose a file with measurements.")
    _check_repeats(rows)
    _check_percent(rows)
    return rows


def _check_header(names: list[str]) -> None:
    if not names:
        raise InvalidFile(f"This file is empty. Choose a CSV with the columns {','.join(COLUMNS)}.")
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise InvalidFile(
            f"A sensitivity CSV has the columns {','.join(COLUMNS)}; this one lacks {', '.join(missing)}. "
            "Add them, or choose another file."
        )


def _row(record: Mapping[str, str | None], line: int) -> DistillerRow:
    parameter = (record["parameter"] or "").strip()
    if not parameter:
        raise InvalidFile(f"Line {line} names no parameter. Each row needs one, such as module.conv1.weight.")
    row = DistillerRow(
        parameter=parameter,
        sparsity=round(_number(record, "sparsity", line), _LEVEL_DIGITS),
        top1=_number(record, "top1", line) / 100,
        top5=_number(record, "top5", line) / 100,
        loss=_number(record, "loss", line),
    )
    _check_range(row, line)
    return row


def _number(record: Mapping[str, str | None], column: str, line: int) -> float:
    text = record[column]
    try:
        number = float(text or "")
    except ValueError as error:
        raise InvalidFile(f"Line {line}: {column} must be a number, got {text!r}. Correct the file.") from error
    if math.isnan(number) or (math.isinf(number) and column != "loss"):
        raise InvalidFile(f"Line {line}: {column} must be a finite number, got {text!r}. Correct the file.")
    return number


def _check_range(row: DistillerRow, line: int) -> None:
    if row.sparsity > 1:
        raise InvalidFile(
            f"Line {line}: sparsity must be a fraction from 0 to below 1, got {row.sparsity:g}, which looks like "
            "percent. Divide the column by 100."
        )
    if not 0 <= row.sparsity < 1:
        raise InvalidFile(f"Line {line}: sparsity must be a fraction from 0 to below 1, got {row.sparsity:g}.")
    for column, value in (("top1", row.top1), ("top5", row.top5)):
        if not 0 <= value <= 1:
            raise InvalidFile(f"Line {line}: {column} must be percent from 0 to 100, got {100 * value:g}.")


def _check_repeats(rows: tuple[DistillerRow, ...]) -> None:
    seen = set()
    for row in rows:
        key = row.parameter, row.sparsity
        if key in seen:
            raise InvalidFile(
                f"{row.parameter} has two rows at sparsity {row.sparsity:g}; one is expected. Remove the other."
            )
        seen.add(key)


def _check_percent(rows: tuple[DistillerRow, ...]) -> None:
    """Refuse accuracies given as fractions: they would be read as a hundredth of what they are."""
    highest = 100 * max(max(row.top1, row.top5) for row in rows)
    if 0 < highest <= _PERCENT_CEILING:
        raise InvalidFile(
            f"top1 and top5 must be percent, but none is above {highest:g}, which looks like fractions. "
            "Multiply both columns by 100."
        )
