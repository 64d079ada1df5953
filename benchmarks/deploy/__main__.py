"""Files that runtimes run: right, quick and as simulated? ``python -m benchmarks.deploy [--only NAME,NAME]``.

Each part is a module of this package with a function ``rows``, and a table ``deploy_NAME`` of the results.
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
    chosen = [name for name in parser.parse_args().only.split(",") if name] or list(PARTS)
    for name in chosen:
        started = time.perf_counter()
        for row in importlib.import_module(f"benchmarks.deploy.{name}").rows():
            row.keep(f"deploy_{name}")
        print(f"       {name}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
