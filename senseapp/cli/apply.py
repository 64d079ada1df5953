"""``apply``: compress the model of a run as a schedule says, measure it, and write its weights."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from senseapp.cli.output import candidate_json, changes_json, number, phases
from senseapp.cli.run_arguments import (
    add_adapting,
    add_promise,
    add_run_arguments,
    first_run,
    partner_of,
    promise_from,
    schedule_at,
)
from senseapp.descriptions import sources
from senseapp.records.deployment import CHECKPOINT, ONNX, small_form
from senseapp.records.measurement import RunResult, change_in
from senseapp.records.schedule import RepairStep, ValidationResult
from senseapp.server.delivery_tasks import promised_after
from senseapp.server.run_tasks import Verification
from senseapp.server.tasks import TaskContext, open_evaluator

EPILOG = """\
CHECKPOINT ends in .safetensors, .pth, .pt or .bin and receives a plain state dict, as large as that of the original. A
smaller file of the same weights is written beside it: .sparse.safetensors.gz with zeros compressed, or
.int.safetensors.gz with quantized weights as integers and their scales. If channels are removed, the network itself is
written as .pt2 and .onnx. If the network is an ONNX file, the edited ONNX file is written, too; CHECKPOINT may then end
in .onnx. One JSON line has the metric before and after, and that of a uniform schedule of equal cost: on held-out
images, if there are enough. "read_with" has the lines of Python that read the smaller file; "delivered" and "reason"
say whether repaired or adapted weights were written; "steps" has the loss of each on images that it was not fitted to.

examples:
  python -m senseapp apply --run runs/demo --schedule targets.json --out compressed.safetensors
  python -m senseapp apply --run runs/demo --schedule targets.json --repair --out compressed.safetensors
  python -m senseapp apply --run runs/demo --schedule targets.json --adapt --out compressed.safetensors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``apply``."""
    add_run_arguments(parser, partner_help="the two runs that the schedule combines")
    parser.add_argument("--schedule", type=Path, required=True, metavar="FILE", help="JSON, YAML or CSV of schedule")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="correct biases and normalization layers so that activations have the original's statistics; kept only if "
        "this reduces the loss",
    )
    add_adapting(parser)
    add_promise(parser, written="the weights")
    parser.add_argument("--out", type=Path, required=True, metavar="CHECKPOINT", help="weights file to write")


def run(arguments: argparse.Namespace) -> None:
    """Apply, measure, write, and print one JSON line."""
    folder = first_run(arguments)
    result = folder.load_result()
    schedule = schedule_at(arguments.schedule, result)
    partner = partner_of(arguments, result)
    from senseapp.reconstruct.write import check_suffix  # torch loads here

    out = arguments.out
    if out.suffix == ONNX.suffix and result.spec.model.library == sources.ONNX.name:
        out = out.with_suffix(CHECKPOINT.suffix)  # the edited file lies beside it
    check_suffix(out.suffix)
    from senseapp.prove.deliver import require_kept, weights_candidates
    from senseapp.prove.prove import prove
    from senseapp.prove.recommend import check_promise
    from senseapp.reconstruct.write import with_file_sizes, write_compressed

    other = partner.compression if partner is not None else None
    task = Verification(run_id="", schedule=schedule, repair=arguments.repair, adapting=arguments.adapt, other=other)
    with phases() as progress:
        evaluator = open_evaluator(TaskContext(folder=folder, observer=progress), other, for_files=True)
        promise = promise_from(arguments, evaluator.result.judged_by)
        if promise is not None:
            check_promise(evaluator, promise)
        proven = prove(evaluator, schedule, repair=task.repair, adapting=task.adapting, veto=promise is None)
        if (promised := promised_after(folder.candidates(), promise)) is not None:
            require_kept(evaluator, proven, promised)
        progress("Writing the compressed model")
        files, notes = write_compressed(
            proven.applied, out, proven.example, uploaded=evaluator.onnx, told=evaluator.told()
        )
        validation = with_file_sizes(proven.result, files, proven.dense)
        candidates = weights_candidates(evaluator, proven, validation, files, task.key)
    report = _report(result, validation, files, notes) | {"candidates": [candidate_json(each) for each in candidates]}
    print(json.dumps(report, allow_nan=False))


def _report(
    result: RunResult, validation: ValidationResult, files: Sequence[Path], notes: Sequence[str]
) -> dict[str, Any]:
    name = result.metric
    measured = {
        "after": validation.changes,
        "repaired": validation.repaired,
        "uniform": validation.uniform,
        "uniform_repaired": validation.uniform_repaired,
    }
    own = change_in(validation.changes, name)
    return {
        "metric": name,
        "before": number(own.baseline) if own else None,
        **{
            label: number(change.value) if (change := change_in(changes, name)) else None
            for label, changes in measured.items()
        },
        "delivered": validation.delivered,
        "reason": validation.delivered_reason,
        "uniform_delivered": validation.uniform_delivered or None,
        "steps": [_step(step) for step in validation.steps],
        "images": own.num_samples if own else 0,
        "predicted": {"metric": validation.schedule.metric, "delta": number(validation.predicted)},
        "changes": {label: changes_json(changes, values=False) for label, changes in measured.items()},
        "sizes": {kind: list(pair) for kind, pair in validation.sizes.items()},
        "checkpoint": str(files[0]),
        "files": [str(path) for path in files],
        "file_bytes": {str(path): path.stat().st_size for path in files},
        "read_with": {str(path): form.reader(str(path)) for path in files if (form := small_form(path.name))},
        "notes": [*validation.notes, *notes],
    }


def _step(step: RepairStep) -> dict[str, Any]:
    metric = step.change.metric
    found = changes_json([step.change], values=False)[metric]
    return {"step": step.title, "metric": metric, **found, "images": step.change.num_samples, "kept": step.kept}
