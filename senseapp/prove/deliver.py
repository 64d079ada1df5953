"""Candidates of one network: the files of a proof and the files for a runtime, each with its own figures."""

from __future__ import annotations

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
from senseapp.records.candidate import Candidate, Form, judged_by, own_bounds
from senseapp.records.deployment import CHECKPOINT, DeploySettings, Median, RuntimeFigures, model_file, small_form
from senseapp.records.measurement import change_in
from senseapp.records.promise import refusal, verdict_of
from senseapp.records.schedule import ValidationResult
from senseapp.runtimes.call_times import ratio


def weights_candidates(
    evaluator: ScheduleEvaluator, proven: Proof, validation: ValidationResult, files: Sequence[Path], key: str
) -> tuple[Candidate, ...]:
    """Return a file of plain and, where there is one, of packed PyTorch weights as candidates.

    Args:
        evaluator: that proved it.
        proven: the model in memory.
        validation: its proof, with the sizes of ``files``.
        files: of the compressed model, as :func:`~senseapp.reconstruct.write.write_compressed` wrote them.
        key: of the proof, which names the files in a run's folder.
    """
    changes, notes = _changes_of_weights(evaluator, proven)
    bounds = own_bounds(changes)
    before, after = proven.seconds
    original = RuntimeFigures(
        changes=(),
        seconds=Median.of(before),
        time_ratio=Median(value=1.0, low=1.0, high=1.0),
        file_bytes=int(validation.sizes["file_bytes"][0]),
        busy=is_busy(),
    )
    figures = replace(original, changes=changes, seconds=Median.of(after), time_ratio=ratio(after, before))
    return tuple(
        Candidate(
            file=f"compressed-{key}{model_file(path.name).suffix if form == 'small' else CHECKPOINT.suffix}",
            form=form,
            schedule=validation.schedule,
            reconstruction=validation.delivered,
            figures=replace(figures, file_bytes=validation.files[path.name.removeprefix(files[0].stem)]),
            original=original,
            held_out=evaluator.images.held_out,
            notes=notes,
            tried=validation.tried,
            bounds=bounds,
        )
        for path in files
        if (form := _form_of(path, files[0])) is not None
    )


def weights_answers(evaluator: ScheduleEvaluator, proven: Proof) -> FileAnswers | None:
    """Return the predictions of :func:`weights_candidates` for each proof image; None for tasks without any."""
    proof, outputs = evaluator.images.proof, proven.outputs
    if proven.applied.rounded_inputs:
        outputs = evaluator.judged(replace(proven.applied, rounded_inputs=()), proof).outputs
    before = evaluator.judge(proof).original.outputs
    return file_answers(before, outputs, proof, task=evaluator.task, names=evaluator.class_names)


def require_kept(evaluator: ScheduleEvaluator, proven: Proof, promised: Promised) -> None:
    """Raise InvalidSpec unless the weights of a proof keep a promise; made of them, this is a further test of it."""
    promise, changes = promised.promise, _changes_of_weights(evaluator, proven)[0]
    metric = promise.metric or judged_by(changes)
    verdict = verdict_of(change_in(changes, metric) if evaluator.images.held_out else None, promise, promised.tests)
    if not verdict.holds:
        raise InvalidSpec(f"No file was written. {refusal(verdict, promise)}")


def _form_of(path: Path, plain: Path) -> Form | None:
    if path == plain:
        return "weights"
    return "small" if small_form(path.name) else None


def _changes_of_weights(
    evaluator: ScheduleEvaluator, proven: Proof
) -> tuple[tuple[MetricChange, ...], tuple[str, ...]]:
    """Return what the weights lose as a file holds them: inputs of layers are rounded by a runtime, not by weights."""
    if not proven.applied.rounded_inputs:
        return proven.result.kept_changes, ()
    plain = replace(proven.applied, rounded_inputs=())
    note = "Measured with inputs of layers in float: weights do not hold their rounding."
    return evaluator.judged(plain).changes, (note,)


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

    Args:
        evaluator: of the run.
        source: the network.
        settings: of the int8 file; of kind ``float`` asks for none.
        name_of: returns the name of a file by what it is beside the others.
        others: whether further files of the same search are made, as far as they are
            not slower than the original and no other of them is better in everything.
    """
    files: list[tuple[Candidate, Deployed]] = []
    notes: list[str] = []
    wanted = [replace(settings, kind="float")] if source.schedule is not None or settings.kind == "float" else []
    wanted += [settings] if settings.kind != "float" else []
    title = runtime_words(settings.runtime).file_title
    for each in wanted:
        try:
            first, *more = deployments(evaluator, source, each, others=others)
        except InvalidSpec as error:
            notes.append(f"There is no {title} file {'in float' if each.kind == 'float' else 'in int8'}: {error}")
            continue
        if each.kind != "float" and first.record.computes_in_float:
            notes.append("No file with int8 that is quicker than float changes as few answers as allowed.")
        else:
            more = [first, *more]
        found = [(one.candidate(source, name_of=name_of), one) for one in more]
        known = [candidate for candidate, _ in found]
        files += [
            (candidate, one)
            for candidate, one in found
            if not one.variant or not (_is_slower(candidate) or any(dominates(each, candidate) for each in known))
        ]
    return RuntimeFiles(files=tuple(files), notes=tuple(notes))


def _is_slower(candidate: Candidate) -> bool:
    """Return whether a call takes longer than the original's, beyond what chance explains."""
    return candidate.figures.time_ratio.low > 1
