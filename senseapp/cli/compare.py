"""``compare``: how far two runs or more agree on which layers are fragile."""

import argparse
from collections.abc import Sequence

from senseapp.cli.run_arguments import run_folder
from senseapp.core.errors import InvalidSpec
from senseapp.descriptions import parse_numbers
from senseapp.metrics import METRICS, divergence_among
from senseapp.records.comparison import BOTH_PARTS, Comparison, Side, compare, shared_metrics
from senseapp.records.measurement import RunResult
from senseapp.store.run_folder import RunFolder

_SHOWN = 10  # layers of each list
EPILOG = """\
Layers are matched by name; unmatched layers are listed with the reason. --levels takes percent or bits: one for all
runs, or one for each.

examples:
  python -m senseapp compare runs/resnet18 runs/resnet34 --levels 50
  python -m senseapp compare runs/zeros runs/bits --levels 50,4 --metric kl
  python -m senseapp compare runs/demo
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    parser.add_argument("runs", type=run_folder, nargs="+", metavar="RUN", help="folders of analyze or import")
    parser.add_argument(
        "--metric", choices=METRICS, metavar="M", help="metric of the ranks (default: that by which layers are ranked)"
    )
    parser.add_argument("--levels", metavar="X[,Y]", help="percent or bits; default: nearest to 50 %% or 4 bits")


def run(arguments: argparse.Namespace) -> None:
    """Print the finding, the layers that moved most, and those that could not be matched."""
    results = [RunFolder(path).load_result() for path in arguments.runs]
    sides = _sides([path.name or str(path) for path in arguments.runs], results, _levels(arguments.levels, results))
    _report(compare(sides, arguments.metric or _metric(sides)), one_run=len(results) == 1)


def _levels(text: str | None, results: Sequence[RunResult]) -> list[float]:
    """Return one level for each run, in engine units."""
    if text is None:
        from senseapp.records.headline import compared_levels

        return compared_levels(results)
    numbers = parse_numbers(text, what="Levels")
    if len(numbers) not in (1, len(results)):
        raise InvalidSpec(f"--levels takes one level, or one for each of {len(results)} runs, got {len(numbers)}.")
    each = numbers * len(results) if len(numbers) == 1 else numbers
    return [result.compression.scale.from_shown(number) for number, result in zip(each, results, strict=True)]


def _sides(names: Sequence[str], results: Sequence[RunResult], levels: Sequence[float]) -> list[Side]:
    if len(results) > 1:
        return [
            Side(title=name, result=result, level=level)
            for name, result, level in zip(names, results, levels, strict=True)
        ]
    sides = [Side(title=names[0], result=results[0], level=levels[0], part=part) for part in BOTH_PARTS]
    if not all(side.metrics for side in sides):
        raise InvalidSpec(f"{names[0]} does not have both estimates and measurements. Name a second run.")
    return sides


def _metric(sides: Sequence[Side]) -> str:
    """Return the ranking metric of the first run that the others have too."""
    shared = shared_metrics(sides)
    for name in (sides[0].result.metric, divergence_among(shared), *sorted(shared)):
        if name in shared:
            return name
    raise InvalidSpec("These runs have no metric in common, so there is nothing to compare. Measure one again.")


def _report(comparison: Comparison, *, one_run: bool) -> None:
    from senseapp.views.frames.comparison import finding, matching_text, moves_frame, side_labels, unmatched_frame
    from senseapp.views.words.wording import provenance_text

    labels = [side.title for side in comparison.sides] if one_run else side_labels(comparison.sides)
    for label, side in dict(zip(labels, comparison.sides, strict=True)).items():
        print(f"{label}: {provenance_text(side.result)}")
    print(finding(comparison))
    print(matching_text(comparison, METRICS[comparison.metric]))
    moves = moves_frame(comparison)
    if len(moves):
        print()
        shown = moves.head(_SHOWN).drop(columns="layer").rename(columns={"row": "layer", "shift": "moved"})
        print(shown.to_string(index=False, float_format=lambda value: f"{value:g}"))
    unmatched = unmatched_frame(comparison)
    if len(unmatched):
        print(f"\nNot matched ({min(_SHOWN, len(unmatched))} of {len(unmatched)}):")
        print(unmatched.head(_SHOWN).to_string(index=False))
