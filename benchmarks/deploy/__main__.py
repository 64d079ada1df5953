"""Files that runtimes run: right, quick and as simulated? ``python -m benchmarks.deploy [--only NAME,NAME]``.

Each part is a module of this package with a function ``rows``, and a table ``deploy_NAME`` of the results. With
``--networks NAME,NAME`` the part ``runtimes`` runs these alone.
"""

from __future__ import annotations

import argparse
import importlib
import time

from senseapp.core.process import become_measuring

PARTS = ("accuracy", "times", "runtimes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME,NAME", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--networks", default="", metavar="NAME,NAME", help="of the part runtimes")
    asked = parser.parse_args()
    chosen = [name for name in asked.only.split(",") if name] or list(PARTS)
    networks = [name for name in asked.networks.split(",") if name]
    for name in chosen:
        started = time.perf_counter()
        part = importlib.import_module(f"benchmarks.deploy.{name}")
        for row in part.rows(*networks):
            row.keep(f"deploy_{name}")
        print(f"       {name}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
