"""``analyze``: measure every layer of one model or of several, and write the results into folders."""

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from senseapp.cli.compression_arguments import add_compression_arguments
from senseapp.cli.leaderboard import leaderboard_csv, leaderboard_row, ranked
from senseapp.cli.output import ProgressBar, phases
from senseapp.cli.run_arguments import MODES, PUBLISHED, parsed, print_outputs, run_spec_from
from senseapp.core.errors import ClusterFailed, InvalidInput, InvalidSpec, SenseError
from senseapp.core.files import replace_file
from senseapp.core.tables import TableError, decoded_text
from senseapp.descriptions import SOURCES
from senseapp.measure.cluster.cluster import cluster_address, connected
from senseapp.metrics import METRICS
from senseapp.records.headline import headline
from senseapp.records.measurement import RunResult
from senseapp.records.spec import AVERAGED, RunSpec
from senseapp.server.execution import Measurement, cluster_for
from senseapp.server.outputs import write_outputs
from senseapp.server.process.processes import carry_out_on_cluster
from senseapp.server.tasks import TaskContext, open_local_session
from senseapp.store.run_folder import RunFolder
from senseapp.tasks import TASKS

EPILOG = """\
DIR receives result.json (everything), sensitivity.csv (one row per layer, level and metric) and targets.json
(percent per layer for a mean of 50 %; for quantization bits per layer for an average of 4).
Each measurement is stored at once: the same command with the same DIR continues an unfinished run.
With several models (--model repeated, or --model @FILE), each gets a folder in DIR, and leaderboard.csv compares them.
If SENSEAPP_RAY_ADDRESS is set (auto, or host:port), a Ray cluster measures; docs/scale.md has the steps.
--data torchvision/NAME downloads a published set once. NAME is one of
  cifar10 cifar100 mnist fashion_mnist kmnist svhn imagenette eurosat flowers102 oxford_pets

--goal sets compression, levels and metric; --compression, --levels and --metric replace what it sets.

examples:
  python -m senseapp analyze --model demo --data demo --goal faster --out runs/faster
  python -m senseapp analyze --model demo --data demo --compression sparsity --levels 25,50,75 --out runs/demo
  python -m senseapp analyze --model demo/efficientnet_lite0 --data photographs --samples 48 --out runs/photographs
  python -m senseapp analyze --model demo/shapes_detector --data shapes --samples 96 --out runs/detector
  python -m senseapp analyze --model timm/resnet50 --checkpoint weights.safetensors --data photos.zip \\
                             --compression quantization --levels 8,4,3 --samples 512 --out runs/resnet50
  python -m senseapp analyze --model auto --checkpoint unknown.pth --data photos.zip --labels none --out runs/unknown
  python -m senseapp analyze --model onnx --checkpoint network.onnx --data photos.zip --out runs/network
"""


# powers of 2, and 1,000: what clusters have, from one machine to a large one
_WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))  # seconds of a day, an hour, a minute


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``analyze``."""
    model, images = parser.add_argument_group("model"), parser.add_argument_group("images")
    add_model_arguments(model, several=True)
    add_data_arguments(images)
    add_compression_arguments(parser.add_argument_group("compression"))
    measurement = parser.add_argument_group("measurement")
    measurement.add_argument("--metric", help=f"by which layers are ranked: {', '.join(METRICS)}")
    measurement.add_argument("--layers", default="", metavar="PATTERN", help="names such as 'layer1.*', with commas")
    measurement.add_argument(
        "--mode",
        default="exact",
        choices=MODES,
        help="exact: measure each layer; quick: only estimate; settled: start with few images, and add images only for "
        "layers whose order is not yet clear; plan: only predict how a cluster would share the run, and its duration "
        "(default: exact)",
    )
    measurement.add_argument(
        "--adapt",
        action="store_true",
        help="measure each layer with adapted weights: fitted so that its outputs come close to the original's; for "
        "schedules that are applied or deployed with --adapt",
    )
    measurement.add_argument("--precision", default="fp32", help="fp32, bf16 or auto (default: fp32)")
    measurement.add_argument(
        "--device", default="auto", metavar="D", help="cpu, cuda, cuda:1 or mps (default: a graphics card if any)"
    )
    measurement.add_argument("--seed", type=int, default=0, metavar="S", help="seed of all random numbers (default: 0)")
    measurement.add_argument(
        "--batch-size", type=int, metavar="B", help="most images in one pass (default: by a trial)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")


def add_model_arguments(group: argparse._ArgumentGroup, *, several: bool) -> None:
    """Add ``--model``, on request for several models, and what says which weights and sizes it has."""
    runnable = [source for source in SOURCES.values() if source.is_runnable]
    alone = ", ".join(source.name + "/NAME" * source.needs_name for source in runnable if not source.reads)
    named = f"{alone}, or {' or '.join(source.name for source in runnable if source.reads)} with --checkpoint"
    if several:
        many = "may be repeated; @FILE names a file with one MODEL or MODEL,CHECKPOINT per line"
        group.add_argument("--model", action="append", help=f"{named}; {many}")
    else:
        group.add_argument("--model", help=named)
    group.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="weights, a folder or zip of config.json and weights (timm's local-dir), an ONNX file, or the word "
        f"{PUBLISHED}, which downloads the published weights of the library (default: random weights)",
    )
    group.add_argument(
        "--runtime",
        choices=("onnxruntime",),
        help="let onnxruntime compute nodes of an ONNX file that senseapp does not support; estimates and pruning are "
        "then not available",
    )
    group.add_argument(
        "--network",
        default="",
        metavar="NAME",
        help="which of several networks in the checkpoint: the prefix of the names of its weights, or a part of the "
        f"prefix, such as {AVERAGED}",
    )
    group.add_argument(
        "--onnx-output",
        action="append",
        metavar="NAME",
        help="output tensor of the ONNX file to measure; may be repeated (default: what fits the task)",
    )
    group.add_argument("--num-classes", type=int, metavar="N", help="number of classes")
    group.add_argument("--in-chans", type=int, metavar="C", help="channels of the input")
    group.add_argument("--img-size", type=int, metavar="S", help="height and width of the input")
    group.add_argument(
        "--task",
        choices=list(TASKS),
        default="",
        help="what the output means (default: by the architecture): "
        + "; ".join(f"{name}, {task.label.partition(': ')[2]}" for name, task in TASKS.items()),
    )


def add_onnx_arguments(group: argparse._ArgumentGroup) -> None:
    """Add what of an ONNX file is compared with another file."""
    group.add_argument(
        "--task", choices=list(TASKS), default="", help="what the output means (default: classification)"
    )
    group.add_argument(
        "--onnx-output",
        action="append",
        metavar="NAME",
        help="output tensor to compare; may be repeated (default: by the task)",
    )
    group.add_argument("--img-size", type=int, metavar="S", help="height and width, if they are dynamic in the file")


def add_data_arguments(group: argparse._ArgumentGroup, *, required: bool = True) -> None:
    """Add ``--data``, and how images are labelled, chosen and prepared."""
    group.add_argument(
        "--data", required=required, help="demo, photographs, shapes, random, torchvision/NAME, or a folder or archive"
    )
    group.add_argument(
        "--labels",
        default="",
        metavar="TABLE",
        help="a table in DATA and its column of labels, as labels.csv,label; or the word none (default: class folders)",
    )
    group.add_argument(
        "--class-map",
        default="",
        metavar="FILE",
        help="which class of the model each folder, label or annotated class means: a table label,class, a list of "
        "names in the order of the model's outputs, or JSON (default: by name, number or order; if several fit, the "
        "images decide)",
    )
    group.add_argument("--samples", type=int, metavar="N", help="images to measure on (default: all)")
    group.add_argument("--mean", default="", metavar="M,..", help="per channel (default: the model's own)")
    group.add_argument("--std", default="", metavar="S,..", help="per channel (default: the model's own)")
    group.add_argument("--crop-pct", type=float, metavar="P", help="share kept by the centre crop, above 0 up to 1")
    group.add_argument("--reading", type=Path, metavar="FILE", help="the reading that the command read wrote")
    group.add_argument(
        "--preprocessing",
        default="",
        metavar="WORD,..",
        help="auto: choose the preprocessing by results on the images (default with --checkpoint); own: use that of "
        "the architecture or the file, without a comparison; rgb or bgr: order of channels (bgr: as OpenCV reads "
        "pictures); upright: turn pictures by their EXIF rotation (default: as stored)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, show progress on standard error, and print the headline and the notes, or a leaderboard of models."""
    items = batch_of(arguments)
    if arguments.mode == "plan":
        for item in items:
            _print_plan(run_spec_from(item))
    elif len(items) == 1 and items[0].out == arguments.out:
        _report(_analyze(items[0]), arguments.out)
    else:
        run_batch(items, _analyze, arguments.out)


def _analyze(arguments: argparse.Namespace) -> RunResult:
    spec, folder = run_spec_from(arguments), RunFolder(arguments.out)
    folder.make()
    with closing(ProgressBar()) as bar:
        task = Measurement(run_id="", spec=spec)
        context = TaskContext(folder=folder, observer=bar, open_session=open_local_session)
        if address := cluster_for(spec):
            carry_out_on_cluster(task, context, device=spec.sensitivity.device, address=address)
        else:
            task.carry_out(context)
    result = folder.load_result()
    write_outputs(result, folder.path)
    return result


def _report(result: RunResult, folder: Path) -> None:
    print(headline(result))
    for level, agreement in result.agreement.items():
        shown = result.compression.scale.shown(float(level))
        if math.isnan(agreement):  # nothing is lost anywhere: there is no order
            continue
        print(f"At level {shown:g} estimates and measurements rank layers alike: Spearman {agreement:.3f}.")
    print_outputs(result, folder)


def _print_plan(spec: RunSpec) -> None:
    """Time a few images here, and print how the run would be shared out; nothing is measured."""
    workers = 0
    if address := cluster_address():
        with connected(address, device=spec.sensitivity.device) as cluster:
            workers = cluster.workers
    print("\n".join(_plan_lines(spec, workers)))


def _plan_lines(spec: RunSpec, workers: int) -> Iterator[str]:
    from senseapp.measure.cluster.plan import choose_plan, forecast_costs  # torch loads here

    with phases() as progress:
        costs, most_images = forecast_costs(spec, progress=progress)
    yield (
        f"{len(costs.shares)} targets × {costs.num_levels} levels on {costs.num_images} images, "
        f"{1000 * costs.seconds_per_image:.1f} ms for one image and one pass as timed here."
    )
    yield f"One machine by itself: about {_time(costs.local_seconds)}."
    if workers:
        plan = choose_plan(costs, workers, most_images=most_images)
        yield f"The cluster as it is now: {plan.sentence()} About {_time(plan.seconds)}."
    yield "Predicted, for workers as fast as this machine:"
    yield f"{'workers':>8}{'time':>10}{'times as fast':>15}{'efficiency':>12}{'tasks':>8}   blocks × spans"
    for plan in (choose_plan(costs, count, most_images=most_images) for count in _WORKERS):
        cut = f"{len(plan.blocks)} × {plan.num_spans} of {plan.span_images}"
        yield (
            f"{plan.workers:>8}{_time(plan.seconds):>10}{plan.speed_up:>15.1f}{plan.efficiency:>12.2f}"
            f"{plan.num_tasks:>8}   {cut}"
        )


def _time(seconds: float) -> str:
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), (1, "s"))
    return f"{seconds / size:.3g} {unit}"


TABLE = "leaderboard.csv"


def batch_of(arguments: argparse.Namespace) -> tuple[argparse.Namespace, ...]:
    """Return the arguments of each model that is asked for; one alone keeps the folder for itself."""
    asked: list[tuple[str, str | None]] = []
    for model in arguments.model or ():
        asked += _listed(Path(model[1:])) if model.startswith("@") else [(model, arguments.checkpoint)]
    if not asked:
        raise InvalidSpec("Say which model: --model NAME, once or more often, or --model @FILE with one in each line.")
    if len(asked) == 1 and asked[0][0] in arguments.model:
        return (_of_one(arguments, *asked[0], arguments.out),)
    if arguments.checkpoint not in (None, PUBLISHED):
        raise InvalidSpec(
            "--checkpoint belongs to one model. For several, give --model @FILE of MODEL,CHECKPOINT lines."
        )
    names = [_folder_name(model, checkpoint) for model, checkpoint in asked]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise InvalidSpec(f"Each model may be given once, and {twice} comes more often. Remove one of them.")
    return tuple(
        _of_one(arguments, model, checkpoint, arguments.out / name)
        for (model, checkpoint), name in zip(asked, names, strict=True)
    )


def _of_one(arguments: argparse.Namespace, model: str, checkpoint: str | None, out: Path) -> argparse.Namespace:
    return argparse.Namespace(**(vars(arguments) | {"model": model, "checkpoint": checkpoint, "out": out}))


def run_batch(
    items: Sequence[argparse.Namespace], analyze: Callable[[argparse.Namespace], RunResult], out: Path
) -> list[dict[str, Any]]:
    """Analyze each model, write the leaderboard after each, print it, and return it."""
    rows, refused = [], []
    for number, item in enumerate(items, start=1):
        name = item.out.name
        print(f"{number} of {len(items)}: {name}", file=sys.stderr)
        try:
            result = analyze(item)
        except ClusterFailed:
            raise
        except SenseError as error:
            refused.append(name)
            print(f"senseapp: {name}: {' '.join(str(error).split())}", file=sys.stderr)
            continue
        rows.append(leaderboard_row(result, run=name))
        replace_file(out / TABLE, leaderboard_csv(ranked(rows)))
    width = max((len(row["run"]) for row in rows), default=0)
    for row in ranked(rows):
        small = "unknown" if row["bytes_removable"] is None else f"{100 * row['bytes_removable']:.0f} %"
        print(f"{row['run']:<{width}}  bytes removable for 1 point (predicted): {small:>7}  {row['headline']}")
    if refused:
        raise InvalidInput(
            f"{len(refused)} of {len(items)} models could not be measured ({', '.join(refused)}); the reasons are "
            "above. The same command measures what is missing."
        )
    return rows


def _listed(file: Path) -> list[tuple[str, str | None]]:
    """Return model and checkpoint of each line ``MODEL`` or ``MODEL,CHECKPOINT``; ``#`` begins a comment."""

    def rows(content: bytes) -> list[tuple[str, str | None]]:
        try:
            text = decoded_text(content)
        except TableError as error:
            raise InvalidSpec(f"The list of models {file} cannot be read. {error}") from error
        lines = (line.split("#")[0].strip().partition(",") for line in text.splitlines())
        return [(model.strip(), checkpoint.strip() or None) for model, _, checkpoint in lines if model.strip()]

    return parsed(file, rows, what="The list of models", error=InvalidSpec)


def _folder_name(model: str, checkpoint: str | None) -> str:
    text = f"{model}-{Path(checkpoint).stem}" if checkpoint and checkpoint != PUBLISHED else model
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "model"
