"""Make the file that runs: a network in int8 where that does little harm, measured in the runtime that it is for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from senseapp.core.steps import OptionalSteps
from senseapp.data.images import PreparedImages
from senseapp.descriptions import DENSE_BITS
from senseapp.descriptions.levels import BitScale
from senseapp.metrics import METRICS
from senseapp.networks.network import in_calls
from senseapp.prove.answers import file_answers
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.findings import advice, findings
from senseapp.prove.float_nodes import Mixed, mixed
from senseapp.prove.judge import Judge, Judgement, JudgingImages
from senseapp.prove.source import Source
from senseapp.records.candidate import Candidate, Form
from senseapp.records.deployment import Deployment, DeploySettings, Median, RuntimeFigures
from senseapp.records.file_answers import FileAnswers
from senseapp.records.rounding import LayerRounding, RoundingSettings
from senseapp.runtimes.base import TURNS, Fitting, Quantizer, Runtime, RuntimeNetwork, ratio, runtime_named

_INT8_BITS = 8
_BITS = BitScale(noun="rounding", axis="Bits")
_FITTED_IMAGES = 256  # that ranges, weights and biases are fitted to
_JUDGING_IMAGES = 128  # others, that choose ranges and the nodes in float
_SCREENING_IMAGES = 32  # of those that judge: enough to tell which nodes are worth a look
_LEAST_IMAGES = 16  # of each; with fewer, all do both
_SEARCH_TURNS = 15
_NOT_QUICKER = "No file with int8 that is quicker than the original changes as few answers: this one is all in float."
_UNSEEN = 0.01  # of what is notable: less damage than that is not worth a layer in float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """An ONNX file, what was measured of it, and what it answers to each image; None for tasks without answers."""

    content: bytes
    record: Deployment
    answers: FileAnswers | None

    def candidate(self, source: Source, *, name_of: Callable[[Form], str], held_out: bool) -> Candidate:
        """Return it as a candidate; ``name_of`` returns the name of a file by its form."""
        form = _form_of(self.record)
        return Candidate(
            file=name_of(form),
            form=form,
            schedule=source.schedule,
            reconstruction=source.reconstruction,
            figures=self.record.figures["file"],
            original=self.record.figures["original"],
            held_out=held_out,
            deployment=self.record,
        )


def _form_of(record: Deployment) -> Form:
    if record.computes_in_float:
        return "onnx"
    return "mixed" if record.in_float else "int8"


def deploy(evaluator: ScheduleEvaluator, source: Source, settings: DeploySettings) -> Deployed:
    """Return a network as a file of a runtime with its measurements, made from the weights that ``source`` holds.

    In float, quantized weights are stored as integers. In int8, layers of more than 8 bits in a schedule of bits stay
    in float; fewer bits are stored in 8. Of the others those whose int8 is measured to do most harm are left in float,
    as far as ``settings`` allow. Ranges and this choice come from the images of the curves, figures from the proof
    images.

    Raises:
        InvalidSpec: the network cannot be written or run.
    """
    runtime, network, proof = runtime_named(settings.runtime), source.network, evaluator.images.proof
    files, found = {"original": evaluator.original_file(runtime), "file": network}, None
    layers = runtime.layers_of_nodes(network, {layer.name for layer in evaluator.profile.layers})
    notes, steps = tuple[str, ...](), OptionalSteps(evaluator.progress)
    if settings.kind == "float":
        bits = {node: source.bits[layer] for node, layer in layers.items() if layer in source.bits}
        with steps.trying("weights stored as integers"):
            if bits:
                stored = runtime.with_quantized_weights(network, bits)
                files["file"], notes = stored.content, stored.notes
    else:
        kept = [node for node, layer in layers.items() if source.bits.get(layer, DENSE_BITS) > _INT8_BITS]
        found = _Int8Search(evaluator, runtime, source, settings, steps).found(files, kept if source.bits else [])
        files, notes = found.files, found.notes
    in_float = files["file"] == network or found is None
    preprocessing = proof.preprocessing if isinstance(proof, PreparedImages) else None
    names = evaluator.class_names
    files["file"] = runtime.described(files["file"], preprocessing=preprocessing, class_names=names)
    evaluator.progress(f"Measuring the file in {runtime.description.label}")
    opened = {name: runtime.open(content, threads=settings.threads) for name, content in files.items()}
    judged = _judged(evaluator, runtime, files)
    figures, zeros = _figures(evaluator, runtime, files, opened, judged, settings)
    record = Deployment(
        settings=settings,
        figures=figures,
        simulated=source.simulated,
        in_float=tuple(layers.get(node, node) for node in found.in_float) if found else (),
        opset=runtime.checked(files["file"]),
        batch=opened["file"].fixed_batch,
        images=len(proof),
        preparation=_preparation(evaluator),
        machine=runtime.machine(),
        findings=findings(figures, settings, images=len(proof)),
        notes=(
            evaluator.images.note,
            *steps.notes,
            *((advice(figures["int8"].time_ratio, zeros),) if "int8" in figures and zeros is not None else ()),
            *notes,
            *source.notes,
        ),
        computes_in_float=in_float,
    )
    before, after = (judged[name].outputs for name in ("original", "file"))
    answers = file_answers(before, after, proof, task=evaluator.task, names=names)
    return Deployed(content=files["file"], record=record, answers=answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Int8Files:
    """The files by name, the nodes of "file" in float, and sentences on how it was made."""

    files: dict[str, bytes]
    in_float: tuple[str, ...]
    notes: tuple[str, ...]


class _Int8Search:
    """Makes a network's files in int8, and looks for the parts that are better left in float."""

    def __init__(
        self,
        evaluator: ScheduleEvaluator,
        runtime: Runtime,
        source: Source,
        settings: DeploySettings,
        steps: OptionalSteps,
    ) -> None:
        self._evaluator, self._runtime, self._source = evaluator, runtime, source
        self._settings, self._steps = settings, steps
        self._by_answers = settings.kind == "quickest"
        self._network = runtime.open(source.network)
        self._fitted, self._others = (_in_calls(self._network, each) for each in _fitted_and_others(evaluator))
        self._judge = _judge_of(evaluator, self._others, self._network)
        self._last: tuple[bytes, Judgement | None] = b"", None

    def found(self, files: Mapping[str, bytes], kept: Sequence[str]) -> _Int8Files:
        """Return ``files`` with those in int8, nodes ``kept`` in float always."""
        runtime, settings, steps, network = self._runtime, self._settings, self._steps, self._source.network
        fitting = Fitting(
            batches=self._fitted,
            damage_of=lambda candidate: self._judge.judged(candidate).damage,
            reduce_range=settings.reduce_range,
            weights_are_free=not self._source.bits,  # rounded weights would leave their grid
            steps=steps,
        )
        with runtime.fitted_quantizer(network, fitting) as quantizer:
            all_int8 = quantizer.write()
            found = Mixed(content=quantizer.write(but=kept), in_float=(), gain={})
            if settings.kind != "int8":
                steps.progress("Timing every part in float and in int8")
                with steps.trying("the search for parts that int8 harms"):
                    found = self._mixed(files["original"], quantizer, kept)
        made = {**files, "int8": all_int8}
        with steps.trying(runtime.description.own_default):
            default = runtime.own_int8(network, self._fitted)
            if default is not None:
                if self._damage_of(default) < self._damage_of(found.content) and not kept:
                    found = replace(found, content=default, in_float=())
                made["default"] = default
        if self._by_answers and self._judged(found.content).share_changed > settings.most_changed:
            found = Mixed(content=network, in_float=(), gain={})  # float changes none
        is_own = found.content not in (network, made.get("default"))
        notes = self._notes(found.content, quantizer.notes if is_own else ())
        return _Int8Files(files={**made, "file": found.content}, in_float=found.in_float, notes=notes)

    def _notes(self, content: bytes, of_quantizer: tuple[str, ...]) -> tuple[str, ...]:
        """Return sentences on how the file was made."""
        bits, note = self._source.bits, self._runtime.int8_note
        rounded = bits and min(bits.values()) < _INT8_BITS
        return (
            *((f"Weights of fewer than {_INT8_BITS} bits are stored in {_INT8_BITS}.",) if rounded else ()),
            *((_NOT_QUICKER,) if self._by_answers and content == self._source.network else ()),
            *of_quantizer,
            *((note,) if note else ()),
        )

    def _mixed(self, original: bytes, quantizer: Quantizer, kept: Sequence[str]) -> Mixed:
        """Return the file of ``quantizer`` with those parts in float that int8 harms, as far as settings allow."""
        runtime, settings, all_int8 = self._runtime, self._settings, quantizer.write()
        few = torch.cat(tuple(self._others))[:_SCREENING_IMAGES]
        screen = _judge_of(self._evaluator, _in_calls(self._network, [few]), self._network)
        quickest = runtime.open(original if self._by_answers else all_int8, threads=settings.threads)
        most_time = 1.0 if self._by_answers else settings.most_time

        def is_enough(content: bytes, damage: float) -> bool:
            if self._by_answers:
                return self._judged(content).share_changed <= settings.most_changed
            return damage <= _UNSEEN * METRICS[self._judge.divergence].notable

        def is_quick_enough(content: bytes) -> bool:
            pair = (runtime.open(content, threads=settings.threads), quickest)
            slower, quicker = runtime.times(pair, few[:1], turns=_SEARCH_TURNS)
            return ratio(slower, quicker).value <= most_time

        return mixed(
            quantizer,
            always_float=kept,
            screen=lambda content: screen.judged(runtime.open(content)).damage,
            damage_of=self._damage_of,
            seconds_of=self._seconds(quantizer, all_int8),
            is_quick_enough=is_quick_enough,
            is_enough=is_enough,
            progress=self._steps.progress,
        )

    def _seconds(self, quantizer: Quantizer, int8: bytes) -> Callable[[Collection[str]], float]:
        """Return a function from the nodes in float to the predicted seconds of a call."""
        nodes, network = {node.name for node in quantizer.nodes(int8)}, self._source.network
        batch, threads = self._network.fixed_batch or self._settings.batch, self._settings.threads
        owners = {node: node for node in nodes}
        found = self._runtime.time_layers(network, int8, owners, threads=threads, batch=batch)

        def seconds_of(in_float: Collection[str]) -> float:
            inside = nodes.difference(in_float)
            return found.whole(dict.fromkeys(inside, float(_INT8_BITS)), _BITS, int8=inside)

        return seconds_of

    def _damage_of(self, content: bytes) -> float:
        return self._judged(content).damage

    def _judged(self, content: bytes) -> Judgement:
        """Return what a file was found to do; the last one is kept, as it is asked about twice."""
        known, judgement = self._last
        if judgement is None or known != content:
            judgement = self._judge.judged(self._runtime.open(content))
            self._last = content, judgement
        return judgement


def explain(evaluator: ScheduleEvaluator, settings: RoundingSettings, *, runtime: Runtime) -> list[LayerRounding]:
    """Return what rounding the weights, the input and the output of each layer of the uncompressed network does alone.

    Half of the images of the curves fit ranges and weights, on the others damage is measured.
    """
    content = evaluator.original_file(runtime)
    network = runtime.open(content)
    fitted, others = (_in_calls(network, each) for each in _fitted_and_others(evaluator))
    judge = _judge_of(evaluator, others, network)
    return list(
        runtime.roundings(
            content,
            fitted,
            settings,
            layers={layer.name for layer in evaluator.profile.layers},
            change_of=lambda changed: judge.judged(changed).change(judge.divergence),
            progress=evaluator.progress,
        )
    )


def _judge_of(evaluator: ScheduleEvaluator, batches: Sequence[Tensor], network: RuntimeNetwork) -> Judge:
    """Return what compares with ``network`` on ``batches``, without labels."""
    images, outputs = JudgingImages.of_batches(batches), evaluator.profile.num_classes
    return Judge(evaluator.task, images, network, num_outputs=outputs)


def _fitted_and_others(evaluator: ScheduleEvaluator) -> tuple[list[Tensor], ...]:
    """Return images of the curves, in batches: those that ranges and weights are fitted to, and those that judge."""
    curves = evaluator.images.curves
    generator = torch.Generator().manual_seed(evaluator.result.spec.sensitivity.seed)
    order: list[int] = torch.randperm(len(curves), generator=generator).tolist()
    judging = min(len(curves) // 2, _JUDGING_IMAGES) if len(curves) >= 2 * _LEAST_IMAGES else 0
    fitted = curves.subset(order[judging:][:_FITTED_IMAGES])
    others = curves.subset(order[:judging]) if judging else fitted
    arranged = (evaluator.dense.arranged(images, 0, len(images)) for images in (fitted, others))
    return tuple([batch.cpu() for batch in batches] for batches in arranged)  # runtimes run there


def _in_calls(network: RuntimeNetwork, batches: Sequence[Tensor]) -> list[Tensor]:
    return [part for batch in batches for part in in_calls(network, batch)]


def _judged(evaluator: ScheduleEvaluator, runtime: Runtime, files: Mapping[str, bytes]) -> dict[str, Judgement]:
    """Return what each file is found to do on the proof images beside the original in the runtime."""
    judge = Judge(
        evaluator.task,
        JudgingImages.of_set(evaluator.images.proof, evaluator.dense),
        runtime.open(files["original"]),
        num_outputs=evaluator.profile.num_classes,
    )
    others = {name: file for name, file in files.items() if name != "original"}
    return {"original": judge.original} | {name: judge.judged(runtime.open(file)) for name, file in others.items()}


def _figures(
    evaluator: ScheduleEvaluator,
    runtime: Runtime,
    files: Mapping[str, bytes],
    opened: Mapping[str, RuntimeNetwork],
    judged: Mapping[str, Judgement],
    settings: DeploySettings,
) -> tuple[dict[str, RuntimeFigures], Median | None]:
    """Return what was measured of each file, and the time of the original with half of its weights at zero, to it.

    The latter is for files in int8, beside which it is said; None for others.
    """
    image = evaluator.dense.arranged(evaluator.images.proof, 0, 1)[0]
    shown = image.expand(settings.batch, *image.shape[1:])
    zeros = None if settings.kind == "float" else runtime.half_zero(files["original"])
    others = () if zeros is None else (runtime.open(zeros, threads=settings.threads),)
    spent = runtime.times([*opened.values(), *others], shown, turns=TURNS)
    seconds = dict(zip(opened, spent, strict=False))
    figures = {
        name: RuntimeFigures(
            changes=judged[name].changes,
            seconds=Median.of(seconds[name]),
            time_ratio=ratio(seconds[name], seconds["original"]),
            file_bytes=runtime.size(files[name]),
        )
        for name in files
    }
    return figures, ratio(spent[-1], seconds["original"]) if others else None


def _preparation(evaluator: ScheduleEvaluator) -> str:
    shape = f"images, float32, is (N, {', '.join(map(str, evaluator.profile.input_shape))})"
    if not isinstance(evaluator.images.proof, PreparedImages):
        return f"{shape}."
    how = evaluator.images.proof.preprocessing
    return (
        f"{shape}: the middle {100 * how.crop_pct:g} % of the picture, resized ({how.interpolation}), channels in the "
        f"order {how.channel_order}, from 0 to 1, less {list(how.mean)}, divided by {list(how.std)}."
    )
