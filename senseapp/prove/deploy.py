"""The deployed file: made of proven weights, in int8 where that does little harm, and measured in its runtime."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import safetensors.torch
from torch import nn

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.errors import InvalidSpec
from senseapp.core.files import storage_errors
from senseapp.core.steps import LEFT_OUT, OptionalSteps, StepTitle
from senseapp.data.images import PreparedImages
from senseapp.descriptions import Effect, get
from senseapp.metrics import MetricChange
from senseapp.prove.answers import file_answers
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.file_times import call_of, is_busy, times_anew, times_elsewhere
from senseapp.prove.findings import findings, preparation, saturation, side_by_side
from senseapp.prove.int8_files import Int8Search, MadeFile
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.prove.prove import Proof
from senseapp.prove.search_images import score_thresholds, with_held_out
from senseapp.reconstruct.small_file import stored_integers
from senseapp.records.answers import FileAnswers
from senseapp.records.candidate import Candidate, Form, own_bounds
from senseapp.records.deployment import (
    Deployment,
    DeploySettings,
    Median,
    OperatorShare,
    OperatorTime,
    RuntimeFigures,
    operator_shares,
    thresholds_text,
)
from senseapp.records.schedule import Delivered, Schedule, ValidationResult
from senseapp.runtimes.base import QuantizedWeights, Runtime
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
    network = _written(evaluator, runtime, proven.applied.model)
    return _source(network, proven.result, proven.applied.integers)


def stored_source(evaluator: ScheduleEvaluator, runtime: Runtime, proof: ValidationResult, weights: Path) -> Source:
    """Return the network of an earlier proof, whose weights lie at ``weights``, a plain state dict, with its integers.

    Where channels were removed, the network lies beside them in files that some runtimes open; for others its schedule
    is carried out again, and takes the weights.

    Raises:
        StorageFailed: the files are gone.
    """
    integers = stored_integers(weights, evaluator.profile)
    whole, removes_channels = weights.with_suffix(runtime.description.suffix), proof.schedule.removes_channels
    if removes_channels and whole.is_file():
        with storage_errors(whole.name):
            return _source(whole.read_bytes(), proof, integers)
    model = (
        evaluator.reconstruction.apply(proof.schedule).model
        if removes_channels
        else copy.deepcopy(evaluator.dense.model)
    )
    with storage_errors(weights.name):
        state = safetensors.torch.load(weights.read_bytes())
    model.load_state_dict(state)
    return _source(_written(evaluator, runtime, model), proof, integers)


def _written(evaluator: ScheduleEvaluator, runtime: Runtime, model: nn.Module) -> bytes:
    evaluator.progress(f"Writing the proven network as {runtime.description.file_title}")
    return evaluator.exporter(runtime).write(model)


def _source(network: bytes, proof: ValidationResult, integers: Mapping[str, IntegerWeight]) -> Source:
    return Source(
        network=network,
        schedule=proof.schedule,
        reconstruction=proof.delivered,
        simulated=proof.kept_changes,
        bits=bits_of(proof.schedule),
        integers=integers,
        tried=proof.tried,
        notes=(
            *((proof.delivered_reason,) if proof.delivered_reason else ()),
            *(note for note in proof.notes if note.startswith(LEFT_OUT)),
        ),
    )


def bits_of(schedule: Schedule) -> dict[str, float]:
    """Return the bits of each weight, by layer, that ``schedule`` puts on a grid."""
    return {
        member: entry.level
        for entry in schedule.entries
        if entry.compression != "none" and get(entry.compression).effect is Effect.BITS
        for member in entry.members
    }


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
        form = _form_of(self.record)
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


def _form_of(record: Deployment) -> Form:
    if record.computes_in_float:
        return "onnx"
    return "mixed" if record.in_float else "int8"


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

    Raises:
        InvalidSpec: the network cannot be written or run.
    """
    return _Deploying(evaluator, source, settings).made(others)


class _Deploying:
    """Makes the files, measures all of them together, and writes down each."""

    def __init__(self, evaluator: ScheduleEvaluator, source: Source, settings: DeploySettings) -> None:
        if source.schedule is None and settings.kind != "float":
            evaluator = with_held_out(evaluator)
        self._evaluator, self._source, self._settings = evaluator, source, settings
        self._runtime = evaluator.runtime(settings.runtime)
        self._steps = OptionalSteps(evaluator.progress)
        layers = {layer.name for layer in evaluator.profile.layers}
        self._layers = self._runtime.layers_of_nodes(source.network, layers)
        self._files = {"original": evaluator.original_file(self._runtime)}
        self._own_setting = ""

    def made(self, others: bool) -> tuple[Deployed, ...]:
        made = (self._in_float(),) if self._settings.kind == "float" else self._in_int8(others)
        self._files |= {each.name: each.content for each in made}
        self._thresholds = score_thresholds(self._evaluator, self._runtime, self._files)
        for each in made:
            self._files[each.name] = self._described(each.name)
        self._measure()
        dead = [each for each in made if not each.computes_in_float and self._judged[each.name].keeps_nothing]
        if made[0] in dead:
            raise InvalidSpec(_DEAD)
        return tuple(self._deployed(each) for each in made if each not in dead)

    def _in_int8(self, others: bool) -> tuple[MadeFile, ...]:
        source = self._source
        args = (self._evaluator, self._runtime, source.network, source.bits, self._settings, self._steps)
        found = Int8Search(*args, others=others, integers=source.integers).found(self._layers)
        self._files |= found.compared
        self._own_setting = found.own_setting
        return found.made

    def _in_float(self) -> MadeFile:
        """Return the float file, with quantized weights as integers."""
        source = self._source
        nodes = [node for node, layer in self._layers.items() if layer in source.bits]
        integers = {node: source.integers[layer] for node, layer in self._layers.items() if layer in source.integers}
        stored = QuantizedWeights(content=source.network)
        with self._steps.trying("weights stored as integers"):
            if nodes:
                stored = self._runtime.with_quantized_weights(source.network, nodes, integers)
        return MadeFile(name="file", content=stored.content, notes=stored.notes, computes_in_float=True)

    def _described(self, name: str) -> bytes:
        proof, names = self._evaluator.images.proof, self._evaluator.class_names
        preprocessing = proof.preprocessing if isinstance(proof, PreparedImages) else None
        chosen = self._thresholds
        scores = {"thresholds": (chosen[name], chosen["original"])} if chosen else {}  # a runtime may know none
        return self._runtime.described(self._files[name], preprocessing=preprocessing, class_names=names, **scores)

    def _measure(self) -> None:
        """Judge and time all files."""
        evaluator, runtime, settings = self._evaluator, self._runtime, self._settings
        evaluator.progress.begin(StepTitle.TEST)
        evaluator.progress(f"Running the files in {runtime.description.label}")
        self._judged = _judged(evaluator, runtime, self._files, self._thresholds)
        figures = _figures(evaluator, runtime, self._files, self._judged, settings)
        self._figures = {
            name: replace(each, score_threshold=self._thresholds.get(name)) for name, each in figures.items()
        }

    def _deployed(self, made: MadeFile) -> Deployed:
        evaluator, runtime, settings, steps = self._evaluator, self._runtime, self._settings, self._steps
        name, own_setting, is_asked = made.name, self._own_setting, made.name == "file"
        files = {"original": self._files["original"], "file": self._files[name]}
        beside = [each for each in ("int8", "default") if each in self._figures]
        figures = {"original": self._figures["original"], "file": self._figures[name]}
        figures |= {each: self._figures[each] for each in beside}
        shares = tuple[OperatorShare, ...]()
        if not made.computes_in_float:
            with steps.trying("times of operators"):
                own = _operators(runtime, files["file"], settings)
                shares = operator_shares(self._operators_of_original, own)
        elsewhere = times_elsewhere(evaluator, runtime, files, settings, steps) if is_asked else ()
        asked = settings if is_asked else replace(settings, kind="int8")  # limits are of the one asked for
        record = Deployment(
            settings=settings,
            figures=figures,
            simulated=self._source.simulated,
            in_float=tuple(self._layers.get(node, node) for node in made.in_float),
            opset=runtime.format_version(files["file"]),
            batch=runtime.open(files["file"]).fixed_batch,
            images=len(evaluator.images.proof),
            preparation=preparation(evaluator, runtime),
            machine=runtime.machine(),
            findings=findings(figures, asked, images=len(evaluator.images.proof), own_setting=own_setting),
            notes=(
                evaluator.images.note,
                *filter(None, [thresholds_text(figures)]),
                *steps.notes,
                *(side_by_side(settings.runtime, each) for each in elsewhere),
                *self._saturation,
                *made.notes,
                *runtime.changes(files["file"]),
                *self._source.notes,
            ),
            computes_in_float=made.computes_in_float,
            own_setting=own_setting,
            operators=shares,
            elsewhere=elsewhere,
        )
        before, after = self._judged["original"].outputs, self._judged[name].outputs
        proof, names = evaluator.images.proof, evaluator.class_names
        answers = file_answers(before, after, proof, task=evaluator.task, names=names)
        variant = "" if is_asked else name
        held_out = evaluator.images.held_out
        return Deployed(content=files["file"], record=record, answers=answers, held_out=held_out, variant=variant)

    @cached_property
    def _saturation(self) -> tuple[str, ...]:
        """How the file of the runtime's own quantizer answers elsewhere; those made here do not saturate."""
        own = self._files.get("default")
        if own is None:
            return ()
        title = self._runtime.description.own_title(self._own_setting)
        return saturation(title, self._judged["default"], lambda: self._runtime.unsaturated(own))

    @cached_property
    def _operators_of_original(self) -> tuple[OperatorTime, ...]:
        return _operators(self._runtime, self._files["original"], self._settings)


def _operators(runtime: Runtime, content: bytes, settings: DeploySettings) -> tuple[OperatorTime, ...]:
    batch = runtime.open(content).fixed_batch or settings.batch
    return runtime.operators(content, threads=settings.threads, batch=batch)


def _judged(
    evaluator: ScheduleEvaluator, runtime: Runtime, files: Mapping[str, bytes], thresholds: Mapping[str, float]
) -> dict[str, Judgement]:
    """Return what each file is found to do on the proof images beside the original in the runtime."""
    judge = Judge(
        evaluator.task,
        JudgingImages.of_set(evaluator.images.proof, evaluator.dense),
        runtime.open(files["original"]),
        num_outputs=evaluator.profile.num_classes,
        threshold=thresholds.get("original"),
    )
    judge.require_answers()
    others = {name: runtime.open(file) for name, file in files.items() if name != "original"}
    judged = {name: judge.judged(file, threshold=thresholds.get(name)) for name, file in others.items()}
    return {"original": judge.original} | judged


def _figures(
    evaluator: ScheduleEvaluator,
    runtime: Runtime,
    files: Mapping[str, bytes],
    judged: Mapping[str, Judgement],
    settings: DeploySettings,
) -> dict[str, RuntimeFigures]:
    """Return what was measured of each file."""
    openers = {name: partial(runtime.open, each, threads=settings.threads) for name, each in files.items()}
    seconds, busy = times_anew(openers, runtime, call_of(evaluator, settings.batch)), is_busy()
    return {
        name: RuntimeFigures(
            changes=judged[name].changes,
            seconds=Median.of(seconds[name]),
            time_ratio=ratio(seconds[name], seconds["original"]),
            file_bytes=len(files[name]),
            busy=busy,
        )
        for name in files
    }
