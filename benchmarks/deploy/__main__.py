"""Files that runtimes run: right, quick and as simulated? ``python -m benchmarks.deploy [--only NAME,NAME]``.

Each part is a module of this package with a function ``rows``, and a section of ``benchmarks/RESULTS.md``. With
``--networks NAME,NAME`` the part ``runtimes`` runs these alone, and rows of others stay.
"""

from __future__ import annotations

import argparse
import importlib
import time

from benchmarks.real.rows import HEAD, Row, table
from benchmarks.results import write_row, write_section
from senseapp.core.process import become_measuring

TITLE = "Files that onnxruntime runs, {part} (`python -m benchmarks.deploy`)"
PARTS = ("accuracy", "times", "runtimes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,NAME", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--networks", default="", metavar="NAME,NAME", help="of the part runtimes")
    asked = parser.parse_args()
    chosen = [name for name in asked.only.split(",") if name] or list(PARTS)
    networks = [name for name in asked.networks.split(",") if name]
    for name in chosen:
        found: list[Row] = []
        started = time.perf_counter()
        part = importlib.import_module(f"benchmarks.deploy.{name}")
        title = TITLE.format(part=name)
        for row in part.rows(*networks):
            print(f"{'holds' if row.holds else 'FAILS'}  {row.what}: {row.found} (wanted {row.wanted})", flush=True)
            found.append(row)
            if networks:
                write_row(title, [part.INTRO, "", *HEAD], row.line)
        print(f"       {name}: {time.perf_counter() - started:.0f} s", flush=True)
        if not networks:
            write_section(title, [part.INTRO, "", *table(found)])


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
