"""A network's files in int8, in any runtime: ranges and the parts left in float are chosen by measured damage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.steps import OptionalSteps, StepTitle
from senseapp.descriptions import DENSE_BITS
from senseapp.metrics import METRICS
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.mixed_precision import MixedPrecision, QuantizedFiles, search_mixed_precision
from senseapp.prove.search_images import SearchImages
from senseapp.records.deployment import INT8_BITS, DeploySettings
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.quantizers import DefaultInt8, Fitting

_SECONDS = 240.0  # of all that is fitted and tried, and again of the choice of parts in float
_PARTS = 8  # of the images that judge: whether a gain is one on all of them
_NOT_QUICKER = "No file with int8 that is quicker than float changes as few answers: this one is all in float."
_REASONS = 3  # sentences beside a file
_ALL_INT8 = "All of it is in int8."
_STORED_IN_8 = f"Weights of fewer than {INT8_BITS} bits are stored in {INT8_BITS}."
_WEIGHTS_ONLY = "Weights are stored in 8 bits, and all of it is computed in float."
_HELD_OUT = 8  # images that files are tested on, beside which calibration images are checked


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFile:
    """A file with its nodes in float.

    Attributes:
        name: which it is among the files of one search: ``file`` for the one that was asked for, ``all`` for all of it
            in int8, ``weights`` for one that is computed in float with weights in 8 bits.
        in_float: its nodes in float.
        notes: sentences on how it was made.
        computes_in_float: whether no node computes in int8.
    """

    name: str
    content: bytes
    in_float: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    computes_in_float: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Files:
    """Files of one search.

    Attributes:
        made: to choose from, the one that was asked for first.
        compared: files beside these: ``int8``, all of it, and ``default``, of the runtime's own quantizer if any.
        own_setting: of that quantizer; empty where there is none.
    """

    made: tuple[MadeFile, ...]
    compared: Mapping[str, bytes]
    own_setting: str = ""


def int8_files(
    evaluator: ScheduleEvaluator,
    runtime: Runtime,
    content: bytes,
    layers: Mapping[str, str],
    settings: DeploySettings,
    steps: OptionalSteps,
    *,
    bits: Mapping[str, float] | None = None,
    integers: Mapping[str, IntegerWeight] | None = None,
    others: bool = True,
) -> Int8Files:
    """Return a network's files in int8.

    Ranges, weights and biases are fitted; where int8 is quicker at all, the runtime's own quantizer is tried and the
    nodes in float are searched for; then the file that does less harm is taken, if it keeps to its limits. Where it
    must be quicker than float and change few answers and does not, it is the float file.

    Args:
        evaluator: of the run, whose curves' images fit and judge.
        runtime: that files are for.
        content: the network as a float file.
        layers: those of its nodes.
        settings: which file is wanted.
        steps: are told, and take the errors of what is optional.
        bits: by layer, of each weight on a grid; empty for weights that may be changed.
        integers: by layer, those of such weights.
        others: whether further files to choose from are made.
    """
    steps.start(_SECONDS)
    images, proof = SearchImages(evaluator, runtime.open(content)), evaluator.images.proof
    fitting = Fitting(
        batches=images.fitted,
        damage_of=lambda candidate: images.judge.judged(candidate).damage,
        damages_of=lambda candidate: images.judge.judged(candidate).damages(_PARTS),
        reduce_range=settings.reduce_range,
        held_out=images.in_calls(proof.subset(range(min(_HELD_OUT, len(proof))))),
        integers={node: integers[layer] for node, layer in layers.items() if integers and layer in integers},
        steps=steps,
    )
    steps.progress.begin(StepTitle.INT8)
    kept = [node for node, layer in layers.items() if bits and bits.get(layer, DENSE_BITS) > INT8_BITS]
    quantizer = runtime.fitted_quantizer(content, fitting)
    files = QuantizedFiles(quantizer, kept, network=content, runtime=runtime, images=images, settings=settings)
    own: DefaultInt8 | None = None
    file: MadeFile | None = None
    if settings.kind != "quickest" or _may_be_quicker(files, steps):
        steps.progress.begin(StepTitle.OWN)
        with steps.trying(runtime.description.own_quantizer):
            own = runtime.default_int8(content, fitting)
        steps.progress.begin(StepTitle.PARTS)
        file = _chosen(files, own, kept, steps)
    if file is None:
        file = MadeFile(name="file", content=content, notes=(_NOT_QUICKER, *images.notes), computes_in_float=True)
    rounded = (_STORED_IN_8,) if bits and min(bits.values()) < INT8_BITS and not file.computes_in_float else ()
    made = [replace(file, notes=(*file.notes, *rounded))]
    if others and settings.kind != "int8":
        with steps.trying("further files to choose from"):
            known = {content, file.content}
            made += [each for each in _further(files) if each.content not in known]
    compared = {"int8": files.all_int8} | ({"default": own.content} if own is not None else {})
    return Int8Files(
        made=tuple(replace(each, content=files.placed(each.content)) for each in made),
        compared={name: files.placed(each) for name, each in compared.items()},
        own_setting=own.setting if own is not None else "",
    )


def _may_be_quicker(files: QuantizedFiles, steps: OptionalSteps) -> bool:
    """Return False where all of a network in int8 is clearly not quicker than in float."""
    steps.progress("Timing the network in float and in int8")
    return files.beside_float.measure_precise(files.placed(files.all_int8)).low < 1


def _chosen(
    files: QuantizedFiles, own: DefaultInt8 | None, kept: Sequence[str], steps: OptionalSteps
) -> MadeFile | None:
    """Return the file that was asked for: of the search, or of the runtime's own quantizer if that does less harm.

    None where it must be quicker than float and change few answers and does not: the search accepts all of it in int8
    where that changes few enough, and the runtime's own file by its damage, neither of them timed against float.
    """
    found, settings, runtime = MixedPrecision(), files.settings, files.runtime
    if settings.kind != "int8":
        with steps.trying("the search for parts that int8 harms"):
            steps.start(_SECONDS)
            found = search_mixed_precision(files, steps)
    content, notes = files.content(found.in_float), (*found.notes, *files.images.notes)
    if own and not kept and files.judged(own.content).damage < files.judged(content).damage:
        title = runtime.description.own_quantizer
        notes = (*notes, f"This file is that of {title}, which did less harm on the images that choose.")
        file = MadeFile(name="file", content=own.content, notes=notes)
    else:
        reasons = tuple[str, ...]()
        with steps.trying("the causes of what int8 harms"):
            reasons = _reasons(files, found)
        notes = (*notes, *files.quantizer.notes, *reasons, *filter(None, [runtime.int8_note]))
        file = MadeFile(name="file", content=content, in_float=found.in_float, notes=notes)
    if settings.kind != "quickest":
        return file
    changes_few = files.judged(file.content).share_changed <= settings.most_changed
    return file if changes_few and files.beside_float.is_within(files.placed(file.content), 1.0) else None


def _further(files: QuantizedFiles) -> tuple[MadeFile, MadeFile]:
    """Return files beside the one that was asked for: all of it in int8, and weights alone in 8 bits."""
    notes, every = files.quantizer.notes, files.nodes
    computed = filter(None, [files.runtime.int8_note])
    return (
        MadeFile(name="all", content=files.content(), notes=(_ALL_INT8, *notes, *computed)),
        MadeFile(
            name="weights",
            content=files.written(every),
            in_float=every,
            notes=(_WEIGHTS_ONLY, *notes),
            computes_in_float=True,
        ),
    )


def _reasons(files: QuantizedFiles, found: MixedPrecision) -> tuple[str, ...]:
    """Return why int8 harms the parts in float, with what that gains alone; else the worst of all parts."""
    if not found.in_float:
        worst = files.quantizer.causes()[:_REASONS]
        return tuple(f"All in int8: {cause.sentence}" for cause in worst if cause.lost > 0.5)
    metric = METRICS[files.images.judge.divergence]
    return tuple(
        f"{cause.sentence} Alone in int8, it does {metric.change_text(found.damages[cause.node])} of damage."
        for cause in files.quantizer.causes(found.in_float)[:_REASONS]
        if found.damages.get(cause.node, 0) > 0
    )
