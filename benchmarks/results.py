"""``benchmarks/RESULTS.md``: sections with a heading each, so that each benchmark rewrites only its own."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
_TITLE = "# Results"
_HEADING = "## "


def machine(device: torch.device | None = None) -> str:
    """Return one line on what the figures come from: processor, graphics card if ``device`` is one, versions, day."""
    rows = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [row.split(":", 1)[1].strip() for row in rows if row.startswith("model name")]
    flags = {flag for row in rows if row.startswith("flags") for flag in row.split()}
    units = [
        shown for flag, shown in (("avx512f", "AVX-512"), ("avx512_bf16", "bf16"), ("amx_bf16", "AMX")) if flag in flags
    ]
    card = f"{torch.cuda.get_device_name(device)}, " if device is not None and device.type == "cuda" else ""
    return (
        f"{card}{names[0] if names else platform.processor()} ({', '.join(units) or 'no AVX-512'}), "
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, torch {torch.__version__}; "
        f"{date.today()}."
    )


def with_section(text: str, title: str, lines: Sequence[str]) -> str:
    """Return ``text`` with the section called ``title`` replaced, or added at the end; others stay as they are."""
    head, *sections = ("\n" + (text.strip() or _TITLE)).split("\n" + _HEADING)
    fresh = "\n".join([title, "", *lines])
    kept = {section.split("\n", 1)[0]: section.strip() for section in sections}
    kept[title] = fresh.strip()
    return "\n\n".join([head.strip(), *(_HEADING + section for section in kept.values())]) + "\n"


def write_section(title: str, lines: Sequence[str]) -> None:
    """Replace one section of ``RESULTS.md``."""
    before = RESULTS.read_text(encoding="utf-8") if RESULTS.is_file() else ""
    RESULTS.write_text(with_section(before, title, lines), encoding="utf-8")


def rows_of(title: str, head: Sequence[str]) -> list[str]:
    """Return the rows of the table of a section, which follow ``head``."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.is_file() else ""
    _, found, after = f"\n{text}".partition(f"\n{_HEADING}{title}\n")
    before = after.partition(f"\n{_HEADING}")[0].partition(f"\n{head[-1]}\n")[2] if found else ""
    return [line for line in before.splitlines() if line.startswith("| ")]


def write_row(title: str, head: Sequence[str], row: str, *, named_by: int = 1) -> None:
    """Put ``row`` of a table in its section, in place of the one whose first ``named_by`` cells are the same.

    ``head`` is what comes before the rows, the table's own two lines at its end; the machine's line follows them.
    """
    rows = rows_of(title, head)

    def name(line: str) -> list[str]:
        return line.split("|")[1 : 1 + named_by]

    place = next((index for index, line in enumerate(rows) if name(line) == name(row)), len(rows))
    rows[place : place + 1] = [row]
    write_section(title, [*head, *rows, "", machine()])
