"""``check``: compare any two files; the exit status says whether the candidate holds its limits."""

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from senseapp.cli.analyze import add_data_arguments, add_onnx_arguments
from senseapp.cli.output import phases
from senseapp.cli.run_arguments import (
    add_timing,
    data_from,
    loss_from,
    model_from,
    number_in,
    read_as_given,
    run_folder,
)
from senseapp.core.errors import InvalidSpec
from senseapp.core.files import write_file
from senseapp.core.registry import object_at
from senseapp.descriptions.runtimes import runtime_of_file
from senseapp.prove.decision import usual_decision
from senseapp.records.check import FILES_ARE_OPEN, SIMULATED_SECONDS, CheckReport, CheckSpec
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.checks import COMPILED, CheckObserver, CheckTask, read_report
from senseapp.server.process.processes import JobProcess, carry_out_in
from senseapp.server.settings import whole_number
from senseapp.server.tasks import TaskContext
from senseapp.store.run_folder import RunFolder
from senseapp.tasks import TASKS

EPILOG = """\
REFERENCE and CANDIDATE are ONNX files of any program, checkpoints, folders with a checkpoint and its config.json, or
folders of runs. A run as REFERENCE is its uncompressed network, as CANDIDATE its recommended file. Both files get the
same images, with the preprocessing of the reference. The loss is that of accuracy or, without labels, the share of
changed answers. The candidate passes if its loss on new images is at most --max-drop with 95 % certainty, and its time
at most --max-time times that of the reference. If the images are too few to show this, the check fails and says how
many are needed. Use images that the candidate was not made with.

exit status: 0 the candidate passes, 1 it fails or is not shown to pass, 2 a file or the images cannot be read

examples:
  python -m senseapp check float.onnx int8.onnx --data photos.zip --max-drop 1
  python -m senseapp check float.onnx int8.onnx --data val --max-drop 1 --max-time 0.8 --out check.html
  python -m senseapp check a.safetensors b.safetensors --model timm/resnet18 --data val
  python -m senseapp check runs/demo runs/demo/deployed-0123456789abcdef.onnx --data demo --max-drop 2
  python -m senseapp check float.onnx int8.onnx --data val --max-drop 1 --device qnn --out htp.onnx
"""

_FORMS = {
    ".html": "senseapp.views.report.document:build_check_page",
    ".xml": "senseapp.cli.check_files:junit_xml",
    ".md": "senseapp.cli.check_files:markdown_summary",
}
"""What --out writes, by the suffix of the file; loaded where it is asked for."""
FAILED = 1
"""Exit status of a candidate that fails, or is not shown to hold."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``check``."""
    side = "ONNX file, checkpoint, or folder of a run"
    parser.add_argument("reference", metavar="REFERENCE", help=side)
    parser.add_argument("candidate", metavar="CANDIDATE", help=f"{side}; also a LiteRT file (.tflite)")
    network = parser.add_argument_group("network")
    network.add_argument("--model", help="architecture of checkpoints, as timm/resnet18 (default: recognised)")
    add_onnx_arguments(network)
    add_data_arguments(parser.add_argument_group("images"))
    limits = parser.add_argument_group("limits")
    limits.add_argument("--metric", help="metric of the loss (default: accuracy, or changed answers)")
    limits.add_argument(
        "--max-drop",
        type=float,
        metavar="X",
        help="largest loss: in points for accuracy and other shares, so 1 is one of a hundred (default: what is "
        "tolerable in the metric)",
    )
    limits.add_argument("--max-time", type=float, metavar="X", help="largest time, as a multiple of the reference's")
    add_timing(limits)
    limits.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the choice of --samples")
    limits.add_argument(
        "--device",
        default="",
        metavar="D[=SECONDS]",
        help="also check the answers on a simulated device, on as many images as fit into SECONDS (default: 600): qnn, "
        "Qualcomm's NPU (HTP), for int8 ONNX files; an image takes seconds",
    )
    parser.set_defaults(network="", runtime=None, num_classes=None, in_chans=None)  # a file is run as it is
    files = parser.add_argument_group("what is written")
    files.add_argument(
        "--out",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="by its suffix: .html, one page with all figures and pictures; .xml, JUnit XML for build servers; .md, a "
        "summary for a merge request; .onnx, the file as compiled for --device; may be repeated",
    )
    files.add_argument("--format", choices=("text", "json"), default="text", help="print sentences, or one JSON line")


def run(arguments: argparse.Namespace) -> int:
    """Check, write the files asked for, print the verdict, and return the exit status."""
    compiled = next((path for path in arguments.out if path.suffix == ".onnx"), None)
    reports = [path for path in arguments.out if path != compiled]
    if wrong := [path.name for path in reports if path.suffix not in _FORMS]:
        raise InvalidSpec(f"--out writes {', '.join(_FORMS)} and one .onnx, got {wrong[0]}.")
    if compiled is not None and not arguments.device:
        raise InvalidSpec("--out writes .onnx, the file as compiled for --device, which is not given.")
    spec = _spec_from(arguments)
    with phases(FILES_ARE_OPEN) as progress:  # bad input does not reach that step
        report = _checked(spec, progress, compiled=compiled)
    for path in reports:
        write_file(path, object_at(_FORMS[path.suffix])(report))
    from senseapp.cli.check_files import json_of

    if arguments.format == "json":
        print(json.dumps(json_of(report), allow_nan=False))
    else:
        _print(report)
    return 0 if report.holds else FAILED


def _checked(spec: CheckSpec, progress: Callable[[str], None], *, compiled: Path | None) -> CheckReport:
    """Check in a process with a limit on memory, which can be ended: a file may come from anybody."""
    task = CheckTask(run_id="", spec=spec, own_disk=True)
    with tempfile.TemporaryDirectory(prefix="senseapp-") as folder:
        context = TaskContext(folder=RunFolder(Path(folder)), observer=CheckObserver(progress))
        if whole_number("SENSEAPP_JOB_PROCESSES", 1, least=0):
            with closing(JobProcess()) as process:
                carry_out_in(process, task, context, device="auto")
        else:
            task.carry_out(context)
        report = read_report(Path(folder))
        if compiled is not None and (made := Path(folder) / COMPILED).is_file():
            write_file(compiled, made.read_bytes())
    assert report is not None
    return report


def _spec_from(arguments: argparse.Namespace) -> CheckSpec:
    sides, data = _sides(arguments)
    processor, _, seconds = arguments.device.partition("=")
    spec = CheckSpec(
        reference=sides[0],
        candidate=sides[1],
        data=data,
        metric=arguments.metric,
        max_time=arguments.max_time,
        num_samples=arguments.samples,
        seed=arguments.seed,
        threads=arguments.threads,
        batch=arguments.batch_size,
        processor=processor,
        processor_seconds=number_in(
            seconds or SIMULATED_SECONDS, f"--device takes a name and seconds, as qnn=600, got {seconds} seconds."
        ),
    )
    if arguments.max_drop is None:
        return spec
    return replace(spec, max_drop=loss_from(arguments.max_drop, spec.metric or _judged_by(spec), flag="--max-drop"))


def _judged_by(spec: CheckSpec) -> str:
    """Return the metric whose unit ``--max-drop`` has where none is named: the one that its task is judged by."""
    task = TASKS[spec.reference.task]
    return next((metric for metric in task.own_metrics if metric.primary), task.own_metrics[0]).name


def _sides(arguments: argparse.Namespace) -> tuple[tuple[ModelSpec, ModelSpec], DataSpec]:
    reference, candidate = (run_folder(text) for text in (arguments.reference, arguments.candidate))
    of_run = RunFolder(reference).load_result().spec if _is_run(reference) else None
    first = of_run.model if of_run is not None else _model(arguments, reference)
    second = _file_of_run(candidate, first) if _is_run(candidate) else _model(arguments, candidate)
    if of_run is not None and second.library == "auto" and not arguments.model:
        second = replace(of_run.model, pretrained=False, checkpoint=second.checkpoint)
    data = data_from(argparse.Namespace(**vars(arguments), checkpoint=first.checkpoint))
    read = read_as_given(RunSpec(model=first, data=data), arguments)
    return (read.model, replace(second, task=read.model.task)), read.data


def _is_run(path: Path) -> bool:
    """Return whether a side is the folder of a run; others are those of a network, or hold nothing that is read."""
    return path.is_dir() and RunFolder(path).is_claimed


def _model(arguments: argparse.Namespace, path: Path) -> ModelSpec:
    """Return a file as a model: one of a runtime by its suffix, else weights of ``--model`` or of a known network."""
    is_file = runtime_of_file(path.name) is not None
    asked = vars(arguments) | {"model": "onnx" if is_file else arguments.model or "auto", "checkpoint": str(path)}
    return model_from(argparse.Namespace(**(asked if is_file else asked | {"onnx_output": None, "img_size": None})))


def _file_of_run(path: Path, reference: ModelSpec) -> ModelSpec:
    """Return the recommended file of a run that lies in its folder."""
    folder = RunFolder(path)
    spec = folder.load_result().spec
    here = [each for each in folder.candidates() if (path / each.file).is_file() and each.form != "small"]
    best = usual_decision(here, spec.goal, spec.target).choice
    if best is None:
        raise InvalidSpec(f"{path} holds no file that is worth taking. Name the file to check.")
    file = str((path / best.file).resolve())  # another process opens it
    if best.runs:
        return ModelSpec(library="onnx", checkpoint=file, task=reference.task)
    return replace(spec.model, pretrained=False, checkpoint=file)


def _print(report: CheckReport) -> None:
    from senseapp.views.words.check import bound_text, conditions, divergence_sentence

    print(report.headline)
    for title, mark, sentence in conditions(report):
        print(f"{title}: {mark}. {sentence}")
    if report.bound is not None:
        print(f"Bound: {bound_text(report.bound)}.")
    if report.time_ratio is not None:
        print(f"Time: {report.time_ratio.times_text}.")
    sizes = report.reference.file_bytes, report.candidate.file_bytes
    print(f"Size: {sizes[1]:,} bytes, the reference {sizes[0]:,}.")
    if report.divergence is not None:
        print(f"Inside: {divergence_sentence(report.divergence)}")
    for sentence in (*report.findings, *(f"Candidate: {each}" for each in report.candidate.notes), *report.notes):
        print(sentence)
