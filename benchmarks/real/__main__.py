"""What senseapp delivers on a real network and real photographs: ``python -m benchmarks.real [--only NAME,NAME]``.

Each part is a module of this package with a function ``rows``, and a section of ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import argparse
import importlib
import time

from benchmarks.real.rows import Row, table
from benchmarks.results import write_section
from senseapp.core.process import become_measuring

TITLE = "A real network, {part} (`python -m benchmarks.real`)"
INTRO = (
    "EfficientNet-Lite0 with ImageNet weights; nothing is scored on a part of a picture that it was made from. "
    "Weights and pictures: `benchmarks/real/network.py`, `benchmarks/real/photographs.py`."
)
PARTS = ("repair", "pruned", "checkpoints", "macs", "quick_scan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,NAME", help=f"of {', '.join(PARTS)}")
    chosen = [name for name in parser.parse_args().only.split(",") if name] or list(PARTS)
    for name in chosen:
        found: list[Row] = []
        started = time.perf_counter()
        for row in importlib.import_module(f"benchmarks.real.{name}").rows():
            print(f"{'holds' if row.holds else 'FAILS'}  {row.what}: {row.found} (wanted {row.wanted})", flush=True)
            found.append(row)
        print(f"       {name}: {time.perf_counter() - started:.0f} s", flush=True)
        write_section(TITLE.format(part=name), [INTRO, "", *table(found)])


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
