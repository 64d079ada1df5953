"""How long the solver takes for a large network: 200 layers of 20 levels.

python -m benchmarks.solve_time
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from senseapp.records.schedule import ResourceBudget
from senseapp.solve.methods import make_schedule
from tests.schedule_cases import run_of

NUM_LAYERS, NUM_LEVELS = 200, 20
TARGETS = (0.3, 0.5, 0.7, 0.8, 0.9)
SEEDS = range(5)
ROOT = Path(__file__).resolve().parents[1]


def solve_time() -> str:
    """Return the sentence of a process of its own: elsewhere, collecting torch's objects would be timed as well."""
    command = [sys.executable, "-m", "benchmarks.solve_time"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def measured() -> str:
    """Return one sentence: the median and the longest time of a whole ``make_schedule``, over sizes and budgets."""
    levels = tuple(round(0.98 * step / NUM_LEVELS, 4) for step in range(1, NUM_LEVELS + 1))
    seconds = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        sizes = {f"layer{index:03}": int(10 ** rng.uniform(3, 6.5)) for index in range(NUM_LAYERS)}
        damages = {
            name: list(10.0 ** rng.uniform(-5, -1) * np.expm1(rng.uniform(3, 9) * np.array(levels))) for name in sizes
        }
        for target in TARGETS:
            run = run_of(sizes, damages, levels)  # a new run each time: curves that were fitted before are kept
            started = time.process_time()
            make_schedule(run, budget=ResourceBudget(kind="params", target=target))
            seconds.append(time.process_time() - started)
    return (
        f"Solve time, {NUM_LAYERS} layers × {NUM_LEVELS} levels, measurements to schedule, in processor seconds: "
        f"median {statistics.median(seconds):.2f}, longest {max(seconds):.2f} of {len(seconds)} (wanted: under 0.3 s)."
    )


if __name__ == "__main__":
    print(measured())
