"""Open an ONNX file as a network that can be measured."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from senseapp.core.errors import (
    InvalidCheckpoint,
    InvalidInput,
    OutOfMemory,
    SenseError,
    UnsupportedModel,
    first_line_of,
    is_about_memory,
)
from senseapp.core.texts import plural, printable_text
from senseapp.networks.onnx.build import BuiltNetwork, ReadAt, StoredAs, build_network
from senseapp.networks.onnx.check import Differs, check, sample_inputs, tolerance_of
from senseapp.networks.onnx.cut import CONTROL_FLOW, GraphCut, cut, usual_choice, with_shapes
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.networks.onnx.infer import Facts, Values, batch_of, infer, input_shapes, main_input, working_size
from senseapp.networks.onnx.modules import OnnxNetwork
from senseapp.networks.onnx.names import tells_of_folding
from senseapp.networks.onnx.normalise import normalise
from senseapp.networks.onnx.operators import operation_of
from senseapp.networks.onnx.operators.elementwise import dtype_of
from senseapp.networks.onnx.rewrite import free_batch
from senseapp.networks.onnx.torch_graph import TorchGraph
from senseapp.records.inputs import OutputFacts

_FOLDED_INTO = frozenset({"Conv", "ConvTranspose", "Gemm"})
_LARGEST_INPUT = 1 << 27  # elements; three batches of them are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedOnnx:
    """A network from an ONNX file with its inputs, outputs and metadata.

    Attributes:
        network: in ``eval()`` mode, float32, on the CPU.
        input_name, input_shape: of the images, as the file has them, batch included.
        size: height and width that the network takes where the file leaves them free.
        input_dtype: of the images, half precision as float32.
        free_axes: axes of the input whose length the file leaves free. Only the batch stays free in the network.
        other_inputs: names of what the network takes besides images.
        batch: images that the network takes at once; None where it takes any number.
        outputs, candidates: names of the network's outputs, in their order, and values that could be outputs instead.
        tensors: which tensor of the file each parameter holds.
        readers: which nodes of the file read each parameter of a layer.
        difference: from onnxruntime, relative to the largest number of an output.
        barrier: the node that the network ends before although onnxruntime could compute it; empty without one.
        in_runtime: whether the file was read so that onnxruntime computes what the operator table lacks.
        metadata, notes: texts that the file holds about itself, and sentences on how it was read.
    """

    content: bytes = field(repr=False)
    network: OnnxNetwork
    input_name: str
    input_shape: tuple[int, ...]
    size: tuple[int, int]
    input_dtype: torch.dtype
    free_axes: tuple[int, ...]
    other_inputs: tuple[str, ...]
    batch: int | None
    outputs: tuple[str, ...]
    candidates: tuple[OutputFacts, ...]
    tensors: Mapping[str, StoredAs]
    readers: Mapping[str, Sequence[ReadAt]]
    difference: float
    barrier: str
    in_runtime: bool
    metadata: Mapping[str, str]
    notes: tuple[str, ...]


def open_onnx(
    content: bytes,
    *,
    outputs: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    usual_side: int | None = None,
    in_runtime: bool = False,
) -> OpenedOnnx:
    """Return the network in the bytes of an ONNX file, after comparing it with onnxruntime.

    Args:
        content: of one file; weights in other files are refused.
        outputs: names of values to return; those of :func:`~senseapp.networks.onnx.cut.usual_choice` if None.
        size: height and width where the file leaves them free; a usual one that fits if None.
        usual_side: height and width to try before other usual ones.
        in_runtime: whether onnxruntime computes nodes that the operator table lacks; they have no gradients.

    Raises:
        InvalidCheckpoint: not an ONNX model, or one that cannot be trusted or run.
        UnsupportedModel: the message names the node that is not supported, or that computes other numbers.
        OutOfMemory: the network or onnxruntime needs more memory than there is.
    """
    with _plain_refusals():
        graph, file = normalise(content, in_runtime=in_runtime)
        parts = cut(graph)
        graph = graph.needed_for(dict.fromkeys(each.name for each in parts.candidates))
        for node in graph.nodes:
            operation_of(node)  # refuses by name before anything is computed
        size = size or working_size(graph, usual_side)
        _refuse_training(graph)
        own_batch = batch_of(graph) or 1
        shapes = input_shapes(graph, own_batch, size)
        _check_inputs(shapes)
        reference = infer(graph, shapes)
        candidates = with_shapes(parts.candidates, reference)
        chosen = tuple(outputs) if outputs is not None else usual_choice(candidates, own_batch)
        _check_choice(chosen, candidates)
        notes = (*graph.notes, *_notes(graph, parts, candidates, chosen))
        graph = graph.needed_for(chosen)
        building = _Building(graph=graph, file=file, size=size, batch=own_batch, reference=reference)
        built, difference, fixed = building.network()
        main, barrier, batch = main_input(graph), parts.barrier, own_batch if fixed else None
        built.network.in_runtime = tuple(node.title for node in graph.nodes if node.source)
        digest = hashlib.sha256(content)  # of all that decides the numbers of the network
        digest.update(repr((built.network.output_names, shapes[main.name], batch)).encode())
        built.network.origin = digest.hexdigest()
        return OpenedOnnx(
            content=content,
            network=built.network,
            input_name=main.name,
            input_shape=shapes[main.name],
            size=size,
            input_dtype=dtype_of(main.element_type),
            free_axes=tuple(axis for axis, length in enumerate(main.shape) if length is None),
            other_inputs=tuple(each.name for each in graph.inputs if each is not main),
            batch=batch,
            outputs=built.network.output_names,
            candidates=candidates,
            tensors=built.tensors,
            readers=built.readers,
            difference=difference,
            barrier=barrier.title if barrier is not None and barrier.op in CONTROL_FLOW else "",
            in_runtime=in_runtime,
            metadata={entry.key: entry.value for entry in file.model.metadata_props},
            notes=(*notes, fixed) if fixed else notes,
        )


@contextmanager
def _plain_refusals() -> Iterator[None]:
    """Let errors be of few kinds and one line each, whatever a file does."""
    try:
        yield
    except SenseError as error:
        said = printable_text(str(error))  # names and other text of the file may hold line breaks
        if said == str(error):
            raise
        raise type(error)(said) from error
    except Exception as error:  # a malformed graph fails in any step, in errors of any library
        if is_about_memory(error):
            raise OutOfMemory("The file's network needs more memory than there is.") from error
        raise UnsupportedModel(f"The file's graph cannot be read as a network: {first_line_of(error)}.") from error


def _refuse_training(graph: TorchGraph) -> None:
    """Raise UnsupportedModel where a norm takes its statistics from several images, so that each changes the others."""
    for node in graph.nodes:
        is_trained = node.op == "BatchNormalization" and node.attributes.get("training_mode")
        if is_trained and node.inputs[1] in graph.constants and batch_of(graph) != 1:
            raise UnsupportedModel(
                f"Node {node.title} is in training mode: it normalises by all images of a batch. "
                "Export the network in evaluation mode, after model.eval()."
            )


def _check_inputs(shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if math.prod(shape) > _LARGEST_INPUT:
            lengths = " × ".join(map(str, shape[:8]))
            raise InvalidCheckpoint(
                f"The input “{name}” takes {lengths} numbers at once, more than fit in memory beside their network. "
                "Export it for fewer or smaller images."
            )


def _check_choice(chosen: Sequence[str], candidates: Sequence[OutputFacts]) -> None:
    if not chosen:
        raise UnsupportedModel("No output of the file depends on the images in numbers that can be measured.")
    unknown = [name for name in chosen if name not in {each.name for each in candidates}]
    if unknown:
        names = ", ".join(f"“{each.name}”" for each in candidates[:20])
        raise InvalidInput(f"“{unknown[0]}” cannot be an output of the file's network. Choose from {names}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Building:
    """Builds the network of ``graph``, whose values at the batch of the export are ``reference``."""

    graph: TorchGraph
    file: OnnxGraph
    size: tuple[int, int]
    batch: int
    reference: Values

    def network(self) -> tuple[BuiltNetwork, float, str]:
        """Return a network, its difference from onnxruntime, and why it takes one number of images; empty for any."""
        try:
            return (*self._for_any_batch(), "")
        except (UnsupportedModel, InvalidCheckpoint) as error:
            number = "one image" if self.batch == 1 else f"{self.batch} images"
            # That the freed graph differs from the file is about the rewriting, not about the file.
            reason = "rewriting it changed its numbers" if isinstance(error, Differs) else first_line_of(error)
            note = f"The file is fixed to {number} at a time, and runs so: {reason}."
            return (*self._built(self.graph, [(self.batch, self.reference)]), note)

    def _for_any_batch(self) -> tuple[BuiltNetwork, float]:
        ranged = next((node for node in self.graph.nodes if "DynamicQuantize" in node.op), None)
        if ranged is not None:
            raise UnsupportedModel(f"node {ranged.title} rounds within the range of all images of a pass")
        few, more = 2 * self.batch, 3 * self.batch
        if self.batch > 1 or batch_of(self.graph) is None:
            try:
                return self._built(self.graph, [(each, infer(self.graph, self._shapes(each))) for each in (few, more)])
            except (UnsupportedModel, InvalidCheckpoint):
                if self.batch > 1:
                    raise
        # It was exported for one image, though it may declare any number.
        graph, values = free_batch(self.graph, self.reference, self._shapes(few))
        return self._built(graph, [(few, values), (more, infer(graph, self._shapes(more)))])

    def _built(self, graph: TorchGraph, facts: Facts) -> tuple[BuiltNetwork, float]:
        built = build_network(graph, facts)
        inputs = sample_inputs(self.graph, facts[0][0], self.size)
        return built, check(built.network, self.file, inputs, batch=self.batch, tolerance=tolerance_of(self.graph))

    def _shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        return input_shapes(self.graph, batch, self.size)


def _notes(
    graph: TorchGraph, parts: GraphCut, candidates: Sequence[OutputFacts], chosen: Sequence[str]
) -> Iterator[str]:
    if parts.lost and parts.barrier is not None:
        names = ", ".join(f"“{name}”" for name in parts.lost[:5])
        yield "The last part of the file cannot be measured: the network ends before it."
        yield f"Outputs {names} lie behind node {parts.barrier.title}, which has no gradient."
    for each in candidates:
        if each.kind == "logits" and each.name in chosen:
            yield f"“{each.of}” is a {each.operator}; the network returns “{each.name}”, the numbers before it."
    layers = [node.inputs for node in graph.nodes if node.op in _FOLDED_INTO and len(node.inputs) > 2]
    folded = sum(tells_of_folding(weight, bias) for _, weight, bias in layers)
    if folded:
        yield (
            f"The program that wrote the file merged further steps into the weights of {plural(folded, 'layer')}. "
            "Zeros and removed channels go by the size of weights, so what they lose differs from before."
        )
        yield "Merged were batch norms; torch.onnx.export(…, dynamo=True, optimize=False) keeps them."
