"""Candidates of one network: the files of a proof and the files for a runtime, each with its own figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from senseapp.core.errors import InvalidSpec
from senseapp.descriptions.runtimes import runtime_words
from senseapp.metrics import MetricChange
from senseapp.prove.answers import file_answers
from senseapp.prove.decision import dominates
from senseapp.prove.deploy import Deployed, Source, deployments
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.file_times import is_busy
from senseapp.prove.prove import Promised, Proof
from senseapp.records.answers import FileAnswers
from senseapp.records.candidate import Candidate, own_bounds
from senseapp.records.deployment import CHECKPOINT, DeploySettings, Median, RuntimeFigures, small_form
from senseapp.records.promise import refusal
from senseapp.records.schedule import ValidationResult
from senseapp.runtimes.call_times import ratio


def weights_candidates(
    evaluator: ScheduleEvaluator, proven: Proof, validation: ValidationResult, files: Sequence[Path], key: str
) -> tuple[Candidate, ...]:
    """Return a file of plain and, where there is one, of packed PyTorch weights as candidates.

    ``proven`` has the model in memory, ``validation`` the sizes of ``files``
    (:func:`~senseapp.reconstruct.write.write_compressed`); ``key`` names them in a run's folder.
    """
    changes, notes = _changes_of_weights(evaluator, proven), tuple[str, ...]()
    if proven.applied.rounded_inputs:
        notes = ("Measured with inputs of layers in float: weights do not hold their rounding.",)
    before, after = proven.seconds
    original = RuntimeFigures(
        changes=(),
        seconds=Median.of(before),
        time_ratio=Median(value=1.0, low=1.0, high=1.0),
        file_bytes=int(validation.sizes["file_bytes"][0]),
        busy=is_busy(),
    )
    figures = replace(original, changes=changes, seconds=Median.of(after), time_ratio=ratio(after, before))
    plain = Candidate(
        file=f"compressed-{key}{CHECKPOINT.suffix}",
        form="weights",
        schedule=validation.schedule,
        reconstruction=validation.delivered,
        figures=replace(figures, file_bytes=validation.files[files[0].suffix]),
        original=original,
        held_out=evaluator.images.held_out,
        notes=notes,
        tried=validation.tried,
        bounds=own_bounds(changes),
    )
    packed = (
        replace(
            plain,
            file=f"compressed-{key}{small.suffix}",
            form="small",
            figures=replace(figures, file_bytes=validation.files[path.name.removeprefix(files[0].stem)]),
        )
        for path in files[1:]
        if (small := small_form(path.name)) is not None
    )
    return (plain, *packed)


def weights_answers(evaluator: ScheduleEvaluator, proven: Proof) -> FileAnswers | None:
    """Return the predictions of :func:`weights_candidates` for each proof image; None for tasks without any."""
    proof, outputs = evaluator.images.proof, proven.outputs
    if proven.applied.rounded_inputs:
        outputs = evaluator.judged(replace(proven.applied, rounded_inputs=()), proof).outputs
    before = evaluator.judge(proof).original.outputs
    return file_answers(before, outputs, proof, task=evaluator.task, names=evaluator.class_names)


def require_kept(evaluator: ScheduleEvaluator, proven: Proof, promised: Promised) -> None:
    """Raise InvalidSpec unless the weights of a proof keep a promise; made of them, this is a further test of it."""
    verdict = promised.tested(evaluator, _changes_of_weights(evaluator, proven))
    if not verdict.holds:
        raise InvalidSpec(f"No file was written. {refusal(verdict, promised.promise)}")


def _changes_of_weights(evaluator: ScheduleEvaluator, proven: Proof) -> tuple[MetricChange, ...]:
    """Return what the weights lose as a file holds them: inputs of layers are rounded by a runtime, not by weights."""
    if not proven.applied.rounded_inputs:
        return proven.result.kept_changes
    return evaluator.judged(replace(proven.applied, rounded_inputs=())).changes


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFiles:
    """Files for a runtime as candidates, and sentences on those that could not be made."""

    files: tuple[tuple[Candidate, Deployed], ...]
    notes: tuple[str, ...]


def runtime_candidates(
    evaluator: ScheduleEvaluator,
    source: Source,
    settings: DeploySettings,
    name_of: Callable[[str], str],
    *,
    others: bool = True,
) -> RuntimeFiles:
    """Return the files for a runtime that ``settings`` ask for: of a schedule also the one that computes in float.

    A file that cannot be made is left out, with its reason; an int8 search that ends at the float file adds none.
    ``settings`` of kind ``float`` ask for no int8 file. ``name_of`` returns the name of a file by what it is beside the
    ``others`` of the same search, made as far as they are not slower than the original and none is better in
    everything.
    """
    files: list[tuple[Candidate, Deployed]] = []
    notes: list[str] = []
    wanted = [replace(settings, kind="float")] if source.schedule is not None or settings.kind == "float" else []
    wanted += [settings] if settings.kind != "float" else []
    title = runtime_words(settings.runtime).file_words
    for each in wanted:
        is_float = each.kind == "float"
        try:
            made = deployments(evaluator, source, each, others=others)
        except InvalidSpec as error:
            notes.append(f"There is no {title} {'in float' if is_float else 'in int8'}: {error}")
            continue
        if not is_float and made[0].record.computes_in_float:
            notes.append("No file with int8 that is quicker than float changes as few answers as allowed.")
            made = made[1:]
        found = [(one.candidate(source, name_of=name_of), one) for one in made]
        for candidate, one in found:
            is_slower = candidate.figures.time_ratio.low > 1  # beyond what chance explains
            if not one.variant or not (is_slower or any(dominates(other, candidate) for other, _ in found)):
                files.append((candidate, one))
    return RuntimeFiles(files=tuple(files), notes=tuple(notes))
