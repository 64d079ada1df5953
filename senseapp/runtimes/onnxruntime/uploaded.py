"""The runtime for a network that came from an ONNX file: its files are that file, edited."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial

import onnx
from torch import Tensor, nn

from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.networks.network import in_calls
from senseapp.networks.onnx.difference import difference
from senseapp.networks.onnx.graph import OnnxGraph, opset_of
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.onnx.write import with_weights
from senseapp.records.deployment import OperatorTime
from senseapp.records.executed import ExecutedNode
from senseapp.runtimes.base import Exporter
from senseapp.runtimes.onnxruntime.float_graph import FOLDED_WEIGHT, FloatGraph, check_quantizable
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OnnxRuntime
from senseapp.runtimes.onnxruntime.rounding.qdq import ROUNDING, UNPACKED
from senseapp.runtimes.open_file import OpenFile

_FOLDED = (
    "Among the nodes left out are norms and constants behind convolutions: they are folded into the weights before "
    "them, and the network does the same but for rounding."
)


class UploadedRuntime(OnnxRuntime):
    """onnxruntime, or the runtime that a subclass names beside this class, on edited copies of one uploaded file.

    Files in int8 are made and compared as copies of the part that is measured, its :class:`.FloatGraph`;
    :meth:`in_place` puts one into the file.
    """

    def __init__(self, opened: OpenedOnnx) -> None:
        self._opened = opened
        self._graph_of = lru_cache(maxsize=2)(
            lambda content: FloatGraph.of(content, opened.outputs, opened.input_shape)
        )

    # ---- files and networks

    def exporter(self, model: nn.Module, example: Tensor) -> Exporter:
        """Return what writes weights of ``model`` and compressed copies of it into the uploaded file."""
        return partial(with_weights, self._opened)

    def open(self, content: bytes, *, threads: int | None = None) -> OpenFile:
        """Open an edited file; where only outputs count, it computes those that are measured."""
        return self._read(super().open(content if threads is not None else self._shown(content), threads=threads))

    def on_other_processors(self, content: bytes) -> OpenFile | None:
        """Return a QDQ file with the outputs that are measured, as processors of the other kind compute it."""
        found = super().on_other_processors(self._shown(content))
        return None if found is None else self._read(found)

    def _read(self, file: OpenFile) -> OpenFile:
        """Let an open file return what the network that was read from the uploaded one does."""
        file.nesting, file.reader = None, self._opened.network.reader
        return file

    def _shown(self, content: bytes) -> bytes:
        """Return a file that computes the outputs that are measured, which may be any of its values."""
        graph = OnnxGraph(content)
        if graph.outputs == self._opened.outputs:
            return content
        graph.return_values(self._opened.outputs)
        return graph.content()

    def layers_of_nodes(self, content: bytes, layers: Collection[str]) -> dict[str, str]:
        """Return the layer that each node of a float file is, by its name in the copies."""
        layer_of = {
            place.output: name.rpartition(".")[0] for name, places in self._opened.readers.items() for place in places
        }
        graph = onnx.load_from_string(self._graph_of(content).part).graph
        owners = {node.name: layer_of[node.output[0]] for node in graph.node if node.output[0] in layer_of}
        return {node: layer for node, layer in owners.items() if layer in layers}

    # ---- what files hold

    def format_version(self, content: bytes) -> int:
        """Return the operator set of the file, which onnxruntime has opened: it need not pass ONNX's own checker."""
        return opset_of(onnx.load_from_string(content))

    def input_words(self, shape: Sequence[int]) -> str:
        """Return the type and shape that the file declares, for images of ``shape`` (C, H, W)."""
        channels, height, width = shape
        facts = self.opened(self._opened.content).facts
        own = (height, width, channels) if facts.channels_last else (channels, height, width)
        sizes = ", ".join(map(str, (facts.input_shape[0] or "N", *own)))
        return f"{facts.input_name}, {facts.input_type}, is ({sizes})"

    def changes(self, content: bytes) -> tuple[str, ...]:
        """Return in sentences what differs between the uploaded file and ``content``."""
        nodes = onnx.load_from_string(content).graph.node
        if not any(node.op_type in ROUNDING or node.name.endswith(UNPACKED) for node in nodes):
            return difference(self._opened.content, content).sentences
        graph = self._graph_of(self._opened.content)
        found = difference(graph.whole, content)
        folding = (_FOLDED,) if any(FOLDED_WEIGHT in name for name in found.added_tensors) else ()
        return (*graph.notes, *found.sentences[:-1], *folding, found.sentences[-1])

    def with_quantized_weights(self, content: bytes, integers: Mapping[str, IntegerWeight]) -> tuple[bytes, int]:
        """Return the file as it is: weights stay tensors of the type that they were uploaded in."""
        return content, 0

    # ---- int8 and times

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Int8Writer:
        """Return what writes a copy of the part that is measured; raises InvalidSpec where none can be made."""
        check_quantizable(content)
        return super().quantizer(content, calibration)

    def in_place(self, network: bytes, file: bytes) -> bytes:
        """Return ``network``, an edited file, with what an int8 ``file`` of its copy rounds."""
        return file if file == network else self._graph_of(network).put_back(file)

    def operators(self, content: bytes, *, threads: int = 1, batch: int = 1) -> tuple[OperatorTime, ...]:
        """Return where the time of a call on images of the size that is measured goes."""
        return super().operators(self._sized(content), threads=threads, batch=batch)

    def executed(self, content: bytes) -> tuple[ExecutedNode, ...]:
        """Return the nodes that the runtime executes in a call on an image of the size that is measured."""
        return super().executed(self._sized(content))

    def _sized(self, content: bytes) -> bytes:
        """Return a file that takes images of the size that is measured."""
        graph = OnnxGraph(content)
        graph.take_images(self._opened.input_name, self._opened.input_shape)
        return graph.content()

    def float_graph(self, content: bytes) -> bytes:
        """Return a copy of the part that is measured."""
        return self._graph_of(content).folded

    def inputs(self, batches: Sequence[Tensor]) -> list[Tensor]:
        """Return batches as calls of the file take them."""
        file = self.opened(self._opened.content)
        return [file.fed(part) for batch in batches for part in in_calls(file, batch)]
