"""Make the file that runs: an ONNX network in int8 where that does little harm, measured in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from senseapp.core.steps import OptionalSteps
from senseapp.core.texts import plural
from senseapp.data.images import PreparedImages
from senseapp.descriptions import DENSE_BITS
from senseapp.descriptions.levels import BitScale
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.metrics import METRICS, change_of
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.file_answers import file_answers
from senseapp.prove.file_judge import FileJudge
from senseapp.prove.findings import advice, findings
from senseapp.prove.source import Source
from senseapp.records.answers import FileAnswers
from senseapp.records.candidate import Candidate, Form
from senseapp.records.deployment import Deployment, DeploySettings, Median, RuntimeFigures
from senseapp.records.layer_findings import LayerRounding, RoundingSettings
from senseapp.runtimes.onnxruntime.float_nodes import Mixed, mixed
from senseapp.runtimes.onnxruntime.four_bits import BITS, with_four_bits
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, int8_nodes, layers_of_nodes
from senseapp.runtimes.onnxruntime.integer_weights import with_integer_weights
from senseapp.runtimes.onnxruntime.kit.metadata import with_metadata
from senseapp.runtimes.onnxruntime.rounding.choice import chosen_rounding
from senseapp.runtimes.onnxruntime.rounding.equalise import better_equalised
from senseapp.runtimes.onnxruntime.rounding.explain import layer_roundings
from senseapp.runtimes.onnxruntime.runtime import TURNS, RuntimeModel, machine, ratio, times
from senseapp.runtimes.onnxruntime.timing import time_layers

_INT8_BITS = 8
_BITS = BitScale(noun="rounding", axis="Bits")
_FITTED_IMAGES = 256  # that ranges, weights and biases are fitted to
_JUDGING_IMAGES = 128  # others, that choose ranges and the nodes in float
_SCREENING_IMAGES = 32  # of those that judge: enough to tell which nodes are worth a look
_LEAST_IMAGES = 16  # of each; with fewer, all do both
_SEARCH_TURNS = 15
_SATURATES_NOWHERE = (
    "Weights of convolutions and matrix products are chosen so that sums of their products with 8 bits fit in 16, "
    "so the file does the same on processors without VNNI, where onnxruntime's own default may saturate."
)
_EQUALISED = (
    "Channels of activations are scaled to more equal ranges, and the weights around them inversely: measured, "
    "onnxruntime's own int8 file does less harm so, and in float the network does the same."
)
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
    """Return a network as an ONNX file with its measurements, made from the weights that ``source`` holds.

    In float, quantized weights are stored as integers. In int8, layers of more than 8 bits in a schedule of bits stay
    in float; fewer bits are stored in 8. Of the others those whose int8 is measured to do most harm are left in float,
    as far as ``settings`` allow. Ranges and this choice come from the images of the curves, figures from the proof
    images.

    Raises:
        InvalidSpec: the network cannot be written or run.
    """
    network = source.network
    files, found = {"original": evaluator.original_network, "file": network}, None
    notes, steps = tuple[str, ...](), OptionalSteps(evaluator.progress)
    if settings.kind == "float":
        with steps.trying("weights stored as integers"):
            files["file"], notes = _with_packed_weights(evaluator, source)
    else:
        found = _int8_files(evaluator, files, source, settings, steps)
        files = found.files
        notes = found.notes(source)
    in_float = files["file"] == network or found is None
    proof = evaluator.images.proof
    preprocessing = proof.preprocessing if isinstance(proof, PreparedImages) else None
    files["file"] = with_metadata(files["file"], preprocessing=preprocessing, class_names=evaluator.class_names)
    evaluator.progress("Measuring the file in onnxruntime")
    opened = {name: RuntimeModel(content, threads=settings.threads) for name, content in files.items()}
    outputs = _outputs(evaluator, files)
    figures, zeros = _figures(evaluator, files, opened, outputs, settings)
    model = onnx.load_from_string(files["file"])
    onnx.checker.check_model(model)
    layers = layers_of_nodes(network, {layer.name for layer in evaluator.profile.layers})
    record = Deployment(
        settings=settings,
        figures=figures,
        simulated=source.simulated,
        in_float=tuple(layers.get(node, node) for node in found.in_float) if found else (),
        opset=next(each.version for each in model.opset_import if not each.domain),
        batch=opened["file"].fixed_batch,
        images=len(evaluator.images.proof),
        preparation=_preparation(evaluator),
        machine=machine(),
        findings=findings(figures, settings, images=len(evaluator.images.proof)),
        notes=(
            evaluator.images.note,
            *steps.notes,
            *((advice(figures["int8"].time_ratio, zeros),) if "int8" in figures and zeros is not None else ()),
            *notes,
            *source.notes,
        ),
        computes_in_float=in_float,
    )
    task, names = evaluator.dense.task, evaluator.class_names
    answers = file_answers(outputs["original"], outputs["file"], proof, task=task, names=names)
    return Deployed(content=files["file"], record=record, answers=answers)


def _with_packed_weights(evaluator: ScheduleEvaluator, source: Source) -> tuple[bytes, tuple[str, ...]]:
    """Return the float network of ``source`` with quantized weights as integers, and a sentence on how they are."""
    if not source.bits:
        return source.network, ()
    layers = layers_of_nodes(source.network, {layer.name for layer in evaluator.profile.layers})
    bits = {node: source.bits[layer] for node, layer in layers.items() if layer in source.bits}
    network, in_operator = with_four_bits(source.network, [node for node, each in bits.items() if each <= BITS])
    network, stored = with_integer_weights(network, bits)
    missing = len(bits) - stored - len(in_operator)
    found = [
        f"Weights of {plural(count, 'layer')} are {what}."
        for count, what in (
            (stored, "stored as integers, and computed with in float"),
            (len(in_operator), f"in {BITS} bits in onnxruntime's operator for them (MatMulNBits)"),
            (missing, "rounded as the schedule says, and stored in 32 bits"),
        )
        if count > 0
    ]
    return network, tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Int8Files:
    """The files by name, the nodes of "file" in float, and whether its channels are equalised."""

    files: dict[str, bytes]
    in_float: tuple[str, ...]
    equalised: bool
    by_answers: bool

    def notes(self, source: Source) -> tuple[str, ...]:
        """Return sentences on how the file was made."""
        rounded = source.bits and min(source.bits.values()) < _INT8_BITS
        return (
            *((f"Weights of fewer than {_INT8_BITS} bits are stored in {_INT8_BITS}.",) if rounded else ()),
            *((_NOT_QUICKER,) if self.by_answers and self.files["file"] == source.network else ()),
            *((_EQUALISED,) if self.equalised else ()),
            _SATURATES_NOWHERE,
        )


def _int8_files(
    evaluator: ScheduleEvaluator,
    files: dict[str, bytes],
    source: Source,
    settings: DeploySettings,
    steps: OptionalSteps,
) -> _Int8Files:
    network = files["file"]
    fitted, others = (_of_one_size(network, batches) for batches in _fitted_and_others(evaluator))
    judge = FileJudge(evaluator, network, others)
    scaled, by_answers = network, settings.kind == "quickest"
    if not source.bits:  # rounded weights would leave their grid
        simulated = FileJudge(evaluator, network, others, simulated=True).damage_of
        with steps.trying("equalised channels"):
            scaled = better_equalised(network, fitted, damage_of=simulated, progress=steps.progress)

    kept = _kept_in_float(evaluator, source)
    with Int8Writer(scaled, fitted, reduce_range=settings.reduce_range) as writer:
        rounding = None
        with steps.trying("ranges and weights fitted to the images"):
            rounding = chosen_rounding(writer, fitted, damage_of=judge.damage_of, steps=steps)
        writer.rounding = rounding
        all_int8 = writer.write()
        found = Mixed(content=writer.write(but=kept), in_float=(), gain={})
        if settings.kind != "int8":
            steps.progress("Timing every part in float and in int8")
            with steps.trying("the search for parts that int8 harms"):
                found = _mixed(evaluator, files, writer, judge, settings, kept=kept, steps=steps)
    files = {**files, "int8": all_int8}
    with steps.trying("onnxruntime's own default"), Int8Writer(network, fitted, per_channel=False) as usual:
        default = usual.write()
        if judge.damage_of(default) < judge.damage_of(found.content) and not kept:
            found = replace(found, content=default, in_float=())
        files["default"] = default
    if by_answers and judge.share_changed(found.content) > settings.most_changed:
        found = Mixed(content=network, in_float=(), gain={})  # float changes none
    equal = scaled != network and found.content not in (network, files.get("default"))
    files = {**files, "file": found.content}
    return _Int8Files(files=files, in_float=found.in_float, equalised=equal, by_answers=by_answers)


def _mixed(
    evaluator: ScheduleEvaluator,
    files: Mapping[str, bytes],
    writer: Int8Writer,
    judge: FileJudge,
    settings: DeploySettings,
    *,
    kept: Sequence[str],
    steps: OptionalSteps,
) -> Mixed:
    """Return the file of ``writer`` with those parts in float that int8 harms, as far as ``settings`` allow."""
    network, all_int8, by_answers = files["file"], writer.write(), settings.kind == "quickest"
    few = torch.cat(tuple(judge.images))[:_SCREENING_IMAGES]
    quickest = RuntimeModel(files["original"] if by_answers else all_int8, threads=settings.threads)
    most_time = 1.0 if by_answers else settings.most_time

    def is_enough(content: bytes, damage: float) -> bool:
        if by_answers:
            return judge.share_changed(content) <= settings.most_changed
        return damage <= _UNSEEN * METRICS[judge.metric].notable

    def is_quick_enough(content: bytes) -> bool:
        pair = (RuntimeModel(content, threads=settings.threads), quickest)
        slower, quicker = times(pair, few[:1], turns=_SEARCH_TURNS)
        return ratio(slower, quicker).value <= most_time

    return mixed(
        writer,
        always_float=kept,
        screen=FileJudge(evaluator, network, _of_one_size(network, [few])).damage_of,
        damage_of=judge.damage_of,
        seconds_of=_seconds(network, all_int8, settings),
        is_quick_enough=is_quick_enough,
        is_enough=is_enough,
        progress=steps.progress,
    )


def _seconds(network: bytes, int8: bytes, settings: DeploySettings) -> Callable[[Collection[str]], float]:
    """Return a function from the nodes in float to the predicted seconds of a call."""
    nodes = set(int8_nodes(int8))
    batch = RuntimeModel(network).fixed_batch or settings.batch
    found = time_layers(network, int8, {node: node for node in nodes}, threads=settings.threads, batch=batch)

    def seconds_of(in_float: Collection[str]) -> float:
        inside = nodes.difference(in_float)
        return found.whole(dict.fromkeys(inside, float(_INT8_BITS)), _BITS, int8=inside)

    return seconds_of


def explain(evaluator: ScheduleEvaluator, settings: RoundingSettings) -> list[LayerRounding]:
    """Return what rounding the weights, the input and the output of each layer of the uncompressed network does alone.

    Half of the images of the curves fit ranges and weights, on the others damage is measured.
    """
    network = evaluator.original_network
    fitted, others = (_of_one_size(network, batches) for batches in _fitted_and_others(evaluator))
    return list(
        layer_roundings(
            network,
            fitted,
            settings,
            layers={layer.name for layer in evaluator.profile.layers},
            change_of=FileJudge(evaluator, network, others).change_of,
            progress=evaluator.progress,
        )
    )


def _fitted_and_others(evaluator: ScheduleEvaluator) -> tuple[list[Tensor], ...]:
    """Return images of the curves, in batches: those that ranges and weights are fitted to, and those that judge."""
    curves = evaluator.images.curves
    generator = torch.Generator().manual_seed(evaluator.result.spec.sensitivity.seed)
    order: list[int] = torch.randperm(len(curves), generator=generator).tolist()
    judging = min(len(curves) // 2, _JUDGING_IMAGES) if len(curves) >= 2 * _LEAST_IMAGES else 0
    fitted = curves.subset(order[judging:][:_FITTED_IMAGES])
    others = curves.subset(order[:judging]) if judging else fitted
    arranged = (evaluator.dense.arranged(images, 0, len(images)) for images in (fitted, others))
    return tuple([batch.cpu() for batch in batches] for batches in arranged)  # onnxruntime runs there


def _of_one_size(network: bytes, batches: Sequence[Tensor]) -> list[Tensor]:
    size = RuntimeModel(network).fixed_batch
    return [part for batch in batches for part in (torch.split(batch, size) if size else (batch,))]


def _kept_in_float(evaluator: ScheduleEvaluator, source: Source) -> list[str]:
    """Return the nodes of layers that a schedule of bits gives more than 8; none where it says nothing of bits."""
    if not source.bits:
        return []
    nodes = layers_of_nodes(source.network, {layer.name for layer in evaluator.profile.layers})
    return [node for node, layer in nodes.items() if source.bits.get(layer, DENSE_BITS) > _INT8_BITS]


def _outputs(evaluator: ScheduleEvaluator, files: Mapping[str, bytes]) -> dict[str, Tensor]:
    """Return the outputs of each file for the proof images, (N, ...)."""
    proof = evaluator.images.proof
    images = evaluator.dense.arranged(proof, 0, len(proof))
    return {name: evaluator.dense.task.output(RuntimeModel(file).outputs(images)) for name, file in files.items()}


def _figures(
    evaluator: ScheduleEvaluator,
    files: Mapping[str, bytes],
    opened: Mapping[str, RuntimeModel],
    outputs: Mapping[str, Tensor],
    settings: DeploySettings,
) -> tuple[dict[str, RuntimeFigures], Median | None]:
    """Return what was measured of each file, and the time of the original with half of its weights at zero, to it.

    The latter is for files in int8, beside which it is said; None for others.
    """
    proof = evaluator.images.proof
    has_labels = proof.labels is not None
    names = evaluator.dense.task.metrics(has_labels=has_labels, num_outputs=evaluator.profile.num_classes)
    baseline = BaselineOutputs(outputs["original"], proof.labels, names)
    image = evaluator.dense.arranged(proof, 0, 1)[0]
    shown = image.expand(settings.batch, *image.shape[1:])
    others = (
        () if settings.kind == "float" else (RuntimeModel(_half_zero(files["original"]), threads=settings.threads),)
    )
    spent = times([*opened.values(), *others], shown, turns=TURNS)
    seconds = dict(zip(opened, spent, strict=False))
    figures = {
        name: RuntimeFigures(
            changes=tuple(
                change_of(metric, sums) for metric, sums in baseline.moments(outputs[name], 0, len(proof)).items()
            ),
            seconds=Median.of(seconds[name]),
            time_ratio=ratio(seconds[name], seconds["original"]),
            file_bytes=len(files[name]),
        )
        for name in files
    }
    return figures, ratio(spent[-1], seconds["original"]) if others else None


def _half_zero(network: bytes) -> bytes:
    """Return a float network without the smaller half of each weight, which sparsity leaves as zeros."""
    model = onnx.load_from_string(network)
    for constant in model.graph.initializer:
        if len(constant.dims) > 1 and constant.data_type == onnx.TensorProto.FLOAT:
            values = np.array(numpy_helper.to_array(constant))
            values[np.abs(values) <= np.median(np.abs(values))] = 0
            constant.CopyFrom(numpy_helper.from_array(values, constant.name))
    return bytes(model.SerializeToString())


def _preparation(evaluator: ScheduleEvaluator) -> str:
    shape = f"images, float32, is (N, {', '.join(map(str, evaluator.profile.input_shape))})"
    if not isinstance(evaluator.images.proof, PreparedImages):
        return f"{shape}."
    how = evaluator.images.proof.preprocessing
    return (
        f"{shape}: the middle {100 * how.crop_pct:g} % of the picture, resized ({how.interpolation}), channels in the "
        f"order {how.channel_order}, from 0 to 1, less {list(how.mean)}, divided by {list(how.std)}."
    )
