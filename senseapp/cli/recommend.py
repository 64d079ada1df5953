"""``recommend``: the largest saving whose measured loss is tolerable, with its schedule and the compressed model."""

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from senseapp.cli.output import candidate_json, phases, promise_json
from senseapp.cli.run_arguments import add_promise, run_folder, tolerance_from
from senseapp.core.files import storage_errors, write_file
from senseapp.descriptions.targets import TARGETS
from senseapp.prove.decision import Decision, decision
from senseapp.records.candidate import file_name
from senseapp.records.promise import kept
from senseapp.records.recommendation import Recommendation
from senseapp.records.spec import Goal
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.outputs import write_target_file
from senseapp.server.tasks import TaskContext, open_evaluator
from senseapp.store.run_folder import RunFolder

EPILOG = """\
Whole schedules are measured, mild to strong. The strongest one with a tolerable loss is tested on held-out images. FILE
receives this schedule as JSON, CHECKPOINT its weights as apply writes them. If nothing can be saved within the
tolerable loss, neither is written. One JSON line has the file recommended for the goal in "recommended" (it may be
another file than CHECKPOINT), the schedule in "proven" and "evidence", and all files in "candidates". If no file keeps
--promise, "missing" says how many images are needed. The recommendation is stored in the folder of the run; reports
show it.

examples:
  python -m senseapp recommend --run runs/demo --schedule targets.json --out compressed.safetensors
  python -m senseapp recommend --run runs/demo --max-drop 0.5 --schedule targets.json --out compressed.safetensors
  python -m senseapp recommend --run runs/demo --promise 2 --schedule targets.json --out compressed.safetensors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``recommend``."""
    parser.add_argument("--run", dest="run_folder", type=run_folder, required=True, metavar="DIR", help="finished run")
    parser.add_argument(
        "--max-drop",
        type=float,
        metavar="X",
        help="tolerable loss, in points for accuracy and other shares (default: 1; without labels 5 points of changed "
        "answers)",
    )
    add_promise(parser, written="a file")
    parser.add_argument("--schedule", type=Path, required=True, metavar="FILE", help="JSON file to write")
    parser.add_argument("--out", type=Path, required=True, metavar="CHECKPOINT", help="weights file to write")
    parser.add_argument("--goal", choices=get_args(Goal), help="what the recommended file is for (default: the run's)")
    parser.add_argument(
        "--best",
        type=Path,
        metavar="STEM",
        help="also write the recommended file: to STEM with the suffix of its type; if STEM is a folder, under a "
        "descriptive name in it",
    )


def run(arguments: argparse.Namespace) -> None:
    """Search, prove, write, and print one JSON line."""
    folder = RunFolder(arguments.run_folder)
    result = folder.load_result()
    from senseapp.reconstruct.write import check_suffix, write_compressed  # torch loads here

    check_suffix(arguments.out.suffix)

    files: tuple[Path, ...] = ()
    with phases() as progress:
        context = TaskContext(folder=folder, observer=progress)
        evaluator = open_evaluator(context, for_files=True)
        allowed, promise = tolerance_from(arguments, evaluator.result.judged_by)
        task = RecommendationTask(run_id="", allowed_drop=allowed, promise=promise)
        record, found = task.search(evaluator, context)
        folder.save(task.key, record)
        scheduled = found.proven.result.schedule if found.proven is not None else None
        sure = promise is None or any(each.schedule == scheduled for each in kept(folder.candidates(), promise))
        if found.proven is not None and record.validation is not None and sure:
            progress("Writing the compressed model")
            files, _ = write_compressed(
                found.proven.applied,
                arguments.out,
                found.proven.example,
                uploaded=evaluator.onnx,
                told=evaluator.told(),
            )
            write_target_file(record.validation.schedule, result, format_name="json", path=arguments.schedule)
    written = arguments.schedule if files else None
    candidates, goal = folder.candidates(), arguments.goal or result.spec.goal
    answer = decision(candidates, goal, record.allowed_drop, promise, result.spec.target)
    best = answer.choice
    if best is not None and arguments.best is not None:
        target = arguments.best.with_name(arguments.best.name + best.suffix)
        if arguments.best.is_dir():
            target = arguments.best / file_name(result.spec.model, best)
        with storage_errors(target.name):
            write_file(target, folder.candidate_file(best).read_bytes())
        files = (*files, target)
    offers = [candidate_json(each) for each in candidates if answer.offers(each)]
    report = _report(record, answer, files, written) | {
        "recommended": candidate_json(best) if best is not None else None,
        "candidates": offers,
        "target": {"name": result.spec.target, "measured": TARGETS[result.spec.target].measured},
    }
    print(json.dumps(report | promise_json(promise, candidates), allow_nan=False))


def _report(record: Recommendation, answer: Decision, files: tuple[Path, ...], schedule: Path | None) -> dict[str, Any]:
    loss, uniform, validation = record.loss, record.uniform_loss, record.validation
    return {
        "headline": answer.headline,
        "reason": answer.reason,
        "proven": record.headline,
        "evidence": record.evidence,
        "budget": record.kind,
        "saved": validation.schedule.achieved[record.kind] if validation else None,
        "metric": record.metric,
        "allowed": record.allowed_drop,
        "delta": loss.delta if loss else None,
        "ci_low": loss.ci_low if loss else None,
        "ci_high": loss.ci_high if loss else None,
        "images": loss.num_samples if loss else 0,
        "uniform_delta": uniform.delta if uniform else None,
        "schedule": str(schedule) if schedule else None,
        "files": [str(path) for path in files],
    }
