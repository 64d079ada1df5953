"""Measured causes of a loss: outliers of a fragile layer with remedies, and the share of each node of an int8 file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from senseapp.compressions.base import find_weights
from senseapp.compressions.quantization.activations import observe_inputs
from senseapp.core.errors import InvalidSpec, MeasurementFailed
from senseapp.core.steps import OptionalSteps, ignore_progress
from senseapp.core.texts import listed, plural
from senseapp.data.images import draw
from senseapp.data.load import images_for
from senseapp.descriptions.runtimes import usual_runtime
from senseapp.measure.preparation_search import choose_preparation
from senseapp.networks.onnx.upload import read_file
from senseapp.networks.profile import CONVOLUTIONS, profile_model
from senseapp.networks.sources.load import load_model
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.findings import saturation
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.prove.repair_choice import crossed
from senseapp.reconstruct.repair import Repair
from senseapp.records.layer_findings import Diagnosis, Finding, NodeDamage, QuantizedNodesReport, Remedy
from senseapp.records.measurement import change_in
from senseapp.records.spec import RunSpec
from senseapp.runtimes.base import runtime_for
from senseapp.runtimes.qdq_nodes import QdqFile
from senseapp.solve.curve_set import damage_metric
from senseapp.solve.problem import manual_schedule
from senseapp.tasks import task_named

_FAR = 8.0  # times the median of the other channels: further than channels of trained networks usually lie apart
_USUAL_IMAGES = 64  # where the run sets none; each node costs a pass over them


def diagnose(evaluator: ScheduleEvaluator, layer: str, level: float) -> Diagnosis:
    """Look at ``layer``, and measure it alone at ``level`` as the run did and with each remedy.

    All are measured on the images that repairs are fitted to, with a fit that has not seen the image.

    Raises MeasurementFailed if it cannot be measured at that level.
    """
    evaluator.progress(f"Looking at {layer}")
    spec = evaluator.result.spec.sensitivity
    findings = findings_of(evaluator.dense.model, evaluator.calibration(), layer)
    metric, images = damage_metric(evaluator.result), evaluator.repair_images
    schedule = manual_schedule(evaluator.result, {layer: level})
    evaluator.progress("Measuring what would help")
    applied = evaluator.apply(schedule)
    change = change_in(evaluator.judged(applied, images).changes, metric)
    if change is None:
        raise MeasurementFailed(f"{layer} has no figure of {metric} at this level.")
    remedies = []
    for label, config in spec.compression.variants:
        other = replace(evaluator, configs={**evaluator.configs, config.kind: config}).apply(schedule)
        remedies.append(Remedy(label=label, change=evaluator.judged(other, images).change(metric)))
    repairs: dict[str, Repair] = {"Repair without training": evaluator.matching(applied)}
    if not spec.adapted and (adaptation := evaluator.adaptation(applied)) is not None:
        repairs["Adapted weights"] = adaptation
    for label, repair in repairs.items():
        found = crossed(evaluator, applied, repair, OptionalSteps(evaluator.progress))
        if found is not None and (mended := change_in(found, metric)) is not None:
            remedies.append(Remedy(label=label, change=mended))
    remedies.sort(key=lambda each: each.change.delta)
    return Diagnosis(layer=layer, level=level, findings=findings, change=change, remedies=tuple(remedies))


def findings_of(model: nn.Module, batches: Sequence[Tensor], layer: str) -> tuple[Finding, ...]:
    """Return outliers in the weights of ``layer`` and its inputs, the largest first."""
    profile = next(each for each in profile_model(model, batches[0]).layers if each.name == layer)
    weights, _ = find_weights(model, (profile,))
    if layer not in weights:
        return ()
    module = weights[layer].module
    weight = module.get_parameter(weights[layer].attribute).detach().float()
    axis = 1 if isinstance(module, CONVOLUTIONS) and module.transposed else 0
    channels = weight.abs().movedim(axis, 0).flatten(1)  # (O, n)
    found = [*_of_weight(channels), *_of_input(model, module, batches)]
    return tuple(sorted(found, key=lambda each: -each.times))


def _times(peaks: Tensor) -> tuple[int, float]:
    """Return the channel of the largest of ``peaks``, (C,), and how many times the median of all it is."""
    alive = peaks[peaks > 0]
    channel = int(peaks.argmax())
    return channel, float(peaks[channel] / alive.median()) if len(alive) > 1 else 1.0


def _of_weight(weight: Tensor) -> Iterator[Finding]:
    peaks = weight.amax(1)
    channel, times = _times(peaks)
    if times <= _FAR:
        return
    rest = weight[channel].sort(descending=True).values[1:]
    if len(rest) and float(rest[0]) > float(peaks[channel]) / times * _FAR / 2:
        sentence = f"Output channel {channel} has weights {times:.0f} times as large as the median channel's."
        yield Finding(kind="scaled channel", sentence=sentence, times=times)
    else:
        many = f"{times:.0f} times as large as the median channel's largest"
        yield Finding(kind="outlier weight", sentence=f"One weight of output channel {channel} is {many}.", times=times)


def _of_input(model: nn.Module, module: nn.Module, batches: Sequence[Tensor]) -> Iterator[Finding]:
    axis = 1 if isinstance(module, CONVOLUTIONS) else -1
    peaks: list[Tensor] = []

    def watch(inputs: tuple[Tensor, ...]) -> None:
        peaks.append(inputs[0].float().abs().movedim(axis, 0).flatten(1).amax(1))  # (C,)

    observe_inputs(model, [(module, watch)], batches)
    if not peaks:
        return
    channel, times = _times(torch.stack(peaks).amax(0))
    if times > _FAR:
        yield Finding(
            kind="outlier input",
            sentence=f"Channel {channel} of its input is {times:.0f} times as large as the median channel, so that one "
            "range for all leaves few steps for the others.",
            times=times,
        )


def blame_nodes(
    spec: RunSpec, candidate: Path, *, progress: Callable[[str], None] = ignore_progress
) -> QuantizedNodesReport:
    """Measure the nodes of the quantized file ``candidate`` on the images of ``spec``, whose model is its float file.

    Raises InvalidSpec if that model is no ONNX file or no node can be put back in float, InvalidInput if a file or the
    images cannot be read.
    """
    if spec.data.preparation == "auto":
        spec = choose_preparation(spec, progress=progress).settled
    loaded = load_model(spec.model, progress=progress)
    if loaded.onnx is None:
        raise InvalidSpec(f"{spec.model.title} is no ONNX file. Give the float file that the other was made of.")
    progress("Loading the images")
    task, wanted, seed = task_named(spec.model.task), spec.sensitivity.num_samples, spec.sensitivity.seed
    images = images_for(
        loaded, spec.data, task=task, num_samples=wanted, seed=seed, with_labels=False, progress=progress
    )
    if wanted is None:
        images = draw(images, _USUAL_IMAGES, seed)
    runtime, content = runtime_for(usual_runtime(), loaded.onnx), read_file(candidate)
    judge = Judge(
        task,
        # of a pass, whose tensors at all nodes are held twice
        JudgingImages.of_images(images, 16),
        runtime.open(loaded.onnx.content),
        num_outputs=loaded.num_classes,
    )
    file = QdqFile(content, loaded.onnx.content)

    def damage_without(names: Sequence[str]) -> float:
        """Return the damage of the file with these nodes in float."""
        return judge.judged(runtime.open(file.restored(names))).damage

    progress("Running the quantized file")
    whole = judge.judged(runtime.open(content))
    rest, nodes = damage_without([node.name for node in file.nodes]), list[NodeDamage]()
    for number, node in enumerate(file.nodes, 1):
        progress(f"Putting node {number} of {len(file.nodes)} back in float")
        damage, known = damage_without((node.name,)), node.weights_known
        nodes.append(NodeDamage(name=node.name, op=node.op, without=damage, weights_known=known))
    notes = [*spec.data.chosen_by, *images.notes]
    notes += saturation(candidate.name, whole, lambda: runtime.on_other_processors(content))
    if unknown := [node.name for node in nodes if not node.weights_known]:
        which = f"{plural(len(unknown), 'node')} ({listed(unknown)})"
        notes.append(
            f"The weights of {which} are not those of the float file, rounded: only their inputs were put back."
        )
    return QuantizedNodesReport(
        reference=Path(spec.model.checkpoint).name,
        candidate=candidate.name,
        metric=judge.divergence,
        images=len(images),
        whole=whole.damage,
        rest=rest,
        nodes=tuple(nodes),
        notes=tuple(dict.fromkeys(notes)),
    )
