"""LiteRT files: operators by name, texts that a file holds about itself, and layers of its operators."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from senseapp.core.errors import InvalidSpec
from senseapp.core.texts import printable
from senseapp.networks.onnx.names import modules_in

PRODUCTS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL"})
"""Kinds of operators that multiply by weights or by other tensors."""
MOVING = frozenset({"RESHAPE", "TRANSPOSE", "PAD", "PADV2", "RELU", "RELU6", "MAX_POOL_2D", "SLICE", "STRIDED_SLICE",
                     "SPLIT", "PACK", "UNPACK", "GATHER", "BROADCAST_TO", "SPACE_TO_DEPTH"})  # fmt: skip
"""Kinds that keep the values, or most of them: they compute as what they read."""
BORDERS = frozenset({"QUANTIZE", "DEQUANTIZE"})
_IDENTIFIER = b"TFL3"  # at byte 4 of each file
_MOST_PARTS = 20_000  # operators, tensors and others of a file
_NO_NUMBERS = (schema.TensorType.STRING, schema.TensorType.RESOURCE, schema.TensorType.VARIANT)
_KINDS = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
INTEGERS = (schema.TensorType.INT8, schema.TensorType.INT16, schema.TensorType.UINT8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of a file.

    Attributes:
        name: of its first output.
        kind: as LiteRT calls it: ``CONV_2D``.
        reads: names of the tensors that it reads, constants too.
        writes: names of its outputs.
        in_integers: whether its output is in integers.
        macs: multiply-accumulates of a call; 0 for what is no product.
    """

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    in_integers: bool
    macs: int


def parsed(content: bytes) -> Any:
    """Return the contents of a file as the classes of its schema.

    Raises InvalidSpec if it is none, damaged, has weights in other files, or has not one graph.
    """
    if content[4:8] != _IDENTIFIER:
        raise InvalidSpec("This is no LiteRT file, which has TFL3 at its fifth byte. Choose a .tflite file.")
    try:
        _check_sizes(schema.Model.GetRootAs(content, 0))
        model = schema.ModelT.InitFromPackedBuf(content, 0)
    except (InvalidSpec, MemoryError):
        raise
    except Exception as error:  # offsets that lead nowhere raise errors of struct, numpy and flatbuffers
        raise _damaged("its tables lead beyond its end") from error
    for buffer in model.buffers or ():  # the quantizer puts weights behind the graph
        if buffer.offset > 1:
            if buffer.offset + buffer.size > len(content):
                raise _damaged("weights lie beyond its end")
            buffer.data = np.frombuffer(content, dtype=np.uint8, count=buffer.size, offset=buffer.offset)
            buffer.offset = buffer.size = 0
    if model.externalBufferGroups or model.externalBuffers:
        raise InvalidSpec("Weights of this LiteRT file are in another file. Convert the network into one file.")
    (graph,) = model.subgraphs
    graph.tensors, graph.operators = graph.tensors or [], graph.operators or []
    for each in graph.tensors:  # LiteRT checks all else itself
        each.name, each.shape = each.name or b"", [] if each.shape is None else [int(size) for size in each.shape]
        if each.type in _NO_NUMBERS:
            raise _damaged(f"the tensor “{printable(each.name.decode('utf-8', 'replace'))}” holds no numbers")
    return model


def _check_sizes(model: Any) -> None:
    """Refuse graphs of loops, and lists that take long to read: their entries may all be the same table."""
    if model.SubgraphsLength() != 1:
        raise InvalidSpec(
            f"A LiteRT file with one graph is read, got {model.SubgraphsLength()}. Convert the network without loops "
            "and branches."
        )
    graph = model.Subgraphs(0)
    lists = graph.OperatorsLength(), graph.TensorsLength(), model.BuffersLength(), model.OperatorCodesLength()
    if max(*lists, model.MetadataLength(), model.SignatureDefsLength()) > _MOST_PARTS:
        raise InvalidSpec(f"This LiteRT file has more than {_MOST_PARTS:,} parts. Choose a smaller network.")


def _damaged(why: str) -> InvalidSpec:
    return InvalidSpec(f"This LiteRT file is damaged: {why}. Copy it again, or convert the network again.")


class LiteRtGraph:
    """The one graph of a file, whose tensors and operators can be changed.

    Attributes:
        model: all of the file, as the classes of its schema.
        tensors, operators: those of the graph; operators have places of tensors.
    """

    def __init__(self, content: bytes) -> None:
        self.model = parsed(content)
        (graph,) = self.model.subgraphs
        self.tensors, self.operators = graph.tensors, graph.operators
        self.images = self.name(graph.inputs[0])

    def name(self, place: int) -> str:
        """Return the name of a tensor."""
        return str(self.tensors[place].name.decode())

    def kind(self, operator: Any) -> str:
        """Return the kind of an operator as LiteRT calls it: ``CONV_2D``."""
        code = self.model.operatorCodes[operator.opcodeIndex]
        return str(_KINDS.get(max(code.builtinCode, code.deprecatedBuiltinCode), "CUSTOM"))

    def by_name(self) -> dict[str, Any]:
        """Return the operators by the names of their first outputs."""
        return {self.name(each.outputs[0]): each for each in self.operators}

    def constant(self, tensor: Any) -> NDArray[np.float32] | None:
        """Return the stored numbers of a tensor in float32; None for others."""
        stored = self.model.buffers[tensor.buffer].data
        if stored is None or tensor.type != schema.TensorType.FLOAT32:
            return None
        return np.frombuffer(np.asarray(stored, np.uint8).tobytes(), np.float32).reshape(tensor.shape).copy()

    def content(self) -> bytes:
        """Return the bytes of the file."""
        builder = flatbuffers.Builder(2**20)
        builder.Finish(self.model.Pack(builder), file_identifier=_IDENTIFIER)
        return bytes(builder.Output())


@lru_cache(maxsize=4)
def operators(content: bytes) -> tuple[Operator, ...]:
    """Return the operators of a file, in order."""
    graph = LiteRtGraph(content)
    return tuple(
        Operator(
            name=graph.name(each.outputs[0]),
            kind=graph.kind(each),
            reads=tuple(graph.name(at) for at in each.inputs if at >= 0),
            writes=tuple(map(graph.name, each.outputs)),
            in_integers=(output := graph.tensors[each.outputs[0]]).type in INTEGERS,
            macs=_macs(graph.kind(each), [graph.tensors[at].shape for at in each.inputs if at >= 0], output.shape),
        )
        for each in graph.operators
    )


def _macs(kind: str, inputs: list[Any], output: Any) -> int:
    """Return the products of an operator, from its shapes: its weight is (out, height, width, in) or (out, in)."""
    if kind not in PRODUCTS or len(inputs) < 2:
        return 0
    if kind == "DEPTHWISE_CONV_2D":
        return math.prod(map(int, output)) * math.prod(map(int, inputs[1][1:3]))
    if kind == "BATCH_MATMUL":
        return math.prod(map(int, output)) * int(inputs[0][-1])
    weight = inputs[1]
    read = inputs[2] if kind == "TRANSPOSE_CONV" and len(inputs) > 2 else output
    return math.prod(map(int, read)) * math.prod(map(int, weight[1:]))


def followers(content: bytes) -> Mapping[str, Sequence[str]]:
    """Return the operators that only move values, by the one that makes these, or the first one behind an input."""
    owners, inputs, found = dict[str, str](), list[str](), defaultdict[str, list[str]](list)
    for each in operators(content):
        owner = next((owners[name] for name in each.reads if name in owners), "")
        if each.kind not in MOVING:
            owner = each.name
            found[owner] += inputs
            inputs.clear()
        elif owner:
            found[owner].append(each.name)
        else:
            inputs.append(each.name)
        owners |= dict.fromkeys(each.writes if owner else (), owner)
    return found


def layers_of(content: bytes, layers: Collection[str]) -> dict[str, str]:
    """Return the layer of each product of a file, where its name has the path of the layer's module.

    A product that gives an output of the network is called like that, and belongs to the one layer that is left.
    """
    found: dict[str, str] = {}
    unnamed = []
    for each in operators(content):
        layer = next((name for name in modules_in(each.name) if name in layers), None)
        if layer is not None and each.kind in PRODUCTS:
            found[each.name] = layer
        elif each.kind in PRODUCTS:
            unnamed.append(each.name)
    left = set(layers) - set(found.values())
    return found | dict(zip(unnamed, left, strict=True)) if len(unnamed) == len(left) == 1 else found


def texts(content: bytes) -> dict[str, bytes]:
    """Return what a file holds about itself, by name, as far as it is there."""
    model = parsed(content)
    held = dict(enumerate(model.buffers or ()))
    found = {each.name or b"": held.get(each.buffer) for each in model.metadata or ()}
    return {
        name.decode("utf-8", "replace"): bytes(np.asarray(each.data, dtype=np.uint8))
        for name, each in found.items()
        if each is not None and each.data is not None
    }


def with_texts(content: bytes, told: Mapping[str, bytes]) -> bytes:
    """Return a file that holds ``told`` about itself, in place of entries of these names."""
    graph = LiteRtGraph(content)
    kept = [each for each in graph.model.metadata or () if each.name.decode() not in told]
    for name, text in told.items():
        buffer, entry = schema.BufferT(), schema.MetadataT()
        buffer.data = np.frombuffer(text, dtype=np.uint8)
        entry.name, entry.buffer = name.encode(), len(graph.model.buffers)
        graph.model.buffers.append(buffer)
        kept.append(entry)
    graph.model.metadata = kept
    return graph.content()
