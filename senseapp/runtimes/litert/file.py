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

PRODUCTS = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL"})
"""Kinds of operators that multiply by weights or by other tensors."""
_MOVING = frozenset({"RESHAPE", "TRANSPOSE", "PAD", "PADV2", "RELU", "RELU6", "MAX_POOL_2D", "SLICE", "STRIDED_SLICE",
                     "SPLIT", "PACK", "UNPACK", "GATHER", "BROADCAST_TO", "SPACE_TO_DEPTH"})  # fmt: skip
"""Kinds that keep the values, or most of them: they compute as what they read."""
_BORDERS = frozenset({"QUANTIZE", "DEQUANTIZE"})
_IDENTIFIER = b"TFL3"  # at byte 4 of each file
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
        InvalidSpec: it is none, or has not one graph.
    """
    if content[4:8] != _IDENTIFIER:
        raise InvalidSpec("This is no LiteRT file: it does not begin as one.")
    try:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
    except Exception as error:  # offsets that lead nowhere raise errors of struct and numpy
        raise InvalidSpec(f"This LiteRT file is damaged: {type(error).__name__}.") from error
    for buffer in model.buffers or ():  # the quantizer puts weights behind the graph
        if buffer.offset > 1:
            if buffer.offset + buffer.size > len(content):
                raise InvalidSpec("This LiteRT file is damaged: weights lie beyond its end.")
            buffer.data = np.frombuffer(content, dtype=np.uint8, count=buffer.size, offset=buffer.offset)
            buffer.offset = buffer.size = 0
    if len(model.subgraphs or ()) != 1:
        raise InvalidSpec(f"A LiteRT file with one graph is read here, got {len(model.subgraphs or ())}.")
    return model


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
        if each.in_integers and each.kind not in _MOVING and each.kind not in _BORDERS
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
