"""Hostile LiteRT files: by hand, each with what its refusal says, and sound ones with changed bytes or fields."""

import io
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.onnx_graphs import file_of, node

_TYPES = {"float32": "FLOAT32", "int32": "INT32", "int8": "INT8", "uint8": "UINT8"}
_SCALE = 0.05


class Graph:
    """A LiteRT file under construction; its tensors and operators are known by place."""

    def __init__(self) -> None:
        self.model, self.graph = schema.ModelT(), schema.SubGraphT()
        self.model.version, self.model.buffers = 3, [schema.BufferT()]
        self.model.subgraphs, self.model.operatorCodes = [self.graph], []
        self.graph.tensors, self.graph.operators, self.graph.inputs, self.graph.outputs = [], [], [], []

    def tensor(
        self, name: str, shape: Sequence[int], kind: str = "float32", values: np.ndarray | None = None, scale: float = 0
    ) -> int:
        """Add a tensor, with ``values`` a constant; return its place."""
        made = schema.TensorT()
        made.name, made.shape, made.type = name, list(shape), getattr(schema.TensorType, _TYPES[kind])
        if values is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.asarray(values, kind).tobytes(), np.uint8)
            made.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        if scale:
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = [scale], [0]
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def numbers(self, name: str, values: Sequence[int]) -> int:
        """Add a constant of whole numbers."""
        return self.tensor(name, [len(values)], "int32", np.array(values))

    def operator(
        self, kind: str, reads: Sequence[int], writes: Sequence[int], options: Any = None, **settings: Any
    ) -> Any:
        """Add an operator, with ``settings`` of its options; return it."""
        code, made = schema.OperatorCodeT(), schema.OperatorT()
        code.builtinCode = getattr(schema.BuiltinOperator, kind)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        made.opcodeIndex, made.inputs, made.outputs = len(self.model.operatorCodes), list(reads), list(writes)
        if options is not None:
            made.builtinOptions = getattr(schema, f"{options}T")()
            made.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            vars(made.builtinOptions).update(settings)
        self.model.operatorCodes.append(code)
        self.graph.operators.append(made)
        return made

    def packed(self) -> bytes:
        """Return the file."""
        builder = flatbuffers.Builder(4096)
        builder.Finish(self.model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


_CONV, _DEPTHWISE, _POOL, _SHAPE, _LINEAR, _SOFTMAX = range(6)
"""Places of the operators of :func:`network`."""
_IMAGE, _WEIGHT, _BIAS, _FIRST = range(4)
"""Places of its first tensors."""


def network(*, size: int = 8, int8: bool = False) -> Graph:
    """Return a small classifier of one image (1, H, W, 3): a convolution and what else classifiers have."""
    rng, made = np.random.default_rng(0), Graph()
    kind, scale = ("int8", _SCALE) if int8 else ("float32", 0.0)

    def weight(name: str, *shape: int) -> int:
        values = rng.normal(size=shape)
        return made.tensor(name, shape, kind, np.clip(values / _SCALE, -127, 127) if int8 else values, scale)

    def bias(name: str, length: int) -> int:
        return made.tensor(name, [length], "int32" if int8 else "float32", np.zeros(length), scale**2)

    def value(name: str, *shape: int) -> int:
        return made.tensor(name, shape, kind, scale=scale)

    image, stem, stem_bias = value("image", 1, size, size, 3), weight("w", 4, 3, 3, 3), bias("b", 4)
    first, second, pooled = value("first", 1, size, size, 4), value("second", 1, size, size, 4), value("p", 1, 1, 1, 4)
    depthwise, flat, scores, answers = weight("d", 1, 3, 3, 4), value("f", 1, 4), value("s", 1, 5), value("y", 1, 5)
    made.operator("CONV_2D", [image, stem, stem_bias], [first], "Conv2DOptions", strideW=1, strideH=1)
    made.operator("DEPTHWISE_CONV_2D", [first, depthwise, bias("e", 4)], [second], "DepthwiseConv2DOptions",
                  strideW=1, strideH=1, depthMultiplier=1)  # fmt: skip
    made.operator("AVERAGE_POOL_2D", [second], [pooled], "Pool2DOptions", padding=1, strideW=1, strideH=1,
                  filterWidth=size, filterHeight=size)  # fmt: skip
    made.operator("RESHAPE", [pooled, made.numbers("shape", [1, 4])], [flat], "ReshapeOptions", newShape=[1, 4])
    made.operator("FULLY_CONNECTED", [flat, weight("l", 5, 4), bias("c", 5)], [scores], "FullyConnectedOptions")
    made.operator("SOFTMAX", [scores], [answers], "SoftmaxOptions", beta=1.0)
    if int8:
        ends = made.graph.tensors[answers].quantization
        ends.scale, ends.zeroPoint = [1 / 256], [-128]
    made.graph.inputs, made.graph.outputs = [image], [answers]
    return made


def _changed(change: Callable[[Graph], object], **how: Any) -> Callable[[], bytes]:
    def make() -> bytes:
        made = network(**how)
        change(made)
        return made.packed()

    return make


def _tensor(place: int, **changes: Any) -> Callable[[], bytes]:
    return _changed(lambda made: vars(made.graph.tensors[place]).update(changes))


def _graph(**changes: Any) -> Callable[[], bytes]:
    return _changed(lambda made: vars(made.graph).update(changes))


def _reads(place: int, *reads: int) -> Callable[[], bytes]:
    return _changed(lambda made: setattr(made.graph.operators[place], "inputs", list(reads)))


def _options(place: int, **changes: Any) -> Callable[[], bytes]:
    return _changed(lambda made: vars(made.graph.operators[place].builtinOptions).update(changes))


def _code(name: str | None, code: int) -> Callable[[], bytes]:
    def change(made: Graph) -> None:
        found = made.model.operatorCodes[_SOFTMAX]
        found.customCode, found.builtinCode, found.deprecatedBuiltinCode = name, code, min(code, 127)

    return _changed(change)


def _quantized(place: int, **changes: Any) -> Callable[[], bytes]:
    return _changed(lambda made: vars(made.graph.tensors[place].quantization).update(changes), int8=True)


def _buffer(**changes: Any) -> Callable[[], bytes]:
    return _changed(lambda made: vars(made.model.buffers[1]).update(changes))


def _only(kind: str, options: str | None, shape: Sequence[int], *numbers: Sequence[int], **settings: Any
          ) -> Callable[[], bytes]:  # fmt: skip
    """Return a file of one operator, whose output has ``shape`` by its own account."""

    def make() -> bytes:
        made = Graph()
        image = made.tensor("image", [1, 8, 8, 3])
        known = [made.numbers(f"n{place}", each) for place, each in enumerate(numbers)]
        made.graph.inputs, made.graph.outputs = [image], [made.tensor("y", shape)]
        made.operator(kind, [image, *known], made.graph.outputs, options, **settings)
        return made.packed()

    return make


def _filled() -> bytes:
    made = network()
    shape, value = made.numbers("n", [10**6, 10**6]), made.tensor("one", [], "float32", np.ones(()))
    made.graph.outputs = [made.tensor("z", [1, 1])]
    made.operator("FILL", [shape, value], made.graph.outputs)
    return made.packed()


def _loop() -> bytes:
    """Return a WHILE whose condition is always true, in a loop of the same kind."""
    made = network()
    loop = schema.WhileOptionsT()
    loop.condSubgraphIndex = loop.bodySubgraphIndex = 1
    inner = schema.SubGraphT()
    inner.tensors, inner.inputs, inner.outputs, inner.operators = made.graph.tensors, [0], [0], []
    made.model.subgraphs.append(inner)
    for each in [made.operator("WHILE", [0], [0]), made.operator("WHILE", [0], [0])]:
        each.builtinOptions, each.builtinOptionsType = loop, schema.BuiltinOptions.WhileOptions
    inner.operators = [made.graph.operators.pop()]
    return made.packed()


def _shared(count: int) -> bytes:
    """Return a file whose graph lists one operator ``count`` times: it lies behind the list, in a copy of the file."""
    content = bytearray(network().packed())
    graph = schema.Model.GetRootAs(content, 0).Subgraphs(0)
    table, field = graph.Operators(_SHAPE)._tab.Pos, graph._tab.Pos + graph._tab.Offset(10)
    copy, place = bytes(content), len(content) + -len(content) % 4
    content += bytes(place - len(content)) + struct.pack("<I", count)
    start = place + 4 + 4 * count + 4 * (count % 2)  # tables are aligned to 8 bytes
    content += struct.pack(f"<{count}I", *(start + table - place - 4 - 4 * each for each in range(count)))
    content += bytes(start - len(content)) + copy
    content[field : field + 4] = struct.pack("<I", place - field)
    return bytes(content)


def _hours() -> bytes:
    """Return products of large matrices that are all computed, one after the other."""
    made, shape = Graph(), [1, 1, 4096, 4096]
    made.graph.inputs = [last := made.tensor("image", shape)]
    for place in range(400):
        before, last = last, made.tensor(f"y{place}", shape)
        made.operator("BATCH_MATMUL", [before, before], [last], "BatchMatMulOptions")
    made.graph.outputs = [last]
    return made.packed()


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model.tflite", network().packed())
    return file.getvalue()


def _lying(place: int, *numbers: int) -> bytes:
    """Return a sound file with other whole numbers of 32 bits from ``place`` on."""
    content = bytearray(network().packed())
    content[place : place + 4 * len(numbers)] = struct.pack(f"<{len(numbers)}I", *numbers)
    return bytes(content)


def _claims_2_gb() -> bytes:
    """Return a file whose weights claim 2 GB that it has not."""
    content = bytearray(network().packed())
    data = schema.Model.GetRootAs(content, 0).Buffers(1)._tab
    start = data.Vector(data.Offset(4)) - 4
    content[start : start + 4] = struct.pack("<I", 2**31 - 1)
    return bytes(content)


def _in_another_file(made: Graph) -> None:
    group, buffer = schema.ExternalBufferGroupT(), schema.ExternalBufferT()
    group.name, buffer.id, buffer.length = "../../etc/passwd", 1, 432
    made.model.externalBufferGroups, made.model.externalBuffers = [group], [buffer]
    made.graph.tensors[_WEIGHT].externalBuffer, made.graph.tensors[_WEIGHT].buffer = 1, 0


def _sparse(made: Graph) -> None:
    found = made.graph.tensors[_WEIGHT].sparsity = schema.SparsityParametersT()
    found.traversalOrder, found.blockMap, found.dimMetadata = [9, 9], [-1], []


def _two_inputs(made: Graph) -> None:
    made.graph.inputs = [_IMAGE, made.tensor("other", [1, 8, 8, 3])]


def _signature(made: Graph) -> None:
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex, signature.inputs, signature.outputs = "serving", 7, [], []
    made.model.signatureDefs = [signature]


def _metadata(made: Graph) -> None:
    entry = schema.MetadataT()
    entry.name, entry.buffer = "senseapp.classes", 99
    made.model.metadata = [entry]


_MANY, _SHAPES = [10**6, 10**6], "shapes that it declares"
_FEWER_BYTES = "invalidly specified|required_bytes"  # by processor, one of two checks of LiteRT is the first
BY_HAND: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "TFL3"),
    "text": (lambda: b"no network at all", "TFL3"),
    "a zip": (_zip, "TFL3"),
    "a pickle": (lambda: pickle.dumps({"weights": [0.0] * 99}), "TFL3"),
    "an ONNX file": (lambda: file_of([node("Relu", "x", "y")], {}), "TFL3"),
    "the identifier alone": (lambda: b"\0\0\0\0TFL3", "one graph"),
    "cut in the middle": (lambda: network().packed()[:2000], "tables lead beyond"),
    "a claim of 2 GB": (_claims_2_gb, "tables lead beyond"),
    "a root behind the end": (lambda: _lying(0, 2**31), "tables lead beyond"),
    "a root before the start": (lambda: _lying(0, 2**32 - 64), "tables lead beyond"),
    "no graph": (_changed(lambda made: made.model.subgraphs.clear()), "one graph"),
    "two graphs": (_changed(lambda made: made.model.subgraphs.append(made.graph)), "one graph"),
    "a loop in a loop": (_loop, "one graph"),
    "no input": (_graph(inputs=[]), "one batch of images"),
    "two inputs": (_changed(_two_inputs), "one batch of images"),
    "an input that there is not": (_graph(inputs=[99]), "Invalid tensor index"),
    "no output": (_graph(outputs=[]), "one batch of images"),
    "an output that there is not": (_graph(outputs=[2**31 - 1]), "Invalid tensor index"),
    "an output that nothing computes": (_graph(operators=[]), "data is null"),
    "an image of two axes": (_tensor(_IMAGE, shape=[8, 8]), "CONV_2D"),
    "an image of 10^12 numbers": (_tensor(_IMAGE, shape=[1, *_MANY, 3]), _SHAPES),
    "100,000 images": (_tensor(_IMAGE, shape=[10**5, 8, 8, 3]), _SHAPES),
    "weights of 2^31 numbers": (_tensor(_WEIGHT, shape=[2**31 - 1, 3, 3, 3]), _FEWER_BYTES),
    "a product that overflows": (_tensor(_WEIGHT, shape=[2**16] * 4), "overflowed"),
    "a negative length": (_tensor(_WEIGHT, shape=[-4, 3, 3, 3]), "overflowed"),
    "two negative lengths": (_tensor(_WEIGHT, shape=[-4, -3, 3, 3]), "overflowed"),
    "an inner value of 10^12 numbers": (_tensor(_FIRST, shape=[1, *_MANY, 4]), _SHAPES),
    "weights in a buffer that there is not": (_tensor(_WEIGHT, buffer=999), "out of range buffer 999"),
    "no weights": (_tensor(_WEIGHT, buffer=0), "lacks data"),
    "fewer weights than declared": (_buffer(data=np.zeros(8, np.uint8)), _FEWER_BYTES),
    "weights beyond the end": (_buffer(data=None, offset=2**40, size=432), "beyond its end"),
    "weights that wrap around": (_buffer(data=None, offset=2**64 - 8, size=432), "beyond its end"),
    "weights in another file": (_changed(_in_another_file), "in another file"),
    "text as weights": (_tensor(_WEIGHT, type=schema.TensorType.STRING), "no numbers"),
    "weights of a type that there is not": (_tensor(_WEIGHT, type=99), "data type 99"),
    "an operator of a code that there is not": (
        _changed(lambda made: setattr(made.graph.operators[0], "opcodeIndex", 99)), "opcode_index 99"),
    "an operator of the future": (_code(None, 9_999), "9999"),
    "an own operator": (_code("Evil\nOp", schema.BuiltinOperator.CUSTOM), "LiteRT itself does not have"),
    "an operator of TensorFlow": (_code("FlexErf", schema.BuiltinOperator.CUSTOM), "LiteRT itself does not have"),
    "an operator of another kind": (_code(None, schema.BuiltinOperator.LSTM), "LSTM"),
    "a value that there is not": (_reads(_CONV, _IMAGE, 999, _BIAS), "Invalid tensor index"),
    "no weights to read": (_reads(_CONV, _IMAGE), "CONV_2D"),
    "nothing to read": (_reads(_CONV), "CONV_2D"),
    "nothing to write": (_changed(lambda made: setattr(made.graph.operators[_CONV], "outputs", [])), "CONV_2D"),
    "a circle": (_reads(_CONV, _FIRST, _WEIGHT, _BIAS), "both input 0"),
    "strides of 0": (_options(_CONV, strideW=0, strideH=0), "CONV_2D"),
    "negative strides": (_options(_CONV, strideW=-1, strideH=-(2**31)), "CONV_2D"),
    "a pool of 10^9": (_options(_POOL, filterWidth=10**9, filterHeight=10**9), _SHAPES),
    "a pool of 0": (_options(_POOL, filterWidth=0, filterHeight=0), _SHAPES),
    "10^12 by tile": (_only("TILE", "TileOptions", [1], [1, *_MANY, 1]), _SHAPES),
    "10^12 by pads": (_only("PAD", "PadOptions", [1], [0, 0, 0, 10**6, 0, 10**6, 0, 0]), "PAD"),
    "10^12 by resize": (_only("RESIZE_BILINEAR", "ResizeBilinearOptions", [1], _MANY), _SHAPES),
    "10^12 by fill": (_filled, _SHAPES),
    "a negative shape": (_only("RESHAPE", "ReshapeOptions", [1], [-1, -1], newShape=[-1, -1]), _SHAPES),
    "another number of values": (_only("RESHAPE", "ReshapeOptions", [1, 7], [1, 7], newShape=[1, 7]), _SHAPES),
    "a place beyond the end": (_only("GATHER", "GatherOptions", [1, 8, 8, 1], [10**9], axis=3), "GATHER"),
    "axes beyond the last": (_only("MEAN", "ReducerOptions", [1, 3], [9, -9]), _SHAPES),
    "axes twice": (_only("TRANSPOSE", "TransposeOptions", [1, 3, 8, 8], [0, 0, 0, 0]), "TRANSPOSE"),
    "a slice of nothing": (_only("SLICE", "SliceOptions", [1, 1, 1, 1], [0, 9, 9, 0], [1, -9, 9, 1]), "SLICE"),
    "steps of 0": (_only("STRIDED_SLICE", "StridedSliceOptions", [1], [0] * 4, [1] * 4, [0] * 4), "STRIDED_SLICE"),
    "blocks of 0": (_only("SPACE_TO_DEPTH", "SpaceToDepthOptions", [1], blockSize=0), "SPACE_TO_DEPTH"),
    "a scale of 0": (_quantized(_FIRST, scale=[0.0]), "scale value"),
    "a scale that is no number": (_quantized(_FIRST, scale=[float("nan")]), "scale value"),
    "no scale": (_quantized(_FIRST, scale=[], zeroPoint=[]), "DEPTHWISE_CONV_2D"),
    "scales along axis 99": (_quantized(_WEIGHT, scale=[_SCALE] * 4, zeroPoint=[0] * 4, quantizedDimension=99),
        "quantized_dimension"),
    "fewer scales than channels": (_quantized(_WEIGHT, scale=[_SCALE] * 3, zeroPoint=[0] * 3), "num_scales"),
    "one operator 20,000 times": (lambda: _shared(20_000), "lacks data"),
    "one operator a million times": (lambda: _shared(10**6), "more than 20,000 parts"),
    "hours of products": (_hours, "so it was stopped"),
}  # fmt: skip
"""How each is made, and what its refusal says."""

RUN: dict[str, Callable[[], bytes]] = {
    "sparse weights without a form": _changed(_sparse),
    "gaps of 10^9": _options(_CONV, dilationWFactor=10**9, dilationHFactor=10**9),
    "a multiplier of 0": _options(_DEPTHWISE, depthMultiplier=0),
    "a signature of a graph that there is not": _changed(_signature),
    "a text in a buffer that there is not": _changed(_metadata),
}
"""Files that LiteRT runs all the same."""

_EXTREMES = (-1, 0, 1, 2, 7, 255, 65_537, 2**31 - 1, -(2**31), 10**6)


@cache
def sound(*, int8: bool = False) -> bytes:
    """Return the file that others are made from."""
    return network(int8=int8).packed()


def mutated(seed: int) -> bytes:
    """Return a sound file with a few changed bytes, offsets or fields; each seed is another one."""
    rng = random.Random(seed)
    is_int8 = rng.random() < 0.5
    match seed % 3:
        case 0:
            return _changed_bytes(bytearray(sound(int8=is_int8)), rng)
        case 1:
            return _changed_offsets(bytearray(sound(int8=is_int8)), rng)
    made = network(int8=is_int8)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _change_a_field(made, rng)
    try:
        return made.packed()
    except Exception:  # the writer itself refuses the value
        return _changed_bytes(bytearray(sound(int8=is_int8)), rng)


def _changed_bytes(content: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place, length = rng.randrange(8, len(content)), rng.choice((1, 2, 8, 64))
        match rng.choice((0, 0, 0, 1, 1, 1, 2, 3, 4)):
            case 0:
                content[place] = rng.randrange(256)
            case 1:
                content[place] ^= 1 << rng.randrange(8)
            case 2:
                del content[place : place + length]
            case 3:
                content[place:place] = rng.randbytes(length)
            case 4:
                content[place:place] = content[rng.randrange(len(content)) :][:length]
    return bytes(content[: rng.randrange(1, len(content))]) if rng.random() < 0.1 else bytes(content)


def _changed_offsets(content: bytearray, rng: random.Random) -> bytes:
    """Put extremes at places that hold numbers of 32 bits: offsets, lengths and sizes."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = 4 * rng.randrange(len(content) // 4)
        value = rng.choice((*_EXTREMES, len(content), rng.randrange(len(content)), 2**32 - 4 * rng.randrange(99)))
        content[place : place + 4] = struct.pack("<I", value % 2**32)
    content[4:8] = b"TFL3"
    return bytes(content)


def _change_a_field(made: Graph, rng: random.Random) -> None:
    tensors, nodes = made.graph.tensors, made.graph.operators
    owner = rng.choice((rng.choice(tensors), rng.choice(nodes), rng.choice(nodes).builtinOptions, made.graph,
                        rng.choice(tensors).quantization, rng.choice(made.model.operatorCodes)))  # fmt: skip
    if owner is None:
        return
    name = rng.choice([name for name, value in vars(owner).items() if isinstance(value, int | list)] or ["version"])
    value = vars(owner).get(name)
    if isinstance(value, list):
        if value and all(isinstance(each, int) for each in value):
            value = list(value)
            value[rng.randrange(len(value))] = rng.choice((*_EXTREMES, rng.randrange(len(tensors))))
            setattr(owner, name, value if rng.random() < 0.8 else value[:-1])
        else:
            setattr(owner, name, value[:-1])
    else:
        setattr(owner, name, rng.choice((*_EXTREMES, rng.randrange(150))))
