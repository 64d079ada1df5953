"""``schedule``: turn a run into one level per layer, in the file format of the tool that will read it."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from senseapp.cli.output import phases
from senseapp.cli.run_arguments import (
    add_run_arguments,
    add_runtime,
    add_timing,
    first_run,
    loss_from,
    number_in,
    parsed,
    partner_of,
    runtime_name,
)
from senseapp.core.errors import InvalidSpec
from senseapp.core.registry import grouped
from senseapp.core.texts import plural, printable
from senseapp.descriptions import get
from senseapp.metrics import METRICS
from senseapp.records.deployment import MILLISECONDS, LayerTimes
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.server.outputs import write_target_file
from senseapp.server.tasks import TaskContext, open_evaluator

_TIME = "ms"  # of --budget
EPILOG = """\
--target is the fraction to remove (0.8: 80 % of the weights become zero or are removed); with --budget bits the average
bits of a weight, with --budget ms the milliseconds of one call. --max-drop replaces --target: whole schedules are
measured to find the strongest one that loses at most so much.
With --budget ms, layers are timed on this machine in a runtime: pruned layers at each level of the run; quantized
layers in int8 and in float, with the conversions between them. The file is measured before it is offered. Or the times
come from --times: a CSV with the columns layer,level,ms, or LEVEL=FILE for each level. FILE is then a device's report
by onnxruntime, trtexec --exportProfile, Qualcomm AI Hub (profile job), ExecuTorch (ETDump or Inspector as JSON),
OpenVINO's benchmark_app (counters) or TFLite's benchmark_model (level 0 or 32: uncompressed). Rows without a layer, and
layers without a time, are listed on standard error.

examples:
  python -m senseapp schedule --run runs/demo --budget params --target 0.8 --format json --out targets.json
  python -m senseapp schedule --run runs/demo --method gamma --gamma 1.5 --max 80 \\
                              --budget params --target 0.5 --format yaml --out targets.yaml
  python -m senseapp schedule --run runs/demo --budget params --max-drop 1 --repair --format json --out targets.json
  python -m senseapp schedule --run runs/sparse --run runs/bits --budget bytes --target 0.9 \\
                              --format json --out targets.json
  python -m senseapp schedule --run runs/bits --budget ms --target 4.5 --format json --out targets.json
  python -m senseapp schedule --run runs/bits --budget ms --target 4.5 --times 32=float.json --times 8=int8.json \\
                              --format json --out targets.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``schedule``."""
    add_run_arguments(parser, partner_help="runs of sparsity and of quantization of one model, combined")
    parser.add_argument("--method", default="optimal", help="optimal (smallest predicted loss) or gamma (a fixed rule)")
    parser.add_argument("--budget", required=True, help="what must shrink: params, bytes, macs, bits or ms")
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--target", type=float, metavar="X", help="fraction removed, average bits, or milliseconds")
    amount.add_argument(
        "--max-drop",
        type=float,
        metavar="X",
        help="largest loss: in points for accuracy and other shares (1: one of a hundred), in nats for loss and KL",
    )
    parser.add_argument("--times", action="append", default=[], metavar="[LEVEL=]FILE", help="measured times of layers")
    add_timing(parser)
    add_runtime(parser)
    parser.add_argument("--metric", default="", metavar="M", help="metric of --max-drop (default: the run's)")
    parser.add_argument(
        "--repair", action="store_true", help="with --max-drop: repair schedules if it helps (see apply)"
    )
    parser.add_argument("--min", type=float, metavar="P", help="least level of a layer, in percent or bits")
    parser.add_argument("--max", type=float, metavar="P", help="greatest level of a layer, in percent or bits")
    parser.add_argument(
        "--lock", action="append", default=[], metavar="LAYER=P", help="lock a layer at a level; 0 leaves it alone"
    )
    parser.add_argument(
        "--gamma", type=float, default=1.5, metavar="G", help="how much gamma spares fragile layers (default: 1.5)"
    )
    parser.add_argument(
        "--format", required=True, help="name of the file format, for example json, csv or yaml; zip: all of them"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")


def run(arguments: argparse.Namespace) -> None:
    """Solve, write the file, and print what the schedule achieves."""
    from senseapp.formats.registry import ZIP_FORMAT, export_format  # loads yaml

    if arguments.format != ZIP_FORMAT:
        export_format(arguments.format)
    result = first_run(arguments).load_result()
    limits = Limits(
        min_level=_level(arguments.min, result),
        max_level=_level(arguments.max, result),
        fixed=_locked(arguments.lock, result),
    )
    if arguments.budget == _TIME:
        schedule = _timed(arguments, result, limits)
    elif len(arguments.runs) > 1:
        schedule = _mixed(arguments, result, limits)
    elif arguments.max_drop is not None:
        schedule = _strongest(arguments, result, limits)
    else:
        schedule = _solved(arguments, result, limits)
    written = write_target_file(schedule, result, format_name=arguments.format, path=arguments.out)
    _report(schedule)
    _say_how_to_apply(schedule, result, arguments.format, arguments.out)
    print(f"Wrote {' and '.join(str(path) for path in written)}")


def _solved(arguments: argparse.Namespace, result: RunResult, limits: Limits) -> Schedule:
    """Return the schedule of a budget; that of pruning truly meets it, which takes a look at the network."""
    from senseapp.solve.trade_off import schedule_for

    budget = ResourceBudget(kind=arguments.budget, target=arguments.target)
    how = {"method": arguments.method, "limits": limits, "gamma": arguments.gamma}
    schedule = schedule_for(result, budget, **how)  # a wrong request is refused before the network is loaded
    if not result.compression.description.removes_channels:
        return schedule
    from senseapp.networks.sources.load import load_model  # torch loads here
    from senseapp.prove.evaluator import couplings_of

    return schedule_for(result, budget, **how, groups=couplings_of(load_model(result.spec.model).module, result))


def _strongest(arguments: argparse.Namespace, result: RunResult, limits: Limits) -> Schedule:
    """Return the strongest schedule whose measured drop is within what is allowed."""
    if arguments.method != "optimal":
        raise InvalidSpec(f"--max-drop searches among optimal schedules; leave out --method {arguments.method}.")
    from senseapp.prove.recommend import strongest_schedule  # torch loads here

    with phases() as progress:
        found = strongest_schedule(
            open_evaluator(TaskContext(folder=first_run(arguments), observer=progress)),
            arguments.budget,
            loss_from(arguments.max_drop, arguments.metric or result.metric, flag="--max-drop"),
            metric=arguments.metric,
            repair=arguments.repair,
            limits=limits,
        )
    return found.schedule


def _timed(arguments: argparse.Namespace, result: RunResult, limits: Limits) -> Schedule:
    """Return the schedule of a time: of files, or measured here."""
    if len(arguments.runs) > 1 or arguments.method != "optimal" or arguments.target is None:
        raise InvalidSpec("--budget ms chooses levels of one run for a --target, by --method optimal only.")
    if arguments.times:
        from senseapp.solve.time_budget import schedule_within
        from senseapp.store.layer_times import merged

        times = merged(_times(words, result) for words in arguments.times)
        for what, names in (("Of no layer", times.unmatched), ("Without a time", times.untimed(result.profile))):
            for name in names:
                print(f"{what}: {printable(name)}", file=sys.stderr)
        return schedule_within(result, times, arguments.target / 1000, limits=limits)
    from senseapp.prove.timed import schedule_for_time  # torch loads here

    with phases() as progress:
        evaluator = open_evaluator(TaskContext(folder=first_run(arguments), observer=progress))
        return schedule_for_time(
            evaluator,
            evaluator.runtime(runtime_name(arguments, result.spec)),
            arguments.target / 1000,
            limits=limits,
            threads=arguments.threads,
            batch=arguments.batch_size,
        )


def _times(words: str, result: RunResult) -> LayerTimes:
    """Read one ``[LEVEL=]FILE``."""
    from senseapp.store.layer_times import MOST_BYTES, read_layer_times

    number, _, name = words.rpartition("=") if not Path(words).is_file() else ("", "", words)
    scale = result.compression.scale
    rule = f"--times takes FILE, or LEVEL=FILE with a level in percent or bits, got {words!r}."
    level = _level(number_in(number, rule), result) if number else None
    untouched = scale.untouched if level == 0 else level
    read = partial(read_layer_times, profile=result.profile, scale=scale, name=Path(name).name, level=untouched)
    return parsed(name, read, what="The times", most_bytes=MOST_BYTES)


def _mixed(arguments: argparse.Namespace, result: RunResult, limits: Limits) -> Schedule:
    """Return the schedule of zeros and bits together, from two runs of one model."""
    if arguments.target is None or arguments.method != "optimal":
        raise InvalidSpec("A second --run chooses two compressions together for a --target, by --method optimal only.")
    from senseapp.solve.methods import mixed_schedule

    partner = partner_of(arguments, result)
    assert partner is not None
    budget = ResourceBudget(kind=arguments.budget, target=arguments.target)
    return mixed_schedule(result, partner, budget=budget, limits={result.compression.kind: limits})


def _level(level: float | None, result: RunResult) -> float | None:
    return None if level is None else result.compression.scale.from_shown(level)


def _locked(words: list[str], result: RunResult) -> Mapping[str, float]:
    """Return the level of each ``LAYER=P``."""
    locked = {}
    for word in words:
        layer, _, number = word.rpartition("=")
        rule = f"--lock takes LAYER=P, a layer and its percent or bits, got {word!r}."
        locked[layer] = result.compression.scale.from_shown(number_in(number if layer else "", rule))
    return locked


def _report(schedule: Schedule) -> None:
    compressed = [entry for entry in schedule.entries if entry.compression != "none"]
    levels = grouped((entry.compression, entry.level) for entry in compressed)
    touched = {entry.layer for entry in compressed}
    parts = "".join(f"; {_range(kind, found)}" for kind, found in levels.items())
    print(f"{plural(len(touched), 'layer or group', 'layers or groups')} compressed{parts}.")
    metric = METRICS[schedule.metric]
    damage = f"{metric.factor * schedule.predicted_damage:.4g} {metric.change_unit}".rstrip()
    print(f"Predicted, before it is measured: {metric.change_inside} {damage}.")
    for kind, figure in schedule.achieved.items():
        if kind == MILLISECONDS:
            print(f"Time of one call: {figure:.3g} ms")
            continue
        compact = ", if zeros are stored sparse and weights at their bits" if kind == "bytes" else ""
        print(f"Average bits: {figure:.4g}" if kind == "bits" else f"{kind}: {100 * figure:.1f} % removed{compact}")
    for note in filter(None, (schedule.beyond_budget, *schedule.notes)):
        print(note)


def _range(kind: str, levels: Sequence[float]) -> str:
    """Return the levels of one compression: ``sparsity of 25 to 75 % in 12 layers or groups``."""
    scale = get(kind).scale
    shown = dict.fromkeys(f"{scale.shown(level):.3g}" for level in (min(levels), max(levels)))
    return f"{kind} of {' to '.join(shown)} {scale.suffix} in {len(levels)}"


def _say_how_to_apply(schedule: Schedule, result: RunResult, format_name: str, path: Path) -> None:
    """Print the limitations of the file beyond the schedule's own notes, and the lines that apply it."""
    from senseapp.formats.registry import ZIP_FORMAT, export_format  # loads yaml

    if format_name == ZIP_FORMAT:
        print("README.txt in the zip says what each file cannot say, and how it is applied.")
        return
    target = export_format(format_name)
    for note in target.notes(schedule, result.profile):
        if note not in schedule.notes:
            print(note)
    print(f"To apply it:\n\n{target.lines(schedule, str(path))}")
