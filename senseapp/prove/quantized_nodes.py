"""Loss of a quantized file, and the share of each node, measured by putting it alone back in float."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from senseapp.core.errors import InvalidSpec
from senseapp.core.steps import ignore_progress
from senseapp.core.texts import listed, plural
from senseapp.data.images import ImageSet, draw
from senseapp.data.load import images_for
from senseapp.descriptions.runtimes import usual_runtime
from senseapp.measure.preparation_search import choose_preparation
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.network import Network
from senseapp.networks.onnx.upload import read_file
from senseapp.networks.sources.load import load_model
from senseapp.prove.findings import saturation
from senseapp.prove.judge import Judge, JudgingImages
from senseapp.records.layer_findings import NodeDamage, QuantizedNodesReport
from senseapp.records.spec import RunSpec
from senseapp.runtimes.base import runtime_for
from senseapp.runtimes.qdq_nodes import QdqFile
from senseapp.tasks import task_named

_USUAL_IMAGES = 64  # where the run sets none; each node costs a pass over them


def blame_nodes(
    spec: RunSpec, candidate: Path, *, progress: Callable[[str], None] = ignore_progress
) -> QuantizedNodesReport:
    """Measure the nodes of the quantized file ``candidate`` on the images of ``spec``, whose model is its float file.

    Raises:
        InvalidSpec: the model of ``spec`` is no ONNX file, or no node of ``candidate`` can be put back in float.
        InvalidInput: a file or the images cannot be read.
    """
    if spec.data.preparation == "auto":
        spec = choose_preparation(spec, progress=progress).settled
    loaded = load_model(spec.model, progress=progress)
    if loaded.onnx is None:
        raise InvalidSpec(f"{spec.model.title} is no ONNX file. Give the float file that the other was made of.")
    images = _images(spec, loaded, progress)
    runtime = runtime_for(usual_runtime(), loaded.onnx)
    content = read_file(candidate)
    judge = Judge(
        task_named(spec.model.task),
        # of a pass, whose tensors at all nodes are held twice
        JudgingImages.of_images(images, 16),
        runtime.open(loaded.onnx.content),
        num_outputs=loaded.num_classes,
    )
    found = node_damages(
        QdqFile(content, loaded.onnx.content),
        open_file=runtime.open,
        damage_of=lambda network: judge.judged(network).damage,
        progress=progress,
    )
    whole, rest, *nodes = found
    saturates = saturation(candidate.name, judge.judged(runtime.open(content)), lambda: runtime.unsaturated(content))
    return QuantizedNodesReport(
        reference=Path(spec.model.checkpoint).name,
        candidate=candidate.name,
        metric=judge.divergence,
        images=len(images),
        whole=whole.without,
        rest=rest.without,
        nodes=tuple(nodes),
        notes=tuple(dict.fromkeys((*spec.data.chosen_by, *images.notes, *saturates, *_notes(nodes)))),
    )


def node_damages(
    file: QdqFile,
    *,
    open_file: Callable[[bytes], Network],
    damage_of: Callable[[Network], float],
    progress: Callable[[str], None] = ignore_progress,
) -> Iterator[NodeDamage]:
    """Yield the damage of the file as it is, with every node in float, and with each node in float alone.

    The first two have no name. ``damage_of`` compares an open file with the float one.
    """

    def measured(names: Sequence[str]) -> float:
        return damage_of(open_file(file.restored(names)))

    progress("Running the quantized file")
    yield NodeDamage(name="", op="", without=measured(()))
    yield NodeDamage(name="", op="", without=measured([node.name for node in file.nodes]))
    for number, node in enumerate(file.nodes, 1):
        progress(f"Putting node {number} of {len(file.nodes)} back in float")
        yield NodeDamage(name=node.name, op=node.op, without=measured((node.name,)), weights_known=node.weights_known)


def _images(spec: RunSpec, loaded: LoadedModel, progress: Callable[[str], None]) -> ImageSet:
    progress("Loading the images")
    found = images_for(
        loaded,
        spec.data,
        task=task_named(spec.model.task),
        num_samples=spec.sensitivity.num_samples,
        seed=spec.sensitivity.seed,
        with_labels=False,
        progress=progress,
    )
    if spec.sensitivity.num_samples is not None or len(found) <= _USUAL_IMAGES:
        return found
    return draw(found, _USUAL_IMAGES, spec.sensitivity.seed)


def _notes(nodes: Sequence[NodeDamage]) -> Iterator[str]:
    unknown = [node.name for node in nodes if not node.weights_known]
    if unknown:
        nodes_text = f"{plural(len(unknown), 'node')} ({listed(unknown)})"
        yield f"The weights of {nodes_text} are not those of the float file, rounded: only their inputs were put back."
