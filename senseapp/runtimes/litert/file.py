"""LiteRT files: operators by name, texts that a file holds about itself, and layers of its operators."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from senseapp.core.errors import InvalidSpec
from senseapp.core.texts import printable

PRODUCTS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL"})
"""Kinds of operators that multiply by weights or by other tensors."""
_MOVING = frozenset({"RESHAPE", "TRANSPOSE", "PAD", "PADV2", "RELU", "RELU6", "MAX_POOL_2D", "SLICE", "STRIDED_SLICE",
                     "SPLIT", "PACK", "UNPACK", "GATHER", "BROADCAST_TO", "SPACE_TO_DEPTH"})  # fmt: skip
"""Kinds that keep the values, or most of them: they compute as what they read."""
BORDERS = frozenset({"QUANTIZE", "DEQUANTIZE"})
_IDENTIFIER = b"TFL3"  # at byte 4 of each file
_MOST_NUMBERS, _MOST_PARTS = 2**31, 20_000  # of a tensor; operators, tensors and others of a file
_NO_NUMBERS = (schema.TensorType.STRING, schema.TensorType.RESOURCE, schema.TensorType.VARIANT)
_BITS = {
    **dict.fromkeys((schema.TensorType.FLOAT32, schema.TensorType.INT32), 32),
    **dict.fromkeys((schema.TensorType.INT8, schema.TensorType.UINT8), 8),
    **dict.fromkeys((schema.TensorType.FLOAT16, schema.TensorType.INT16), 16),
    **{schema.TensorType.INT64: 64, schema.TensorType.INT4: 4},
}
"""Of a number of the usual types."""
_KINDS = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
_INTEGERS = (schema.TensorType.INT8, schema.TensorType.INT16, schema.TensorType.UINT8)


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

    Raises:
        InvalidSpec: it is none, damaged, has weights in other files, or has not one graph.
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
    _check(model)
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


def _check(model: Any) -> None:
    """Refuse what readers of this module rely on, and tensors that no network has."""
    (graph,), buffers = model.subgraphs, model.buffers or []
    tensors = graph.tensors = graph.tensors or []
    for each in tensors:
        each.name = each.name or b""
        shape = each.shape = [int(length) for length in (() if each.shape is None else each.shape)]
        named = f"the tensor “{printable(each.name.decode('utf-8', 'replace'))}”"
        if min(shape, default=0) < 0:
            raise _damaged(f"{named} has a negative length")
        if (count := math.prod(shape)) > _MOST_NUMBERS:
            raise _damaged(f"{named} is declared with {count:.1e} numbers")
        if each.type in _NO_NUMBERS:
            raise _damaged(f"{named} holds no numbers")
        if not 0 <= each.buffer < max(1, len(buffers)):
            raise _damaged(f"the weights of {named} are missing")
        stored = buffers[each.buffer].data if buffers and each.sparsity is None else None
        if stored is not None and 0 < 8 * len(stored) < count * _BITS.get(each.type, 0):
            raise _damaged(f"{named} is stored incompletely")
    graph.operators = graph.operators or []
    for place, each in enumerate(graph.operators):
        if not 0 <= each.opcodeIndex < len(model.operatorCodes or ()):
            raise _damaged(f"operator {place} is of no kind")
        reads, writes = ([] if ends is None else list(ends) for ends in (each.inputs, each.outputs))
        if not writes or min(writes) < 0 or max([*reads, *writes]) >= len(tensors):
            raise _damaged(f"operator {place} reads or writes a tensor that it does not hold")
    made = {place for each in graph.operators for place in each.outputs}
    if not made.issuperset([] if graph.outputs is None else graph.outputs):
        raise _damaged("an output is computed by no operator")
    for each in model.metadata or ():
        if each.name is None or not 0 <= each.buffer < len(buffers):
            raise _damaged("a text about the network is missing")


def _damaged(why: str) -> InvalidSpec:
    return InvalidSpec(f"This LiteRT file is damaged: {why}. Copy it again, or convert the network again.")


@lru_cache(maxsize=4)
def operators(content: bytes) -> tuple[Operator, ...]:
    """Return the operators of a file, in order."""
    model = parsed(content)
    (graph,) = model.subgraphs
    return tuple(_operators(model, graph))


def _operators(model: Any, graph: Any) -> Iterator[Operator]:
    def named(places: Any) -> tuple[str, ...]:
        return tuple(graph.tensors[place].name.decode() for place in places if place >= 0)

    for each in graph.operators:
        kind = kind_of(model, each)
        output = graph.tensors[each.outputs[0]]
        yield Operator(
            name=named(each.outputs)[0],
            kind=kind,
            reads=named(each.inputs),
            writes=named(each.outputs),
            in_integers=output.type in _INTEGERS,
            macs=_macs(kind, [graph.tensors[place].shape for place in each.inputs if place >= 0], output.shape),
        )


def kind_of(model: Any, operator: Any) -> str:
    """Return the kind of an operator as LiteRT calls it: ``CONV_2D``."""
    code = model.operatorCodes[operator.opcodeIndex]
    return str(_KINDS.get(max(code.builtinCode, code.deprecatedBuiltinCode), "CUSTOM"))


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


def computing(content: bytes) -> list[str]:
    """Return the names of the operators of a file that compute in integers, without those that only move values."""
    return [
        each.name
        for each in operators(content)
        if each.in_integers and each.kind not in _MOVING and each.kind not in BORDERS
    ]


def followers(content: bytes) -> dict[str, list[str]]:
    """Return the operators that only move values, by the one that makes them; of inputs, by the one that reads them."""
    owners: dict[str, str] = {}  # by tensor
    waiting: dict[str, list[str]] = {}  # operators that move an input, by the tensor that they give
    found: dict[str, list[str]] = {}
    for each in operators(content):
        source = next((owners[name] for name in each.reads if name in owners), None)
        moved = [name for read in each.reads for name in waiting.get(read, ())]
        if each.kind not in _MOVING:
            found.setdefault(each.name, []).extend(moved)
            owners |= dict.fromkeys(each.writes, each.name)
        elif source is None:
            waiting |= {tensor: [*moved, each.name] for tensor in each.writes}
        else:
            found[source].append(each.name)
            owners |= dict.fromkeys(each.writes, source)
    return found


def layers_of(content: bytes, layers: Collection[str]) -> dict[str, str]:
    """Return the layer of each product of a file, where its name has the path of the layer's module.

    The converter writes ``Net/….Sequential_layer1/….Conv2d_0`` for the module ``layer1.0``; a product that gives an
    output of the network is called like that, and belongs to the one layer that is left.
    """
    paths = {tuple(layer.split(".")): layer for layer in layers}
    found: dict[str, str] = {}
    unnamed = []
    for each in operators(content):
        if each.kind not in PRODUCTS:
            continue
        layer = next(filter(None, (_layer_in(part, paths) for part in each.name.split(";"))), None)
        if layer is None:
            unnamed.append(each.name)
        else:
            found[each.name] = layer
    left = set(layers) - set(found.values())
    if len(unnamed) == len(left) == 1:
        found[unnamed[0]] = left.pop()
    return found


def _layer_in(path: str, paths: Mapping[tuple[str, ...], str]) -> str | None:
    """Return the layer of ``paths`` with the most parts that a name ends in: each part as ``….Class_part``."""
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        for wanted, layer in paths.items():
            if len(wanted) == length and all(
                re.search(rf"(^|[._]){re.escape(name)}$", part)
                for name, part in zip(wanted, parts[-length:], strict=True)
            ):
                return layer
    return None


def texts(content: bytes) -> dict[str, bytes]:
    """Return what a file holds about itself, by name."""
    model = parsed(content)
    return {
        each.name.decode(): bytes(np.asarray(model.buffers[each.buffer].data, dtype=np.uint8))
        for each in model.metadata or ()
        if model.buffers[each.buffer].data is not None
    }


def with_texts(content: bytes, told: Mapping[str, bytes]) -> bytes:
    """Return a file that holds ``told`` about itself, in place of entries of these names."""
    model = parsed(content)
    kept = [each for each in model.metadata or () if each.name.decode() not in told]
    for name, text in told.items():
        buffer, entry = schema.BufferT(), schema.MetadataT()
        buffer.data = np.frombuffer(text, dtype=np.uint8)
        entry.name, entry.buffer = name.encode(), len(model.buffers)
        model.buffers.append(buffer)
        kept.append(entry)
    model.metadata = kept
    return packed(model)


def packed(model: Any) -> bytes:
    """Return the file of what :func:`parsed` returns."""
    builder = flatbuffers.Builder(2**20)
    builder.Finish(model.Pack(builder), file_identifier=_IDENTIFIER)
    return bytes(builder.Output())
