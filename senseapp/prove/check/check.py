"""Check of one file against another: loss with its bound, time, size, causes, and differences inside and out."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from senseapp.core.errors import InvalidInput, InvalidSpec
from senseapp.core.steps import OptionalSteps, Progress, ignore_progress
from senseapp.core.texts import plural
from senseapp.descriptions.runtimes import usual_runtime
from senseapp.measure.readings import preparation_words
from senseapp.metrics import METRICS, judging_among
from senseapp.metrics.predictions import num_not_finite
from senseapp.networks.network import Network
from senseapp.networks.onnx.metadata import class_names_in
from senseapp.prove.answers import changed_answers
from senseapp.prove.check.alignment import PreparedReference, align_outputs, prepare_reference
from senseapp.prove.check.causes import likely_causes
from senseapp.prove.check.limits import comparable, loss_bound, loss_limit, loss_on_processor, time_limit
from senseapp.prove.check.sides import NotComparable, OpenSide, open_candidate, opened
from senseapp.prove.file_times import is_busy
from senseapp.prove.findings import saturation
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.records.answers import ChangedAnswers
from senseapp.records.check import (
    BUSY,
    CANDIDATE_RUNS,
    FILES_ARE_OPEN,
    CheckedLimit,
    CheckReport,
    CheckSpec,
    TensorDivergence,
)
from senseapp.records.deployment import Median, OperatorShare, operator_shares
from senseapp.records.spec import without_folders
from senseapp.runtimes.base import Runtime, runtime_named
from senseapp.runtimes.call_times import ratio, times
from senseapp.runtimes.tensor_divergence import tensor_divergence

_BATCH = 16  # images of a call, where a file takes any number
_NOT_MEASURED = "Loss and time were not measured: both files must answer the same images in the same form."


def check_files(
    spec: CheckSpec,
    *,
    data_roots: Sequence[Path] = (),
    own_disk: bool = False,
    context: Path | None = None,
    progress: Callable[[str], None] = ignore_progress,
) -> CheckReport:
    """Compare the candidate of ``spec`` with its reference.

    A candidate that can be opened but not compared fails, and the report says why.

    ``data_roots`` are folders that images may be read from; any, if none are named. With ``own_disk`` weights beside an
    ONNX file may be read. The file that is compiled for the processor of ``spec`` is put at ``context``. What
    ``progress`` raises ends the work.

    Raises InvalidInput if a file cannot be opened, the reference gives no answers of the task, or there are no images.
    """
    steps = OptionalSteps(progress=Progress(progress))
    runtime = runtime_named(usual_runtime())
    prepared = prepare_reference(spec, own_disk=own_disk, data_roots=tuple(data_roots), progress=steps.progress)
    reference, images = prepared.reference, prepared.images
    report = partial(
        CheckReport,
        spec=without_folders(spec),
        labelled=images.labels is not None,
        preparation=preparation_words(reference.preprocessing),
        reading=prepared.reading,
        machine=runtime.machine(),
    )
    steps.progress("Opening the compressed file")
    try:
        candidate = open_candidate(spec, reference, images, prepared.task, own_disk=own_disk, progress=steps.progress)
        align_outputs(prepared, candidate)
    except NotComparable as error:
        return report(
            reference=reference.record,
            candidate=error.side.record,
            images=0,
            limits=(CheckedLimit(name="comparable", holds=False, sentence=str(error)),),
            notes=(*prepared.notes, _NOT_MEASURED),
        )
    told = candidate.file.facts.metadata if candidate.file is not None else {}
    names = prepared.class_names or class_names_in(told, prepared.num_outputs)
    prepared.class_names = names or tuple(images.class_names)
    return _Comparison(spec, prepared, candidate, runtime, steps, context).completed(report)


@dataclass(slots=True)
class _Comparison:
    """Both sides, ready to run on all images."""

    spec: CheckSpec
    prepared: PreparedReference
    candidate: OpenSide
    runtime: Runtime
    steps: OptionalSteps
    context: Path | None = None

    def completed(self, report: Callable[..., CheckReport]) -> CheckReport:
        """Measure everything, and return the ``report`` with it."""
        prepared, candidate, steps = self.prepared, self.candidate, self.steps
        reference, images = prepared.reference, prepared.images
        judged, not_finite = self._judged()
        bound = loss_bound(judged, *self._metric_and_limit(judged.judge))
        loss = loss_limit(bound, own_images=prepared.own_images, is_of_run=bool(self.spec.candidate_title))
        limits = [comparable(len(images), not_finite), loss]
        steps.progress("Timing both files in turns")
        seconds, notes = self._times()
        time_ratio = ratio(seconds[1], seconds[0])
        notes += [BUSY] if is_busy() else []
        if self.spec.max_time is not None:
            limits.append(time_limit(time_ratio, self.spec.max_time))
        if self.spec.processor:
            limits.append(
                loss_on_processor(self.spec, prepared, candidate, bound, context=self.context, progress=steps.progress)
            )
        answers: ChangedAnswers | None = None
        task, names = prepared.task, prepared.class_names
        if not images.indicative:
            steps.progress("Comparing answers")
            before, after = judged.judge.baseline.outputs, judged.outputs
            answers = changed_answers(before, after, images, task=task, names=names, subject=candidate.name)
        findings, operators, saturates = tuple[str, ...](), tuple[OperatorShare, ...](), tuple[str, ...]()
        divergence: TensorDivergence | None = None
        if not limits[1].holds and not limits[1].undecided:
            steps.progress("Looking for likely causes")
            with steps.trying("likely causes"):
                findings = likely_causes(judged, candidate, reference.preprocessing, task=task, names=names)
        steps.progress("Timing operators")
        with steps.trying("times of operators"):
            operators = self._operators()
        with steps.trying("both files on other processors"):
            saturates = (
                *saturation(reference.name, judged.judge.original, reference.on_other_processors),
                *saturation(candidate.name, judged, candidate.on_other_processors),
            )
        with steps.trying("the comparison of tensors inside"):
            divergence = self._divergence()
        return report(
            reference=replace(reference.record, seconds=Median.of(seconds[0])),
            candidate=replace(candidate.record, seconds=Median.of(seconds[1])),
            images=len(images),
            limits=tuple(limits),
            changes=judged.changes,
            bound=bound,
            time_ratio=time_ratio,
            findings=findings,
            answers=answers,
            divergence=divergence,
            operators=operators,
            notes=tuple(dict.fromkeys((*prepared.notes, *images.notes, *notes, *saturates, *steps.notes))),
        )

    def _judged(self) -> tuple[Judgement, int]:
        """Return the candidate on all images, and on how many of them its numbers alone are not finite."""
        prepared, images = self.prepared, self.prepared.images
        self.steps.progress(FILES_ARE_OPEN)
        judge = Judge(
            prepared.task,
            JudgingImages.of_images(images, _BATCH),
            prepared.reference,
            num_outputs=prepared.num_outputs,
            progress=self.steps.progress,
        )
        counts = isinstance(judge.baseline.outputs, Tensor)  # lists of objects may hold numbers that are not finite
        bad = num_not_finite(judge.baseline.outputs) if counts else 0
        if bad:
            raise InvalidInput(
                f"The original itself returns numbers that are not finite on {bad} of {plural(len(images), 'image')}. "
                "Choose an original that works, or images that it was made for."
            )
        judge.require_answers()
        self.steps.progress(CANDIDATE_RUNS)
        judged = judge.judged(self.candidate)
        return judged, num_not_finite(judged.outputs) if counts else 0

    def _metric_and_limit(self, judge: Judge) -> tuple[str, float]:
        asked = self.spec.metric
        if asked is not None and asked not in judge.metrics:
            labels = "with labels" if self.prepared.images.labels is not None else "without labels"
            raise InvalidSpec(
                f"The metric {asked} cannot be measured on images {labels}. Choose from {', '.join(judge.metrics)}."
            )
        name = asked or judging_among(judge.metrics)
        return name, METRICS[name].tolerable if self.spec.max_drop is None else self.spec.max_drop

    def _times(self) -> tuple[list[list[float]], list[str]]:
        """Return the seconds of calls of both, in turns, in PyTorch or as files, and sentences on what was timed."""
        sides, threads = (self.prepared.reference, self.candidate), torch.get_num_threads()
        both_are_weights = all(side.file is None for side in sides)
        networks, notes = list[Network](), list[str]()
        for side in sides:
            how, network = "" if side.file is not None else "in PyTorch", side
            if not both_are_weights and (content := self._as_file(side)) is not None:
                own = (
                    self.runtime.as_it_is(content, threads=self.spec.threads)
                    if side.file is None
                    else opened(content, side.spec, threads=self.spec.threads)
                )
                network = replace(side, file=own, reader=None, kind=None)
                if side.file is None and side is sides[0]:  # a candidate has the size of the file that people get
                    side.file_bytes, how = len(content), ""
                    notes.append(
                        f"Size and time of {side.name} are those of an ONNX file that was made of its weights."
                    )
            networks.append(network)
            if how:
                notes.append(f"{side.name} is timed {how}.")
            if side.file is None and both_are_weights and not side.spec.checkpoint:
                notes.append(f"The size of {side.name} is that of its weights in memory.")
        size = math.lcm(self.spec.batch, *(network.fixed_batch or 1 for network in networks))
        image = self.prepared.images.batch(0, 1).cpu()
        torch.set_num_threads(self.spec.threads)
        try:
            return times(networks, image.expand(size, *image.shape[1:]).contiguous()), notes
        finally:
            torch.set_num_threads(threads)

    def _operators(self) -> tuple[OperatorShare, ...]:
        """Return the time by kind of operator of both files; empty if one takes no images of known size."""
        timed = []
        for side in (self.prepared.reference, self.candidate):
            content = self._as_file(side)
            if content is None or not _is_onnx(side) or (side.file is not None and None in side.file.facts.image_shape):
                return ()
            batch = side.fixed_batch or self.spec.batch
            timed.append(self.runtime.operators(content, threads=self.spec.threads, batch=batch))
        return operator_shares(*timed)

    def _as_file(self, side: OpenSide) -> bytes | None:
        """Return the file of a side, made of its weights where it is none; None where that is not possible."""
        if side.content is None and side.context is not None:
            example = self.prepared.images.batch(0, 1).cpu()
            with suppress(InvalidSpec):
                side.content = self.runtime.exporter(side.context.model, example)(side.context.model)
        return side.content

    def _divergence(self) -> TensorDivergence | None:
        sides = self.prepared.reference, self.candidate
        # images that tensors inside are compared on
        images = self.prepared.images.batch(0, min(4, len(self.prepared.images))).cpu()
        reference, candidate = map(self._as_file, sides)
        if reference is None or candidate is None or not all(map(_is_onnx, sides)):
            return None
        count = min([len(images), *(side.fixed_batch or len(images) for side in sides)])
        given = [side.given(images[:count]) for side in sides]
        found = tensor_divergence(reference, candidate, (given[0], given[1]), progress=self.steps.progress)
        if found is None:
            return None
        if sides[0].context is not None:  # tensors under the names of the layers that compute them
            modules = sides[0].context.model.named_modules()
            layers = {name for name, module in modules if name and not any(module.children())}
            owners = self.runtime.layers_of_nodes(reference, layers)
            tensors = tuple(replace(each, name=owners.get(each.node, each.name)) for each in found.tensors)
            return replace(found, matched_by="layer", tensors=tensors)
        if sides[0].kind is sides[1].kind or sides[0].file is None:
            return found
        ends = sides[0].file.output_names  # of both, one returns other things than scores
        return replace(found, tensors=tuple(each for each in found.tensors if each.name not in ends))


def _is_onnx(side: OpenSide) -> bool:
    """Return whether a side is a file of ONNX, or weights, of which one is made."""
    return side.file is None or side.is_onnx
