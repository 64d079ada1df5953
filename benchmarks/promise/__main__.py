"""``python -m benchmarks.promise``: how often promised losses are broken, and what is offered under them.

A promise with 95 % certainty, of 1, 2, 3, 5 or 10 points; 2 to 10 files, whose expected losses lie around it; hard
images are hard for all files. The product's own decision on held-out images; a promise is broken where the expected
loss of the file that is offered is larger. Files are made from mild to strong, in a random order, or by a search: the
strongest that 128 other images let pass, then milder ones.
"""

from __future__ import annotations

import argparse

from benchmarks.promise import simulated
from benchmarks.results import keep

_WAYS = {
    "mild to strong": simulated.mild_to_strong,
    "by chance": simulated.by_chance,
    "search": simulated.found_by_search,
}
_FEWER = 5  # times fewer deployments, where each bound takes a bootstrap


def main() -> None:
    """Simulate, and keep a row for each family, number of images and way of making files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promise", description=__doc__)
    parser.add_argument("--deployments", type=int, default=500)
    arguments = parser.parse_args()
    families: list[tuple[str, simulated.Family, tuple[int, ...], int]] = [
        ("answers that change", simulated.answers, (200, 500, 2000), 1),
        ("right answers (top-1)", simulated.right_answers, (200, 500, 2000), 1),
        ("labels that change", simulated.labels, (500,), 1),
        ("mean IoU", simulated.masks(0), (500,), 1),
        ("F1 of objects", simulated.objects(0), (200,), _FEWER),
    ]
    for name, family, sizes, fewer in families:
        for images in sizes:
            count = arguments.deployments // fewer
            tallies = simulated.simulate(family, images=images, deployments=count, makers=tuple(_WAYS.values()))
            for tally, way in zip(tallies, _WAYS, strict=True):
                keep("promise", tally.row(f"{name}, {way}", images), named_by=2)


if __name__ == "__main__":
    main()
