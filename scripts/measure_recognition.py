"""How many architectures are recognised from a state dict with a random number of classes, and how fast.

Every architecture of the installed timm and torchvision is built on torch's ``meta`` device with a number of classes
drawn from 2 to 3,000 (never its own), and recognised from its names and shapes. One counts as recognised if it is
first; identical twins share the rank. ``docs/RECOGNITION.md`` has the figures.

Usage: ``python -m scripts.measure_recognition [--limit N]``
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from scripts.build_catalogue import all_architectures
from senseapp.networks.checkpoints.checkpoint import Checkpoint
from senseapp.networks.checkpoints.fingerprint import RECOGNITION_FILE
from senseapp.networks.checkpoints.stored_networks import find_networks
from senseapp.networks.sources.catalogue import find_entry
from senseapp.networks.sources.libraries import build_on_meta

_CLASSES = range(2, 3001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What recognition made of one architecture.

    Attributes:
        title: of the architecture.
        num_classes: that it was built with.
        first: the best match, by its title; empty where there was none.
        is_first: whether the architecture itself is the best match, or has the same score.
        num_twins: other architectures with the best score.
        classes_read: read off the shapes; None where these do not tell.
        seconds: recognition took.
    """

    title: str
    num_classes: int
    first: str
    is_first: bool
    num_twins: int
    classes_read: int | None
    seconds: float


def measure_one(library: str, name: str) -> Outcome:
    """Build one architecture with a number of classes that is random but the same each time, and recognise it."""
    entry = find_entry(library, name)
    own = entry.num_classes if entry else 0
    drawn = random.Random(f"{library}/{name}")
    num_classes = next(number for number in iter(lambda: drawn.choice(_CLASSES), None) if number != own)
    state = build_on_meta(library, name, num_classes=num_classes).state_dict()
    began = time.perf_counter()
    found = find_networks(Checkpoint(file_name="", tensors=state))[0].candidates
    seconds = time.perf_counter() - began
    best = [item for item in found if item.score == found[0].score]
    mine = next((item for item in best if (item.library, item.name) == (library, name)), None)
    return Outcome(
        title=f"{library}/{name}",
        num_classes=num_classes,
        first=found[0].title if found else "",
        is_first=mine is not None,
        num_twins=len(best) - 1,
        classes_read=mine.num_classes if mine else None,
        seconds=seconds,
    )


def summary(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the figures, one sentence each, and one line for each failure."""
    recognised = [item for item in outcomes if item.is_first]
    alone = sum(item.num_twins == 0 for item in recognised)
    right = sum(item.classes_read == item.num_classes for item in recognised)
    seconds = sorted(item.seconds for item in outcomes)
    yield (
        f"{len(recognised):,} of {len(outcomes):,} architectures first ({len(recognised) / len(outcomes):.1%}), "
        f"{alone:,} of them alone."
    )
    yield f"Number of classes read off rightly: {right:,}."
    yield f"Seconds: median {statistics.median(seconds):.2f}, longest {seconds[-1]:.2f}."
    yield f"Index: {RECOGNITION_FILE.stat().st_size / 1e6:.2f} MB."
    for item in outcomes:
        if not item.is_first:
            yield f"not first: {item.title}, taken for {item.first or 'nothing'}"
        elif item.classes_read != item.num_classes:
            yield f"classes: {item.title} has {item.num_classes}, read {item.classes_read}"


def main() -> None:
    """Measure from the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="only so many architectures, drawn at random")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    architectures = all_architectures()
    if arguments.limit:
        architectures = random.Random(0).sample(architectures, arguments.limit)
    print("\n".join(summary([measure_one(*architecture) for architecture in architectures])))


if __name__ == "__main__":
    main()
