"""``deploy``: write the network of a run as a file that runs in int8, measured in the runtime that it is for."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from tqdm import tqdm

from senseapp.cli.output import changes_json, figures_json, number, phases, promise_json
from senseapp.cli.run_arguments import (
    add_adapting,
    add_promise,
    add_run_arguments,
    add_runtime,
    add_timing,
    first_run,
    loss_from,
    number_in,
    partner_of,
    runtime_name,
    schedule_at,
    tolerance_from,
)
from senseapp.core.errors import InvalidSpec
from senseapp.core.files import write_file
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.descriptions.targets import target_of_file
from senseapp.metrics import METRICS
from senseapp.prove.decision import Decision, decision, pays
from senseapp.records.candidate import Candidate, Delivery
from senseapp.records.deployment import INT8_BITS, DeployKind, Deployment, DeploySettings
from senseapp.records.executed import IntegerShare
from senseapp.records.measurement import RunResult
from senseapp.records.promise import refusal, verdicts
from senseapp.server.delivery_tasks import DeliverTask
from senseapp.server.run_tasks import Int8Trial
from senseapp.server.tasks import TaskContext, open_evaluator
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.prove.evaluator import ScheduleEvaluator

EPILOG = """\
Without --schedule, the file is made from the uncompressed network. With it, the compressed weights are measured first,
also repaired (see apply), and the better ones are used. Nodes that int8 harms most stay in float, as long as the file
takes at most --max-time times as long as the all-int8 file. Layers with more than 8 bits in the schedule also stay in
float. First, a prediction says whether int8 is faster on this machine. One JSON line has metrics with intervals on
held-out images, milliseconds and bytes of the file, of the float original, of the all-int8 file, and of a file by the
runtime's own quantizer ("default"). "operators" has the time of each kind of operator, "elsewhere" the times in other
runtimes. FILE.README.txt says how to load the file, prepare a picture and run it; --format kit adds a program and a
notebook. The file and its figures are stored in the folder of the run; pages and reports show them. Notes warn if
calibration images are few, or differ from the held-out ones.

examples:
  python -m senseapp deploy --run runs/demo --out quick.onnx
  python -m senseapp deploy --run runs/demo --runtime openvino --out quick.onnx
  python -m senseapp deploy --run runs/demo --schedule targets.json --max-time 1.1 --out quick.onnx
  python -m senseapp deploy --run runs/demo --schedule targets.json --mode float --out pruned.onnx
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``deploy``."""
    add_run_arguments(parser, partner_help="the two runs that the schedule combines")
    parser.add_argument("--schedule", type=Path, metavar="FILE", help="JSON, YAML or CSV that schedule wrote")
    parser.add_argument(
        "--mode",
        default="mixed",
        metavar="M",
        help="nodes in float: mixed, those that int8 harms most, within --max-time (default); float, all; int8, none; "
        "quickest=X, as few as needed so that at most X %% of the answers change",
    )
    parser.add_argument(
        "--max-time", type=float, default=1.3, metavar="X", help="largest time: X × all-int8 (default: 1.3)"
    )
    add_timing(parser)
    parser.add_argument(
        "--bits", type=int, default=8, choices=(7, 8), help="bits of weights: 7 for runtimes that saturate with 8"
    )
    parser.add_argument(
        "--number-format",
        default="float",
        choices=("float", "int8"),
        help="numbers that a LiteRT file in int8 takes and returns (default: float)",
    )
    wide = "of LiteRT files with --mode int8: 16 for NPUs; slower than float on this computer (default: 8)"
    parser.add_argument("--activation-bits", type=int, default=INT8_BITS, choices=(INT8_BITS, 16), help=wide)
    add_adapting(parser)
    parser.add_argument(
        "--max-drop",
        type=float,
        metavar="X",
        help="tolerable loss, in points for accuracy and other shares; if the schedule's weights lose more, adapted "
        "weights are tried too",
    )
    add_promise(parser, written="the file")
    parser.add_argument(
        "--format",
        choices=("file", "kit", "recipe"),
        default="file",
        help="kit: also predict.py and a notebook that run the file; recipe: also the nodes that stay in float, as "
        "settings of other quantizers",
    )
    add_runtime(parser)
    ending = "file to write; ends in .onnx, or in .tflite for litert"
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=ending)


def run(arguments: argparse.Namespace) -> None:
    """Write, measure, and print one JSON line."""
    folder = first_run(arguments)
    task = _task_of(arguments, folder.load_result())

    with phases() as progress:
        context = TaskContext(folder=folder, observer=progress)
        evaluator = open_evaluator(context, task.other, for_files=True)
        allowed, promise = tolerance_from(arguments, evaluator.result.judged_by)
        task = replace(task, allowed_drop=allowed if promise is None else promise.most, promise=promise)
        predicted = _predicted(evaluator, context, task.settings)
        delivery = task.make(evaluator, context, others=False)
        folder.save(task.key, delivery)
    candidate, deployment = _file_of(task, delivery, folder)
    files = _written(arguments, candidate, deployment, folder)
    spec = folder.load_result().spec
    allowed = METRICS[candidate.metric].tolerable if task.allowed_drop is None else task.allowed_drop
    answer = decision(folder.candidates(), spec.goal, allowed, task.promise, spec.target)
    report = _report(candidate, answer, deployment, files)
    report["notes"] += filter(None, [target_of_file(task.settings.runtime, spec.target).measured])
    print(json.dumps(report | predicted | promise_json(task.promise, folder.candidates()), allow_nan=False))


def _task_of(arguments: argparse.Namespace, result: RunResult) -> DeliverTask:
    """Return the task of the options, without the tolerated loss, whose unit is that of the run's metric."""
    schedule = schedule_at(arguments.schedule, result) if arguments.schedule else None
    partner = partner_of(arguments, result)
    out: Path = arguments.out
    if schedule is None and arguments.adapt != "off":
        raise InvalidSpec("--adapt is for what a schedule compresses. Add --schedule FILE, or leave it out.")
    settings = _settings_of(arguments, runtime_name(arguments, result.spec))
    suffix = RUNTIMES.named(settings.runtime).suffix
    if out.suffix != suffix:
        raise InvalidSpec(f"The file's name ends in {suffix}, got {out.suffix or 'no suffix'!r}.")
    return DeliverTask(
        run_id="",
        schedule=schedule,
        adapting=arguments.adapt,
        settings=settings,
        other=partner.compression if partner is not None else None,
    )


def _settings_of(arguments: argparse.Namespace, runtime: str) -> DeploySettings:
    kind, _, changed = arguments.mode.partition("=")
    rule = f"--mode is mixed, float, int8, or quickest=X with a number; got {arguments.mode!r}."
    most = number_in(changed, rule) if changed else None
    if kind not in get_args(DeployKind) or (kind == "quickest") is not (most is not None):
        raise InvalidSpec(rule)
    settings = DeploySettings(
        kind=cast(DeployKind, kind),
        most_time=arguments.max_time,
        threads=arguments.threads,
        batch=arguments.batch_size,
        reduce_range=arguments.bits == 7,
        int8_ends=arguments.number_format == "int8",
        activation_bits=arguments.activation_bits,
        runtime=runtime,
    )
    return settings if most is None else replace(settings, most_changed=loss_from(most, "agreement", flag="--mode"))


def _file_of(task: DeliverTask, delivery: Delivery, folder: RunFolder) -> tuple[Candidate, Deployment]:
    """Return the file; raises InvalidSpec if there is none, or none that keeps the promise."""
    in_float = task.settings.kind == "float"
    wanted = [each for each in delivery.candidates if each.runs and (each.form == "onnx") == in_float]
    if not wanted:
        raise InvalidSpec(f"No file was written. {' '.join(delivery.notes)}")
    (candidate,) = wanted
    promise = task.promise
    if promise is not None and (missing := refusal(verdicts(folder.candidates(), promise)[candidate.file], promise)):
        raise InvalidSpec(f"No file was written. {missing}")
    assert candidate.deployment is not None
    return candidate, candidate.deployment


def _written(
    arguments: argparse.Namespace, candidate: Candidate, deployment: Deployment, folder: RunFolder
) -> list[Path]:
    """Write the file and its companions; return their paths."""
    from senseapp.runtimes.base import runtime_named  # torch loads here

    out = arguments.out
    files = {out: folder.candidate_file(candidate).read_bytes()}
    files[out.with_suffix(".README.txt")] = deployment.readme(out.name, folder.load_result().spec.target).encode()
    kit = runtime_named(deployment.settings.runtime).kit(out.name) if arguments.format == "kit" else {}
    files |= {out.with_name(name): text.encode() for name, text in kit.items()}
    if arguments.format == "recipe" and candidate.form != "onnx":
        recipes = runtime_named(deployment.settings.runtime).recipes(files[out])
        files |= {out.with_name(name): text.encode() for name, text in recipes.items()}
    for path, content in files.items():
        write_file(path, content)
    return list(files)


def _predicted(evaluator: ScheduleEvaluator, context: TaskContext, settings: DeploySettings) -> dict[str, Any]:
    """Say whether int8 pays on this machine before a file is searched for; return the prediction."""
    if settings.kind == "float" or settings.activation_bits != INT8_BITS:
        return {}
    from senseapp.views.words.wording import int8_machine_text, int8_text

    trial = Int8Trial(run_id="", threads=settings.threads, batch=settings.batch, runtime=settings.runtime)
    try:
        found = trial.make(evaluator, context)
    except InvalidSpec as error:
        return {"predicted": {"missing": str(error)}}
    tqdm.write(f"{int8_text(found)} {int8_machine_text(found)}", file=sys.stderr)
    return {"predicted": {"time_ratio": {"value": found.ratio.value, "low": found.ratio.low, "high": found.ratio.high}}}


def _integers(found: IntegerShare) -> dict[str, Any]:
    in_float = [{"name": each.name, "macs": each.macs, "reason": each.reason} for each in found.in_float]
    counts = {"products": len(found.products), "nodes": found.nodes, "integer_nodes": found.integer_nodes}
    return {"share": found.share, "macs": found.macs, "in_float": in_float, **counts}


def _report(candidate: Candidate, answer: Decision, deployed: Deployment, files: Iterable[Path]) -> dict[str, Any]:
    integers = deployed.integers
    return {
        "headline": candidate.headline,
        "form": candidate.form,
        "reconstruction": candidate.reconstruction,
        "pays": pays(candidate),
        "standing": answer.standings[candidate.file],
        "reason": answer.reason,
        "upper_bound": number(candidate.bound),
        "bound": candidate.bound_text,
        **{name: figures_json(figures) for name, figures in deployed.figures.items()},
        **({"default_setting": deployed.own_setting} if "default" in deployed.figures else {}),
        "simulated": changes_json(deployed.simulated),
        "in_float": list(deployed.in_float),
        "images": deployed.images,
        "opset": deployed.opset,
        "batch": deployed.batch or "any",
        "machine": deployed.machine,
        "operators": [
            {
                "kind": each.kind,
                "original_ms": 1000 * each.original_seconds,
                "ms": 1000 * each.seconds,
                "is_border": each.is_border,
            }
            for each in deployed.operators
        ],
        "integers": None if integers is None else _integers(integers),
        "runtime": deployed.settings.runtime,
        "elsewhere": {
            each.runtime: {"file": asdict(each.file), "original": asdict(each.original)} for each in deployed.elsewhere
        },
        "files": [str(path) for path in files],
        "notes": [*deployed.findings, *filter(None, [candidate.integers_text]), *deployed.notes, *candidate.notes],
    }
