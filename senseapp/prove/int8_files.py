"""A network's files in int8, in any runtime: ranges and the parts left in float are chosen by measured damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from senseapp.core.steps import OptionalSteps, StepTitle
from senseapp.descriptions import DENSE_BITS
from senseapp.metrics import METRICS
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.mixed_precision import MixedPrecision, QuantizedFiles, search_mixed_precision
from senseapp.prove.search_images import SearchImages, calls_of
from senseapp.records.deployment import INT8_BITS, DeploySettings
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.quantizers import DefaultInt8, Fitting

if TYPE_CHECKING:
    from senseapp.prove.deploy import Source

_SECONDS = 240.0  # of all that is fitted and tried, and again of the choice of parts in float
_NOT_QUICKER = "No file with int8 that is quicker than float changes as few answers: this one is all in float."
_REASONS = 3  # sentences beside a file
_ALL_INT8 = "All of it is in int8."
_STORED_IN_8 = f"Weights of fewer than {INT8_BITS} bits are stored in {INT8_BITS}."
_WEIGHTS_ONLY = "Weights are stored in 8 bits, and all of it is computed in float."
_HELD_OUT = 8  # images that files are tested on, beside which calibration images are checked


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFile:
    """A file with its nodes in float.

    ``name`` is ``file`` for the one that was asked for, ``all`` for all of it in int8, ``weights`` for one that is
    computed in float with weights in 8 bits.
    """

    name: str
    content: bytes
    in_float: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    computes_in_float: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Files:
    """Files of one search, ``made`` to choose from, the one that was asked for first.

    ``compared`` are ``int8``, all of it, and, if any, ``default``, of the runtime's own quantizer at ``own_setting``.
    """

    made: tuple[MadeFile, ...]
    compared: Mapping[str, bytes]
    own_setting: str = ""


def int8_files(
    evaluator: ScheduleEvaluator,
    runtime: Runtime,
    source: Source,
    layers: Mapping[str, str],
    settings: DeploySettings,
    steps: OptionalSteps,
    *,
    others: bool = True,
) -> Int8Files:
    """Return a network's files in int8.

    Ranges, weights and biases are fitted; where int8 is quicker at all, the runtime's own quantizer is tried and the
    nodes in float are searched for; then the file that does less harm is taken, if it keeps to its limits. Where it
    must be quicker than float and change few answers and does not, it is the float file.

    The curves' images of ``evaluator`` fit and judge; ``layers`` are those of the nodes of ``source``. ``steps`` take
    the errors of what is optional, such as the ``others``, further files to choose from.
    """
    steps.start(_SECONDS)
    content, bits, proof = source.network, source.bits, evaluator.images.proof
    network = runtime.open(content)
    images = SearchImages(evaluator, network)
    fitting = Fitting(
        batches=images.fitted,
        reduce_range=settings.reduce_range,
        int8_ends=settings.int8_ends,
        activation_bits=settings.activation_bits,
        held_out=calls_of(evaluator, network, proof.subset(range(min(_HELD_OUT, len(proof))))),
        integers={node: source.integers[layer] for node, layer in layers.items() if layer in source.integers},
        steps=steps,
    )
    steps.progress.begin(StepTitle.INT8)
    kept = [node for node, layer in layers.items() if bits and bits.get(layer, DENSE_BITS) > INT8_BITS]
    quantizer = runtime.fitted_quantizer(content, fitting)
    files = QuantizedFiles(quantizer, kept, network=content, runtime=runtime, images=images, settings=settings)
    own: DefaultInt8 | None = None
    file = MadeFile(name="file", content=content, notes=(_NOT_QUICKER, *images.notes), computes_in_float=True)
    may_be_quicker, must_be_quicker = True, settings.kind == "quickest"
    if must_be_quicker:
        steps.progress("Timing the original and the 8-bit network")
        may_be_quicker = files.beside_float.measure_precise(files.placed(files.all_int8)).low < 1
    if may_be_quicker:
        steps.progress.begin(StepTitle.OWN)
        with steps.trying(runtime.description.own_quantizer):
            own = runtime.default_int8(content, fitting)
        steps.progress.begin(StepTitle.PARTS)
        found = _found(files, None if kept else own, steps)
        if not must_be_quicker or (
            files.changes_few(found.content) and files.beside_float.is_within(files.placed(found.content), 1.0)
        ):
            file = found
    if bits and min(bits.values()) < INT8_BITS and not file.computes_in_float:
        file = replace(file, notes=(*file.notes, _STORED_IN_8))
    made = [file]
    if others and settings.kind != "int8":
        with steps.trying("further files to choose from"):
            made += [each for each in _further(files) if each.content not in (content, file.content)]
    compared = {"int8": files.all_int8} | ({"default": own.content} if own is not None else {})
    return Int8Files(
        made=tuple(replace(each, content=files.placed(each.content)) for each in made),
        compared={name: files.placed(each) for name, each in compared.items()},
        own_setting=own.setting if own is not None else "",
    )


def _found(files: QuantizedFiles, own: DefaultInt8 | None, steps: OptionalSteps) -> MadeFile:
    """Return the file of the search for nodes in float, or of the runtime's own quantizer if that does less harm."""
    found = MixedPrecision()
    if files.settings.kind != "int8":
        with steps.trying("the search for parts that int8 harms"):
            steps.start(_SECONDS)
            found = search_mixed_precision(files, steps)
    content, notes = files.content(found.in_float), (*found.notes, *files.images.notes)
    if own and files.judged(own.content).damage < files.judged(content).damage:
        title = files.runtime.description.own_quantizer
        said = f"This file is that of {title}, which did less harm on the images that choose."
        return MadeFile(name="file", content=own.content, notes=(*notes, *own.notes, said))
    reasons = tuple[str, ...]()
    with steps.trying("the causes of what int8 harms"):
        reasons = _reasons(files, found)
    notes = (*notes, *files.quantizer.notes, *reasons, *filter(None, [files.runtime.int8_note]))
    return MadeFile(name="file", content=content, in_float=found.in_float, notes=notes)


def _further(files: QuantizedFiles) -> tuple[MadeFile, MadeFile]:
    """Return files beside the one that was asked for: all of it in int8, and weights alone in 8 bits."""
    notes, every, computed = files.quantizer.notes, files.nodes, filter(None, [files.runtime.int8_note])
    in_int8 = MadeFile(name="all", content=files.content(), notes=(_ALL_INT8, *notes, *computed))
    content, words = files.content(every), (_WEIGHTS_ONLY, *notes)
    return in_int8, MadeFile(name="weights", content=content, in_float=every, notes=words, computes_in_float=True)


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
