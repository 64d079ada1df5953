"""``make bench``: ours beside fasterai 0.3.2 and a plain loop, in turn, on the processor; then our memory.

32 images of 224 pixels, each layer at 50 % zeros, loss of fixed labels. Each figure is a run in a process of its own;
tools take turns, so that a slow minute of the machine hits all of them, and ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.cases import MODELS, NUM_IMAGES
from benchmarks.results import keep
from scripts.peer_environment import ensure
from senseapp.core.process import become_measuring

ROOT = Path(__file__).resolve().parents[1]
_TOOLS = ("fasterai", "plain", "ours")
_OURS = ("ours",)  # the others run as they would without senseapp


def run(tool: str, model: str, peer: Path) -> dict[str, Any]:
    """Return what ``benchmarks.worker`` prints."""
    python = str(peer) if tool == "fasterai" else sys.executable
    environment = {name: value for name, value in os.environ.items() if tool in _OURS or not name.startswith("MALLOC_")}
    command = [python, "-W", "ignore", "-m", "benchmarks.worker", tool, model]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    return found


def speed(model: str, repeats: int, peer: Path) -> dict[str, object]:
    """Return a row of the results: median seconds, and how many times as fast as fasterai."""
    seconds, deltas = defaultdict[str, list[float]](list), dict[str, dict[str, float]]()
    for _ in range(repeats):
        for tool in _TOOLS:
            found = run(tool, model, peer)
            seconds[tool].append(found["seconds"])
            deltas[tool] = found["deltas"]
            print(f"{model} {tool}: {found['seconds']:.1f} s", flush=True)
    medians = {tool: statistics.median(each) for tool, each in seconds.items()}
    times = {f"{tool} s": f"{each:.1f}" for tool, each in medians.items()}
    difference = _largest_difference(deltas["fasterai"], deltas["ours"])
    return {"model": model, **times, "ours ×": f"{medians['fasterai'] / medians['ours']:.2f}", "Δ": difference}


def _largest_difference(theirs: dict[str, float], mine: dict[str, float]) -> str:
    """Return the largest difference of a layer's change to fasterai's, as a share of their range."""
    shared = [(theirs[name], mine[name]) for name in theirs if name in mine]
    span = max(value for value, _ in shared) - min(value for value, _ in shared)
    return f"{max(abs(a - b) for a, b in shared) / span:.1e}"


def memory(peer: Path) -> dict[str, object]:
    """Return the row of the peak of a sweep beside that of one pass."""
    sweep, forward = (run(tool, "resnet50", peer)["peak_bytes"] for tool in ("ours", "forward"))
    peaks = {"sweep GB": f"{sweep / 1e9:.2f}", "one pass GB": f"{forward / 1e9:.2f}"}
    return {"model": "resnet50", "images": NUM_IMAGES, **peaks, "ratio": f"{sweep / forward:.2f}"}


def main() -> None:
    """Keep a row of each model, as soon as it is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved runs of each tool")
    options = parser.parse_args()
    peer = ensure("fasterai")
    for model in options.models.split(","):
        keep("speed", speed(model, options.repeats, peer))
    keep("memory", memory(peer))


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
