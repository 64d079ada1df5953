"""``recommend``: the largest saving whose measured loss is tolerable, with its schedule and the compressed model."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from senseapp.cli.progress_bar import phases
from senseapp.metrics import METRICS
from senseapp.records.recommendation import Recommendation
from senseapp.runs.graph_files import write_target_file
from senseapp.runs.schedule_tasks import RecommendationTask
from senseapp.store.run_folder import RunFolder

NAME = "recommend"
SUMMARY = "Find how much can be saved for a tolerable loss, and prove it on images used for nothing else."
EPILOG = """\
Whole schedules are measured over the range of the run, and the strongest whose loss is tolerable is proven. CHECKPOINT
is as apply writes it; FILE receives the schedule as JSON. One JSON line says what was found; where nothing can be
saved for the loss that is allowed, neither file is written. The recommendation stays in the run's folder, so that
reports show it.

examples:
  python -m senseapp recommend --run runs/demo --schedule targets.json --out compressed.safetensors
  python -m senseapp recommend --run runs/demo --allowed 0.5 --schedule targets.json --out compressed.safetensors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``recommend``."""
    parser.add_argument("--run", dest="run_folder", type=Path, required=True, metavar="DIR", help="finished run")
    parser.add_argument(
        "--allowed",
        type=float,
        metavar="X",
        help="tolerable loss, in points where shares of answers count (1; without labels 5, of the original's answers)",
    )
    parser.add_argument("--schedule", type=Path, required=True, metavar="FILE", help="JSON file to write")
    parser.add_argument("--out", type=Path, required=True, metavar="CHECKPOINT", help="weights file to write")


def run(arguments: argparse.Namespace) -> None:
    """Search, prove, write, and print one JSON line."""
    folder = RunFolder(arguments.run_folder)
    result = folder.load_result()
    from senseapp.schedules.write import check_suffix, with_file_sizes, write_compressed  # torch loads here

    check_suffix(arguments.out.suffix)
    from senseapp.schedules.evaluator import ScheduleEvaluator
    from senseapp.schedules.recommend import judged_by, recommend

    files: tuple[Path, ...] = ()
    with phases() as progress:
        progress("Loading the model and the images")
        evaluator = ScheduleEvaluator.open(result, progress=progress)
        view = METRICS[judged_by(evaluator)]
        allowed = None if arguments.allowed is None else arguments.allowed / view.factor
        found = recommend(evaluator, allowed_drop=allowed)
        record = found.record
        if found.proven is not None:
            progress("Writing the compressed model")
            files, _ = write_compressed(found.proven.applied, arguments.out, found.proven.example)
            validation = with_file_sizes(found.proven.result, files, found.proven.dense)
            record = replace(record, validation=validation)
            write_target_file(validation.schedule, result, format_name="json", path=arguments.schedule)
    folder.save(RecommendationTask(run_id="", allowed_drop=allowed).key, record)
    print(json.dumps(_report(record, files, arguments.schedule), allow_nan=False))


def _report(record: Recommendation, files: tuple[Path, ...], schedule: Path) -> dict[str, Any]:
    loss, uniform, validation = record.loss, record.uniform_loss, record.validation
    return {
        "headline": record.headline,
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
        "schedule": str(schedule) if validation else None,
        "files": [str(path) for path in files],
    }
