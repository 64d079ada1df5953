"""``schedule``: turn a run into one level per layer, in the file format of the tool that will read it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from senseapp.results import ResourceBudget, Schedule, SensitivityResult
from senseapp.service import level_for_people, write_target_file
from senseapp.spec import PruningConfig, QuantizationConfig
from senseapp.store import RunFolder

__all__ = ["EPILOG", "NAME", "SUMMARY", "add_arguments", "run"]

NAME = "schedule"
SUMMARY = "Choose one level per layer for a budget, and write the file your tool reads."
EPILOG = """\
--target is the fraction removed (0.8: 80 % of the weights zero or gone), and with --budget bits the average bits.

examples:
  python -m senseapp schedule --run runs/demo --budget params --target 0.8 --format json --out targets.json
  python -m senseapp schedule --run runs/demo --method gamma --gamma 1.5 --max 80 \\
                              --budget params --target 0.5 --format yaml --out targets.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``schedule``."""
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", dest="run_folder", help="folder of analyze")
    parser.add_argument("--method", default="optimal", help="optimal (least damage) or gamma (the classic rule)")
    parser.add_argument("--budget", required=True, help="what must shrink: params, bytes, macs or bits")
    parser.add_argument("--target", type=float, required=True, metavar="X", help="fraction removed, or average bits")
    parser.add_argument("--min", type=float, metavar="P", help="least level of a layer, in percent or bits")
    parser.add_argument("--max", type=float, metavar="P", help="greatest level of a layer, in percent or bits")
    parser.add_argument("--gamma", type=float, default=1.5, metavar="G", help="of the classic rule (default: 1.5)")
    parser.add_argument("--format", required=True, help="name of the file format, for example json, csv or yaml")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")


def run(arguments: argparse.Namespace) -> None:
    """Solve, write the file, and print what the schedule achieves.

    Raises:
        InvalidInput: the run, the budget or the format cannot be used.
        NotFound: the folder holds no finished run.
    """
    from senseapp.schedule import Limits, make_schedule  # loads scipy, which the other commands do without

    result = RunFolder(arguments.run_folder).load_result()
    limits = Limits(min_level=_level(arguments.min, result), max_level=_level(arguments.max, result))

    def make(target: float) -> Schedule:
        budget = ResourceBudget(kind=arguments.budget, target=target)
        return make_schedule(result, budget=budget, method=arguments.method, limits=limits, gamma=arguments.gamma)

    if isinstance(result.spec.sensitivity.compression, PruningConfig):
        schedule = _of_true_size(make, result, ResourceBudget(kind=arguments.budget, target=arguments.target))
    else:
        schedule = make(arguments.target)
    written = write_target_file(schedule, result, format_name=arguments.format, path=arguments.out)
    _report(schedule, result, written)


def _of_true_size(make: Callable[[float], Schedule], result: SensitivityResult, budget: ResourceBudget) -> Schedule:
    """Return a schedule of pruning that truly meets the budget, which takes pruning the network for a trial."""
    make(budget.target)  # what is wrong with the request is said before the network is loaded
    from senseapp.models.load import load_model  # torch loads here
    from senseapp.validation import schedule_of_true_size

    return schedule_of_true_size(make, result, load_model(result.spec.model).module, budget)


def _level(level: float | None, result: SensitivityResult) -> float | None:
    if level is None or isinstance(result.spec.sensitivity.compression, QuantizationConfig):
        return level
    return level / 100


def _report(schedule: Schedule, result: SensitivityResult, written: tuple[Path, ...]) -> None:
    levels = [entry.level for entry in schedule.entries if entry.compression != "none"]
    unit = "bits" if isinstance(result.spec.sensitivity.compression, QuantizationConfig) else "%"
    low, high = (f"{level_for_people(level, result):.3g}" for level in (min(levels), max(levels))) if levels else "00"
    print(f"{len(levels)} layers or groups compressed, from {low} to {high} {unit}.")
    print(f"Predicted rise of {schedule.metric}: {schedule.predicted_damage:.4g}, before it is measured.")
    for kind, figure in schedule.achieved.items():
        print(f"Average bits: {figure:.4g}" if kind == "bits" else f"{kind}: {100 * figure:.1f} % removed")
    for note in schedule.notes:
        print(note)
    print(f"Wrote {' and '.join(str(path) for path in written)}")
