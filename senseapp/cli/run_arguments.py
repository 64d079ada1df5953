"""From arguments to the settings of a run; arguments that several commands share, and the files that they name."""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, cast

from senseapp.cli.compression_arguments import config_from, installed
from senseapp.core.codec import decode
from senseapp.core.errors import (
    InvalidCheckpoint,
    InvalidDataset,
    InvalidFile,
    InvalidInput,
    InvalidSchedule,
    InvalidSpec,
    first_line_of,
)
from senseapp.core.files import MOST_TEXT_BYTES, home, read_at_most
from senseapp.descriptions import SOURCES, parse_numbers
from senseapp.descriptions.runtimes import RUNTIMES
from senseapp.descriptions.targets import TARGETS
from senseapp.metrics import METRICS
from senseapp.records.goal import settings_for
from senseapp.records.measurement import RunResult
from senseapp.records.promise import Promise, check_promisable
from senseapp.records.schedule import Schedule
from senseapp.records.spec import (
    WITHOUT_LABELS,
    DataSpec,
    ModelSpec,
    RunSpec,
    SensitivitySpec,
    patterns_in,
    with_reading,
)
from senseapp.server.model_cards import require_same_model
from senseapp.server.process.requester import reading_limits
from senseapp.store.run_folder import RunFolder
from senseapp.tasks import CLASSIFICATION, task_named
from senseapp.tasks.labels import read_class_map
from senseapp.tasks.reading import ChannelOrder, Reading

_SHIPPED = ("demo", "photographs", "shapes", "random")  # images without labels to choose
MODES = ("exact", "quick", "settled", "plan")
"""Of measuring; the last two measure exactly, or would."""
PUBLISHED = "published"
"""Stands in place of a checkpoint for the weights that a library publishes."""
_PREPROCESSING = {"auto": "way", "own": "way", "rgb": "order", "bgr": "order", "upright": "turning"}
"""The words of ``--preprocessing``, and what each says; one of each kind may be given."""
T = TypeVar("T")
_RUN_ID = re.compile(r"[0-9a-f]{32}")


def run_spec_from(arguments: argparse.Namespace) -> RunSpec:
    """Return the run that the arguments of ``analyze`` describe.

    Raises InvalidInput where an argument is out of range, contradicts another, or names what does not exist.
    """
    model = model_from(arguments)
    sensitivity = _sensitivity(arguments, settings_for(arguments.goal, task_named(model.task)))
    spec = RunSpec(
        model=model, data=data_from(arguments), sensitivity=sensitivity, goal=arguments.goal, target=arguments.target
    )
    return read_as_given(spec, arguments)


def parsed(
    path: str | Path,
    parse: Callable[[bytes], T],
    *,
    what: str,
    error: type[InvalidInput] = InvalidFile,
    most_bytes: int = MOST_TEXT_BYTES,
) -> T:
    """Return what ``parse`` makes of a text file, within the limits of foreign files.

    Raises InvalidInput where an ``error``: ``what``, a noun, cannot be read; and what ``parse`` raises.
    """
    try:
        content = read_at_most(Path(path), most_bytes)
    except OSError as reason:
        raise error(f"{what} {path} cannot be read ({reason.strerror or reason}). Check the path.") from reason
    with reading_limits(Path(path)):
        return parse(content)


def read_as_given(spec: RunSpec, arguments: argparse.Namespace) -> RunSpec:
    """Return ``spec`` with the reading of ``--reading``, if it is given."""
    if arguments.reading is None:
        return spec

    def reading(content: bytes) -> Reading:
        try:
            return decode(json.loads(content), Reading)
        except ValueError as error:
            raise InvalidFile(
                f"The reading {arguments.reading} cannot be read: {first_line_of(error)}. Give a file that the "
                "command read wrote."
            ) from error

    return with_reading(spec, parsed(arguments.reading, reading, what="The reading"))


def described(arguments: argparse.Namespace) -> RunSpec:
    """Return model, images and reading of the arguments, with usual settings otherwise; see :func:`run_spec_from`."""
    return read_as_given(RunSpec(model=model_from(arguments), data=data_from(arguments)), arguments)


def model_from(arguments: argparse.Namespace) -> ModelSpec:
    """Return the model that the arguments describe; see :func:`run_spec_from`."""
    from senseapp.networks.sources.catalogue import parse_model  # reads the catalogue, which others do without

    checkpoint = _checkpoint_of(arguments)
    if checkpoint:
        checkpoint = str(_existing(checkpoint, error=InvalidCheckpoint, what="file"))
    if arguments.network and not checkpoint:
        raise InvalidSpec("--network chooses between networks in a checkpoint. Add --checkpoint FILE.")
    model = parse_model(arguments.model, task=arguments.task or CLASSIFICATION.name)
    source = SOURCES[model.library]
    if source.reads and not checkpoint:
        raise InvalidSpec(f"--model {source.name} {source.reads}, so it needs one. Add --checkpoint FILE.")
    if arguments.onnx_output and not source.chooses_outputs:
        raise InvalidSpec(f"--onnx-output is for an ONNX file, and the model is {model.title}. Leave it out.")
    return replace(
        model,
        checkpoint=checkpoint,
        network=arguments.network,
        outputs=tuple(arguments.onnx_output or ()),
        in_runtime=arguments.runtime is not None,
        pretrained=arguments.checkpoint == PUBLISHED,
        num_classes=arguments.num_classes,
        in_chans=arguments.in_chans,
        img_size=arguments.img_size,
        task=arguments.task or model.task,
    )


def _checkpoint_of(arguments: argparse.Namespace) -> str:
    return "" if arguments.checkpoint in (None, PUBLISHED) else arguments.checkpoint


def data_from(arguments: argparse.Namespace) -> DataSpec:
    """Return the images that the arguments describe; see :func:`run_spec_from`."""
    said = _preprocessing(arguments)
    preparation = DataSpec(
        mean=_numbers(arguments.mean, what="--mean"),
        std=_numbers(arguments.std, what="--std"),
        crop_pct=arguments.crop_pct,
        channel_order=cast(ChannelOrder, said.get("order", "")),
        upright="turning" in said,
        preparation="auto" if _checkpoint_of(arguments) and said.get("way") != "own" else "given",
        class_map=_class_map(arguments),
    )
    if arguments.data in _SHIPPED:
        if arguments.labels:
            raise InvalidSpec(f"--labels is for a folder or archive of images, and --data is {arguments.data}.")
        return replace(preparation, kind=arguments.data)
    library, slash, name = arguments.data.partition("/")
    if library == "torchvision" and slash:
        if arguments.labels not in ("", WITHOUT_LABELS):
            raise InvalidSpec(
                f"An image set brings its own labels: leave --labels out, or give none, got {arguments.labels!r}."
            )
        return replace(preparation, kind="torchvision", name=name, labels=arguments.labels)
    path = _existing(arguments.data, error=InvalidDataset, what="folder or archive of images")
    kind: Literal["folder", "archive"] = "folder" if path.is_dir() else "archive"
    return replace(preparation, kind=kind, path=str(path), labels=arguments.labels)


def _class_map(arguments: argparse.Namespace) -> tuple[tuple[str, int], ...]:
    """Return the class of each label that ``--class-map`` gives, if it is given."""
    if not arguments.class_map:
        return ()
    if arguments.labels == WITHOUT_LABELS or arguments.data in _SHIPPED:
        raise InvalidSpec("--class-map says what labels mean, and there are none to read. Leave it out.")
    return parsed(arguments.class_map, read_class_map, what="The class map", error=InvalidDataset)


def _preprocessing(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the words of ``--preprocessing`` by what they say; without one, the images choose for a checkpoint."""
    words = [word for word in arguments.preprocessing.split(",") if word]
    said = {_PREPROCESSING[word]: word for word in words if word in _PREPROCESSING}
    if len(said) < len(words):
        raise InvalidSpec(
            f"--preprocessing takes auto or own, rgb or bgr, and upright, by commas; got {arguments.preprocessing!r}."
        )
    if said.get("way") == "auto" and not _checkpoint_of(arguments):
        raise InvalidSpec(
            "--preprocessing auto is for a checkpoint; published weights say how their images are prepared. "
            "Add --checkpoint FILE, or leave it out."
        )
    return said


def _existing(text: str, *, error: type[InvalidCheckpoint] | type[InvalidDataset], what: str) -> Path:
    path = Path(text).expanduser()
    if not path.exists():
        raise error(f"There is no {what} at {text}. Check the path.")
    return path.resolve()


def _sensitivity(arguments: argparse.Namespace, usual: SensitivitySpec) -> SensitivitySpec:
    compression = config_from(arguments, usual.compression)
    levels = usual.levels if compression == usual.compression else compression.scale.default
    return SensitivitySpec(
        compression=compression,
        levels=compression.scale.parse(arguments.levels, what="--levels") if arguments.levels else levels,
        metric=arguments.metric or usual.metric,
        num_samples=arguments.samples,
        batch_size=arguments.batch_size,
        layers=patterns_in(arguments.layers),
        mode="quick" if arguments.mode == "quick" else "exact",
        precision=arguments.precision,
        device=arguments.device,
        adapted=arguments.adapt,
        until_settled=arguments.mode == "settled",
        seed=arguments.seed,
    )


def _numbers(text: str, *, what: str) -> tuple[float, ...]:
    return parse_numbers(text, what=what) if text else ()


def run_folder(text: str) -> Path:
    """Return the folder of a run: the one at that path, else that of the run of this id in the app's home."""
    path = Path(text)
    if not _RUN_ID.fullmatch(text) or path.exists():
        return path
    of_the_app = home() / "runs" / text
    return of_the_app if of_the_app.is_dir() else path


def add_run_arguments(parser: argparse.ArgumentParser, *, partner_help: str) -> None:
    """Add ``--run``, which a second run that a schedule is made from too may follow."""
    parser.add_argument(
        "--run",
        type=run_folder,
        action="append",
        required=True,
        metavar="DIR",
        dest="runs",
        help=f"folder of analyze, or the id of a run of the app on this machine; may be given twice: {partner_help}",
    )


def number_in(text: str | float, rule: str) -> float:
    """Return the number that an argument holds; InvalidSpec, with the ``rule`` in a sentence, where it is none."""
    try:
        return float(text)
    except ValueError:
        raise InvalidSpec(rule) from None


def loss_from(number: float, metric: str, *, flag: str) -> float:
    """Return the loss that ``flag`` was given for ``metric``, in the unit of its ``delta``.

    People give points where shares of answers count (1 is one in a hundred), else the unit of the metric. A value that
    looks like a fraction is taken as points all the same, and said to be so. Raises InvalidSpec where it is negative,
    no number, or above 100 points.
    """
    view = METRICS.named(metric)
    if not (0 <= number <= 100 if view.is_share else 0 <= number < math.inf):
        unit = (
            "points, from 0 to 100"
            if view.is_share
            else view.in_terms.change_unit or "the unit of the metric, 0 or more"
        )
        raise InvalidSpec(f"{flag} is in {unit}; got {number:g}.")
    if view.is_share and 0 < number < 0.1:  # few runs can show so small a loss: a fraction
        print(
            f"{flag} is in points: {number:g} allows {number:g} of 100 answers. "
            f"If {100 * number:g} of 100 are meant, give {100 * number:g}.",
            file=sys.stderr,
        )
    return number / view.factor


def add_promise(parser: argparse.ArgumentParser, *, written: str) -> None:
    """Add ``--promise``; ``written`` is what is not written where the promise cannot be kept."""
    parser.add_argument(
        "--promise",
        metavar="[METRIC=]X[@P]",
        help=f"write {written} only if its loss on new images is at most X points with P %% certainty (default: 95), "
        "by the upper bound on held-out images; METRIC, such as agreement, replaces accuracy",
    )


def promise_from(arguments: argparse.Namespace, usual_metric: str) -> Promise | None:
    """Return the promise of ``--promise``, in ``usual_metric`` unless it names one; None without it.

    Raises InvalidSpec where it is no number of points, or of a metric of which nothing can be promised.
    """
    if arguments.promise is None:
        return None
    words, _, certainty = arguments.promise.partition("@")
    metric, _, number = words.rpartition("=")
    rule = f"--promise is a number of points, METRIC= before or @P percent behind it, got {arguments.promise!r}."
    points, percent = number_in(number, rule), number_in(certainty or 95, rule)
    check_promisable(metric or usual_metric)
    most = loss_from(points, metric or usual_metric, flag="--promise")
    return Promise(most=most, metric=metric, confidence=percent / 100)


def tolerance_from(arguments: argparse.Namespace, metric: str) -> tuple[float | None, Promise | None]:
    """Return the loss of ``--max-drop`` in the unit of ``metric``, if it is given, and the promise of ``--promise``."""
    most = arguments.max_drop
    allowed = None if most is None else loss_from(most, metric, flag="--max-drop")
    return allowed, promise_from(arguments, metric)


def add_adapting(parser: argparse.ArgumentParser) -> None:
    """Add ``--adapt``."""
    parser.add_argument(
        "--adapt",
        nargs="?",
        const="minutes",
        default="off",
        choices=("minutes", "best"),
        help="fit new weights for compressed layers so that outputs come close to the original's; kept only if this "
        "reduces the loss. minutes: in closed form; best: then also by gradient descent, which takes minutes more",
    )


def add_timing(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--threads`` and ``--batch-size`` of the calls that are timed."""
    parser.add_argument("--threads", type=int, default=1, help="threads of timed calls (default: 1)")
    parser.add_argument("--batch-size", type=int, default=1, help="images of a timed call (default: 1)")


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """Add ``--runtime``; one that is not installed is refused with a sentence on how it is added."""
    parser.add_argument(
        "--runtime",
        type=installed,
        choices=list(RUNTIMES),
        help=f"runtime of the file: {', '.join(RUNTIMES)} (default: that of the run's target)",
    )


def runtime_name(arguments: argparse.Namespace, spec: RunSpec) -> str:
    """Return the runtime of ``--runtime``, or else that of the run's target."""
    return arguments.runtime or TARGETS[spec.target].runtime_name


def first_run(arguments: argparse.Namespace) -> RunFolder:
    """Return the folder of the first ``--run``."""
    if len(arguments.runs) > 2:
        raise InvalidSpec(f"One run, or two of one model, are taken together; got {len(arguments.runs)} times --run.")
    return RunFolder(arguments.runs[0])


def partner_of(arguments: argparse.Namespace, result: RunResult) -> RunResult | None:
    """Return the result of the second ``--run``, which must be of the model of ``result``; None without it."""
    if len(arguments.runs) < 2:
        return None
    partner = RunFolder(arguments.runs[1]).load_result()
    require_same_model(result.spec.model, partner.spec.model)
    return partner


def schedule_at(path: Path, result: RunResult) -> Schedule:
    """Read a schedule file for the model of ``result``."""
    from senseapp.formats.plain import read_schedule  # loads yaml, which the other commands do without

    return parsed(path, partial(read_schedule, profile=result.profile), what="The schedule", error=InvalidSchedule)


def print_outputs(result: RunResult, folder: Path) -> None:
    """Print the notes of a run, and where its files are."""
    for note in result.notes:
        print(note)
    print(f"Wrote result.json, sensitivity.csv and targets.json to {folder}")
