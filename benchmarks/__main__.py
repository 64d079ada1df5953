"""``make bench``: ours beside fasterai 0.3.2, the plain loop and the floor, in turn, all on one device.

32 images of 224 pixels, loss of fixed labels. Each figure is a run in a process of its own; tools take turns, so
that a slow minute of the machine hits all of them, and ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import MODELS, NUM_IMAGES
from benchmarks.results import keep
from scripts.peer_environment import ensure
from senseapp.core.process import become_measuring

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("speed", "memory")


@dataclass(frozen=True)
class Row:
    """One comparison."""

    model: str
    compression: str
    levels: int
    tools: tuple[str, ...]


@dataclass
class Runs:
    """All runs of one row, by tool."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: dict[str, list[int]] = field(default_factory=dict)
    deltas: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failed: str = ""  # what fasterai said last, if it did not finish

    def median(self, tool: str) -> float:
        return statistics.median(self.seconds[tool])

    def ratio(self, tool: str, over: str) -> str:
        if tool not in self.seconds or over not in self.seconds:
            return "–"
        return f"{self.median(over) / self.median(tool):.2f}"


def rows(model: str) -> Iterator[Row]:
    yield Row(model, "sparsity", 1, ("fasterai", "plain", "notebook", "ours", "ours-auto", "floor"))
    yield Row(model, "quantization", 1, ("fasterai", "ours", "floor"))
    yield Row(model, "pruning", 1, ("fasterai", "ours", "ours-auto", "floor"))
    yield Row(model, "sparsity", 5, ("fasterai", "ours", "quick", "floor"))


def run(tool: str, row: Row, peer: Path, images: int = NUM_IMAGES, device: str = "cpu") -> dict[str, Any]:
    python = peer if tool == "fasterai" else Path(sys.executable)
    arguments = [str(python), "-W", "ignore", "-m", "benchmarks.worker", tool, row.model, row.compression]
    ours = tool not in ("fasterai", "plain", "forward")  # the others run as they would without senseapp
    environment = {name: value for name, value in os.environ.items() if ours or not name.startswith("MALLOC_")}
    command = [*arguments, str(row.levels), str(images), device]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    return found


def compare(row: Row, repeats: int, peer: Path, one_level: Runs | None, device: str) -> Runs:
    """Run the tools of ``row`` in turn; fasterai not, but as often as its ``one_level`` says, if that is given."""
    runs = Runs()
    if one_level:
        runs.failed = one_level.failed
    if one_level and not one_level.failed:
        runs.seconds["fasterai"] = [row.levels * seconds for seconds in one_level.seconds["fasterai"]]
    for _ in range(repeats):
        for tool in row.tools:
            if one_level and tool == "fasterai":
                continue
            try:
                found = run(tool, row, peer, device=device)
            except subprocess.CalledProcessError as error:
                if tool != "fasterai":  # a row without ours is no comparison; one without theirs says something
                    raise
                runs.failed = [str(error), *error.stderr.strip().splitlines()][-1]
                print(f"{row.model} {row.compression} x{row.levels} {tool} fails: {runs.failed}", flush=True)
                continue
            runs.seconds.setdefault(tool, []).append(found["seconds"])
            runs.peak_bytes.setdefault(tool, []).append(found["peak_bytes"])
            runs.deltas[tool] = found["deltas"]
            print(f"{row.model} {row.compression} x{row.levels} {tool}: {found['seconds']:.1f} s", flush=True)
    return runs


def largest_difference(runs: Runs) -> str:
    """Return the largest difference of a delta to fasterai's, as a share of their range; sparsity only."""
    theirs, mine = runs.deltas.get("fasterai"), runs.deltas.get("ours")
    if not theirs or not mine:
        return "–"
    shared = [(theirs[name][0], mine[name][0]) for name in theirs if name in mine]
    span = max(value for value, _ in shared) - min(value for value, _ in shared)
    return f"{max(abs(a - b) for a, b in shared) / span:.1e}" if span else "–"


def cells(row: Row, runs: Runs) -> dict[str, object]:
    """Return a row of the results; ratios are fasterai's seconds over those of the tool."""
    seconds = {tool: f"{runs.median(tool):.1f}" if tool in runs.seconds else "–" for tool in _TIMED}
    ratios = {f"{name} ×": runs.ratio(tool, "fasterai") for tool, name in _FASTER.items()}
    return {
        "model": row.model,
        "compression": row.compression,
        "levels": row.levels,
        "fasterai s": "fails" if runs.failed else seconds["fasterai"],
        "plain s": seconds["plain"],
        "ours s": seconds["ours"],
        **ratios,
        "ours / floor": runs.ratio("floor", "ours"),
        "Δ": largest_difference(runs) if row.compression == "sparsity" else "–",
    }


_TIMED = ("fasterai", "plain", "ours")
_FASTER = {"ours": "ours", "notebook": "notebook", "ours-auto": "ours auto", "quick": "quick"}
"""Tools that are set against fasterai, and their names in the table."""


def memory(peer: Path) -> dict[str, object]:
    row = Row("resnet50", "sparsity", 1, ())
    sweep, forward = run("ours", row, peer)["peak_bytes"], run("forward", row, peer)["peak_bytes"]
    peaks = {"sweep GB": f"{sweep / 1e9:.2f}", "one pass GB": f"{forward / 1e9:.2f}"}
    return {"model": "resnet50", "images": NUM_IMAGES, **peaks, "ratio": f"{sweep / forward:.2f}"}


def compare_speed(rows_of_model: Sequence[Row], options: argparse.Namespace, peer: Path) -> None:
    """Compare all tools on one model; each row is written as soon as it is there, in case the rest is interrupted.

    With ``--scale-fasterai`` its runs at five levels, which share nothing, are counted as five times its run at one.
    """
    table = "speed" if options.device == "cpu" else f"speed_{options.device.partition(':')[0]}"
    one_level: dict[str, Runs] = {}
    for row in rows_of_model:
        scaled = one_level.get(row.compression) if options.scale_fasterai and row.levels > 1 else None
        runs = compare(row, options.repeats, peer, scaled, options.device)
        if row.levels == 1:
            one_level[row.compression] = runs
        keep(table, cells(row, runs), named_by=3, device=torch.device(options.device))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved runs of each tool")
    parser.add_argument("--compressions", default="sparsity,quantization,pruning")
    parser.add_argument("--levels", default="1,5")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="comma-separated; others stay as they are")
    parser.add_argument(
        "--scale-fasterai",
        action="store_true",
        help="count its separate runs at several levels as that many times its run at one, rather than wait for them",
    )
    parser.add_argument("--device", default="cpu", help="that all tools run on: cpu, cuda, cuda:1, mps")
    options = parser.parse_args()
    peer, sections = ensure("fasterai"), options.sections.split(",")
    for model in options.models.split(",") if "speed" in sections else ():
        chosen = [
            row
            for row in rows(model)
            if row.compression in options.compressions.split(",") and str(row.levels) in options.levels.split(",")
        ]
        compare_speed(chosen, options, peer)
    if options.device != "cpu":  # what follows is about the processor
        return
    if "memory" in sections:
        keep("memory", memory(peer))


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
