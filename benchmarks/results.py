"""``benchmarks/results/*.csv``: what benchmarks found, one table each; ``benchmarks.page`` makes one page of them."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent / "results"
_OF_RUN = ("machine", "date")  # the last columns of every table


def machine(device: torch.device | None = None) -> str:
    """Return what figures come from: processor, graphics card if ``device`` is one, and versions."""
    rows = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [row.split(":", 1)[1].strip() for row in rows if row.startswith("model name")]
    flags = {flag for row in rows if row.startswith("flags") for flag in row.split()}
    units = [
        shown for flag, shown in (("avx512f", "AVX-512"), ("avx512_bf16", "bf16"), ("amx_bf16", "AMX")) if flag in flags
    ]
    card = f"{torch.cuda.get_device_name(device)}, " if device is not None and device.type == "cuda" else ""
    return (
        f"{card}{names[0] if names else platform.processor()} ({', '.join(units) or 'no AVX-512'}), "
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, torch {torch.__version__}"
    )


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of a table; none if no benchmark wrote it."""
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def keep(name: str, row: Mapping[str, object], *, named_by: int = 1, device: torch.device | None = None) -> None:
    """Print a row and store it at once, in place of the one whose first ``named_by`` cells are the same.

    Args:
        name: of the table.
        row: cells by column.
        named_by: how many of the first cells tell rows apart.
        device: that it was measured on; the processor by default.
    """
    cells = {column: str(cell) for column, cell in row.items()}
    print("  ".join(f"{column}: {cell}" for column, cell in cells.items()), flush=True)
    names = list(cells)[:named_by]
    rows = read_table(name)
    place = next((at for at, old in enumerate(rows) if all(old.get(each) == cells[each] for each in names)), len(rows))
    rows[place : place + 1] = [{**cells, "machine": machine(device), "date": str(date.today())}]
    columns = dict.fromkeys(column for each in rows for column in each if column not in _OF_RUN)
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*columns, *_OF_RUN], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A claim about the product, what was measured of it, and whether it holds.

    Attributes:
        what: was measured, in a few words.
        wanted: in the reader's words and units.
        found: likewise.
        holds: whether what was found is what is wanted.
    """

    what: str
    wanted: str
    found: str
    holds: bool

    def keep(self, table: str) -> None:
        """Print it, and put it into a table of the results."""
        cells = {"what": self.what, "wanted": self.wanted, "found": self.found}
        keep(table, {**cells, "holds": "yes" if self.holds else "no"})
