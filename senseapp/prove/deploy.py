"""The deployed file: made of proven weights, in int8 where that does little harm, and measured in its runtime."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import safetensors.torch
from torch import nn

from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.core.errors import InvalidSpec
from senseapp.core.files import storage_errors
from senseapp.core.steps import LEFT_OUT, OptionalSteps, StepTitle
from senseapp.core.texts import plural
from senseapp.descriptions import Effect
from senseapp.formats.base import levels_by_layer
from senseapp.metrics import MetricChange
from senseapp.prove.answers import file_answers
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.file_times import call_of, is_busy, times_anew, times_elsewhere
from senseapp.prove.findings import alike_everywhere, findings, preparation, saturation, side_by_side
from senseapp.prove.int8_files import Int8Files, MadeFile, int8_files
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.prove.prove import Proof
from senseapp.prove.search_images import score_thresholds
from senseapp.reconstruct.write import stored_integers
from senseapp.records.answers import FileAnswers
from senseapp.records.candidate import Candidate, Form, own_bounds
from senseapp.records.deployment import (
    INT8_BITS,
    Deployment,
    DeploySettings,
    Median,
    OperatorShare,
    OperatorTime,
    RuntimeFigures,
    operator_shares,
    thresholds_text,
)
from senseapp.records.executed import LEAST_INTEGERS, IntegerShare
from senseapp.records.schedule import Delivered, Schedule, ValidationResult
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.call_times import ratio

_DEAD = (
    "The file keeps none of the original's answers on held-out images: 8 bits destroy a part of this network. Choose "
    "float, or export what the network joins into one output, such as boxes and scores, as outputs of their own."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A network, and how its weights came about.

    Attributes:
        network: as a float file of the runtime.
        schedule: that was carried out in it; None for the original weights.
        reconstruction: how its weights make up for what the schedule took; empty without a schedule.
        simulated: what the proof measured of these weights in torch; empty without a schedule.
        bits: by layer, of each weight on a grid; empty where the schedule says nothing of bits.
        integers: by layer, those of such a weight; without what was proven before files held them.
        notes: sentences a person should read.
        tried: how many alternatives, this one included, held-out images compared; 0 where that is unknown.
    """

    network: bytes
    schedule: Schedule | None = None
    reconstruction: Delivered = ""
    simulated: tuple[MetricChange, ...] = ()
    bits: Mapping[str, float] = field(default_factory=dict)
    integers: Mapping[str, IntegerWeight] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tried: int = 1


def original_source(evaluator: ScheduleEvaluator, runtime: Runtime) -> Source:
    """Return the uncompressed network of a run."""
    return Source(network=evaluator.original_file(runtime))


def proven_source(evaluator: ScheduleEvaluator, runtime: Runtime, proven: Proof) -> Source:
    """Return a network that was just proven."""
    return _source(evaluator, runtime, proven.result, proven.applied.model, proven.applied.integers)


def stored_source(evaluator: ScheduleEvaluator, runtime: Runtime, proof: ValidationResult, weights: Path) -> Source:
    """Return the network of an earlier proof, whose weights lie at ``weights``, a plain state dict, with its integers.

    Where channels were removed, the network lies beside them in files that some runtimes open; for others its schedule
    is carried out again, and takes the weights.

    Raises StorageFailed if the files are gone.
    """
    integers = stored_integers(weights, evaluator.profile)
    whole, removes_channels = weights.with_suffix(runtime.description.suffix), proof.schedule.removes_channels
    if removes_channels and whole.is_file():
        with storage_errors(whole.name):
            return _source(evaluator, runtime, proof, whole.read_bytes(), integers)
    model = evaluator.apply(proof.schedule).model if removes_channels else copy.deepcopy(evaluator.dense.model)
    with storage_errors(weights.name):
        state = safetensors.torch.load(weights.read_bytes())
    model.load_state_dict(state)
    return _source(evaluator, runtime, proof, model, integers)


def _source(
    evaluator: ScheduleEvaluator,
    runtime: Runtime,
    proof: ValidationResult,
    network: nn.Module | bytes,
    integers: Mapping[str, IntegerWeight],
) -> Source:
    if isinstance(network, nn.Module):
        evaluator.progress(f"Writing the proven network as {runtime.description.file_title}")
        network = evaluator.exporter(runtime)(network)
    return Source(
        network=network,
        schedule=proof.schedule,
        reconstruction=proof.delivered,
        simulated=proof.kept_changes,
        bits=levels_by_layer(proof.schedule, Effect.BITS),
        integers=integers,
        tried=proof.tried,
        notes=(
            *((proof.delivered_reason,) if proof.delivered_reason else ()),
            *(note for note in proof.notes if note.startswith(LEFT_OUT)),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A file with its measurements and its answer to each image; None for tasks without answers.

    Attributes:
        held_out: whether no part of it was fitted to or chosen by the images that it was measured on.
        variant: which of several files of one search it is; empty for the one that was asked for.
    """

    content: bytes
    record: Deployment
    answers: FileAnswers | None
    held_out: bool
    variant: str = ""

    def candidate(self, source: Source, *, name_of: Callable[[str], str]) -> Candidate:
        """Return it as a candidate; ``name_of`` returns the name of a file by what it is beside the others."""
        integers = self.record.integers
        is_partly = bool(self.record.in_float) or (integers is not None and integers.share < LEAST_INTEGERS)
        form: Form = "onnx" if self.record.computes_in_float else "mixed" if is_partly else "int8"
        return Candidate(
            file=name_of(f"{form} {self.variant}".strip()),
            form=form,
            schedule=source.schedule,
            reconstruction=source.reconstruction,
            figures=self.record.figures["file"],
            original=self.record.figures["original"],
            held_out=self.held_out,
            deployment=self.record,
            tried=source.tried,
            bounds=own_bounds(self.record.figures["file"].changes),
        )


def deploy(evaluator: ScheduleEvaluator, source: Source, settings: DeploySettings) -> Deployed:
    """Return the first of :func:`deployments`, alone."""
    return deployments(evaluator, source, settings, others=False)[0]


def deployments(
    evaluator: ScheduleEvaluator, source: Source, settings: DeploySettings, *, others: bool = True
) -> tuple[Deployed, ...]:
    """Return a network as a file of a runtime with its measurements, made from the weights that ``source`` holds.

    In float, quantized weights are stored as integers. In int8, layers of more than 8 bits in a schedule of bits stay
    in float; fewer bits are stored in 8. Of the others those whose int8 is measured to do most harm are left in float,
    as far as ``settings`` allow. Ranges and this choice come from the images of the curves, figures from the proof
    images. With ``others``, further files of the same search follow the one that ``settings`` ask for: smaller,
    quicker, or closer to float.

    Raises InvalidSpec if the network cannot be written or run.
    """
    runtime, steps = evaluator.runtime(settings.runtime), OptionalSteps(evaluator.progress)
    layers = runtime.layers_of_nodes(source.network, {layer.name for layer in evaluator.profile.layers})
    if settings.kind == "float":  # with quantized weights as integers
        nodes = [node for node, layer in layers.items() if layer in source.bits]
        integers = {node: source.integers[layer] for node, layer in layers.items() if layer in source.integers}
        content, notes = source.network, tuple[str, ...]()
        with steps.trying("weights stored as integers"):
            content, stored = runtime.with_quantized_weights(content, integers)
            notes = _stored_notes(stored, len(nodes) - stored)
        file = MadeFile(name="file", content=content, notes=notes, computes_in_float=True)
        found = Int8Files(made=(file,), compared={})
    else:
        found = int8_files(evaluator, runtime, source, layers, settings, steps, others=others)
    tested = _TestedFiles(evaluator, runtime, source, settings, steps, found, layers)
    dead = [each for each in found.made if not each.computes_in_float and tested.judged[each.name].keeps_nothing]
    if found.made[0] in dead:
        raise InvalidSpec(_DEAD)
    return tuple(tested.deployed(each) for each in found.made if each not in dead)


def _stored_notes(stored: int, missing: int) -> tuple[str, ...]:
    """Return in sentences how the rounded weights of so many layers are stored: as integers, or as they were."""
    found = (
        (stored, "stored as integers, and computed with in float"),
        (missing, "rounded as the schedule says, and stored as they were"),
    )
    return tuple(f"Weights of {plural(count, 'layer')} are {what}." for count, what in found if count > 0)


class _TestedFiles:
    """Files of one network, judged and timed together beside the original; ``layers`` are those of nodes."""

    def __init__(
        self,
        evaluator: ScheduleEvaluator,
        runtime: Runtime,
        source: Source,
        settings: DeploySettings,
        steps: OptionalSteps,
        found: Int8Files,
        layers: Mapping[str, str],
    ) -> None:
        self._evaluator, self._runtime, self._source, self._settings = evaluator, runtime, source, settings
        self._steps, self._found, self._layers = steps, found, layers
        self._files = {"original": evaluator.original_file(runtime), **found.compared}
        self._files |= {each.name: each.content for each in found.made}
        thresholds = score_thresholds(evaluator, runtime, self._files)
        for each in found.made:  # says itself how its images are prepared, and its classes and thresholds
            told = evaluator.told((thresholds[each.name], thresholds["original"]) if thresholds else None)
            if settings.activation_bits != INT8_BITS:
                told["senseapp.activation_bits"] = str(settings.activation_bits)
            self._files[each.name] = runtime.described(each.content, told)
        evaluator.progress.begin(StepTitle.TEST)
        evaluator.progress(f"Running the files in {runtime.description.label}")
        self.judged = self._judged(thresholds)
        self._figures = self._measured(thresholds)
        self._thresholds = thresholds

    def _judged(self, thresholds: Mapping[str, float]) -> dict[str, Judgement]:
        """Return what each file is found to do on the proof images."""
        evaluator, files = self._evaluator, self._files
        judge = Judge(
            evaluator.task,
            JudgingImages.of_set(evaluator.images.proof, evaluator.dense),
            self._runtime.open(files["original"]),
            num_outputs=evaluator.profile.num_classes,
            threshold=thresholds.get("original"),
        )
        judge.require_answers()
        judged = {"original": judge.original}
        for name, content in files.items():
            if name != "original":
                judged[name] = judge.judged(self._runtime.open(content), threshold=thresholds.get(name))
        return judged

    def _measured(self, thresholds: Mapping[str, float]) -> dict[str, RuntimeFigures]:
        """Return what was measured of each file."""
        runtime, settings = self._runtime, self._settings
        openers = {name: partial(runtime.open, each, threads=settings.threads) for name, each in self._files.items()}
        seconds, busy = times_anew(openers, runtime, call_of(self._evaluator, settings.batch)), is_busy()
        return {
            name: RuntimeFigures(
                changes=self.judged[name].changes,
                seconds=Median.of(seconds[name]),
                time_ratio=ratio(seconds[name], seconds["original"]),
                file_bytes=len(content),
                busy=busy,
                score_threshold=thresholds.get(name),
            )
            for name, content in self._files.items()
        }

    def deployed(self, made: MadeFile) -> Deployed:
        """Write down one of them."""
        evaluator, runtime, settings, steps = self._evaluator, self._runtime, self._settings, self._steps
        name, own_setting, is_asked = made.name, self._found.own_setting, made.name == "file"
        files = {"original": self._files["original"], "file": self._files[name]}
        figures = {"original": self._figures["original"], "file": self._figures[name]}
        figures |= {each: self._figures[each] for each in self._found.compared}
        shares, alike, integers = tuple[OperatorShare, ...](), tuple[str, ...](), None
        if not made.computes_in_float:
            if runtime.may_saturate:
                opened = partial(runtime.on_other_processors, files["file"])
                said = saturation("this file", self.judged[name], opened, threshold=self._thresholds.get(name))
                alike = said or (alike_everywhere(),)
            with steps.trying("the share of integers"):
                integers = IntegerShare.of(runtime.executed(files["file"]), kept=made.in_float, layers=self._layers)
            with steps.trying("times of operators"):
                shares = operator_shares(*(self._operators(each) for each in files.values()))
        elsewhere = times_elsewhere(evaluator, runtime, files, settings, steps) if is_asked else ()
        asked = settings if is_asked else replace(settings, kind="int8")  # limits are of the one asked for
        images, proof = evaluator.images, evaluator.images.proof
        record = Deployment(
            settings=settings,
            figures=figures,
            simulated=self._source.simulated,
            in_float=tuple(self._layers.get(node, node) for node in made.in_float),
            opset=runtime.format_version(files["file"]),
            batch=runtime.open(files["file"]).fixed_batch,
            images=len(proof),
            preparation=preparation(evaluator, runtime),
            machine=runtime.machine(),
            findings=findings(figures, asked, images=len(proof), own_setting=own_setting),
            notes=(
                images.note,
                *filter(None, [thresholds_text(figures)]),
                *steps.notes,
                *(side_by_side(settings.runtime, each) for each in elsewhere),
                *alike,
                *made.notes,
                *runtime.changes(files["file"]),
                *self._source.notes,
            ),
            computes_in_float=made.computes_in_float,
            own_setting=own_setting,
            operators=shares,
            elsewhere=elsewhere,
            integers=integers,
        )
        before, after = self.judged["original"].outputs, self.judged[name].outputs
        return Deployed(
            content=files["file"],
            record=record,
            answers=file_answers(before, after, proof, task=evaluator.task, names=evaluator.class_names),
            held_out=images.held_out or (images.are_apart and self._source.schedule is None),
            variant="" if is_asked else name,
        )

    def _operators(self, content: bytes) -> tuple[OperatorTime, ...]:
        batch = self._runtime.open(content).fixed_batch or self._settings.batch
        return self._runtime.operators(content, threads=self._settings.threads, batch=batch)
