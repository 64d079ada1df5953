"""Hostile ONNX files: by hand, each with what its refusal says, and sound ones with changed bytes or fields."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.onnx_graphs import file_of, model_of, node, weights
from tests.onnx_styles import STYLES

W = weights(4, 3, 3, 3)
_MANY = np.array([10**6, 10**6], np.int64)


def _conv(**changes: Any) -> bytes:
    return file_of([node("Conv", "x w", "y")], {"w": W}, **changes)


def _conv_with(**attributes: Any) -> bytes:
    return file_of([node("Conv", "x w", "y", **attributes)], {"w": W})


def _external(*, in_node: bool = False, place: str = "../../etc/passwd") -> bytes:
    model = model_of([node("Conv", "x w", "y")], {"w": W})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    if in_node:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
        del model.graph.initializer[:]
    return bytes(model.SerializeToString())


def _declared(*dims: int, kind: int = TensorProto.FLOAT) -> bytes:
    model = model_of([node("Conv", "x w", "y")], {"w": W})
    model.graph.initializer[0].dims[:] = dims
    model.graph.initializer[0].data_type = kind
    return bytes(model.SerializeToString())


def _calls(depth: int, *, circle: bool) -> bytes:
    """Return a function that calls the next one twice, and so on; with ``circle`` the last one calls the first."""
    functions = []
    for index in range(depth):
        last = index == depth - 1
        op, domain = ("Relu", "") if last and not circle else (f"F{0 if last else index + 1}", "own")
        body = [helper.make_node(op, [a], [b], domain=domain) for a, b in (("a", "m"), ("m", "r"))]
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
        functions.append(helper.make_function("own", f"F{index}", ["a"], ["r"], body, imports))
    model = model_of([helper.make_node("F0", ["x"], ["y"], domain="own")], {}, functions=functions)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return bytes(model.SerializeToString())


def _huge(*nodes: NodeProto, **numbers: np.ndarray | np.generic) -> bytes:
    return file_of([*nodes, node("Add", "x z", "y")], {name: np.asarray(value) for name, value in numbers.items()})


def _body(name: str, nodes: Sequence[NodeProto], outputs: Sequence[str], inputs: Sequence[str] = ()) -> GraphProto:
    infos = [[onnx.ValueInfoProto(name=each) for each in names] for names in (inputs, outputs)]
    return helper.make_graph(nodes, name, infos[0], infos[1])


def _alike(read: str) -> dict[str, GraphProto]:
    """Return both branches of an If, whose values have the same name."""
    return {f"{key}_branch": _body(key, [helper.make_node("Relu", [read], ["v"])], ["v"]) for key in ("then", "else")}


def _nested_branches(depth: int) -> bytes:
    inner = [helper.make_node("Relu", ["x"], ["v0"])]
    for level in range(depth):
        otherwise = _body("else", [helper.make_node("Neg", ["x"], ["n"])], ["n"])
        branches = {"then_branch": _body("then", inner, [f"v{level}"]), "else_branch": otherwise}
        inner = [helper.make_node("If", ["yes"], [f"v{level + 1}"], **branches)]
    return file_of(inner, {"yes": np.asarray(True)}, outputs=[f"v{depth}"])


def _messages_in_messages(depth: int) -> bytes:
    """Return a model whose graph's node's attribute's graph … goes on, written without a library."""
    content = b""
    for level in range(depth):
        tag = (b"\x0a", b"\x32", b"\x2a")[level % 3]  # node of a graph, graph of an attribute, attribute of a node
        content = tag + _varint(len(content)) + content
    return b"\x3a" + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _loop(kind: str) -> bytes:
    body = _body("body", [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "v"], ["w"])],
                 ["d", "w"], ["i", "c", "v"])  # fmt: skip
    if kind == "Loop":
        made = helper.make_node("Loop", ["n", "yes", "x"], ["y"], name="forever", body=body)
    else:
        made = helper.make_node("Scan", ["x", "x"], ["y", "z"], name="forever", body=body, num_scan_inputs=1)
    return file_of([made], {"n": np.asarray(10**12), "yes": np.asarray(True)})


def _circle_through_a_branch() -> bytes:
    branches = {
        key: _body(key, [helper.make_node("Relu", ["y"], ["v"])], ["v"]) for key in ("then_branch", "else_branch")
    }
    nodes = [helper.make_node("If", ["c"], ["a"], **branches), node("Abs", "a", "y")]
    return file_of(nodes, {"c": np.asarray(True)})


def _doubled(times: int) -> bytes:
    nodes = [node("Concat", f"v{level} v{level}", f"v{level + 1}", axis=1) for level in range(times)]
    return file_of([node("Relu", "x", "v0"), *nodes], {}, outputs=[f"v{times}"])


def _many_large_constants(count: int) -> bytes:
    nodes = [node("ConstantOfShape", "s", f"c{index}", value=_one(index)) for index in range(count)]
    sums = [node("Add", f"{'x' if not index else f'a{index - 1}'} c{index}", f"a{index}") for index in range(count)]
    shape = np.array([1 << 12, 1 << 12, 1, 1])
    return file_of([*nodes, *sums], {"s": shape}, outputs=[f"a{count - 1}"], shape=(1, 1, 1, 1))


def _many_products(count: int) -> bytes:
    """Return a graph that multiplies the same known tensors again and again, each time a little differently."""
    nodes = [
        *(node("ConstantOfShape", "s", "a"), node("ConstantOfShape", "t", "b")),
        *(node("Gemm", "a b", f"p{index}", alpha=1 + index / count) for index in range(count)),
        *(node("Add", f"{'x' if not index else f'z{index - 1}'} p{index}", f"z{index}") for index in range(count)),
    ]
    return file_of(nodes, {"s": np.array([1, 1 << 22]), "t": np.array([1 << 22, 1])}, outputs=[f"z{count - 1}"])


def _one(value: int) -> TensorProto:
    return numpy_helper.from_array(np.array([value], np.float32))


def _many_branches(count: int) -> bytes:
    nodes = []
    for index in range(count):
        read = "x" if not index else f"a{index - 1}"
        both = {
            key: _body(key, [helper.make_node("Relu", [read], ["v"])], ["v"]) for key in ("then_branch", "else_branch")
        }
        nodes.append(helper.make_node("If", ["yes"], [f"a{index}"], **both))
    return file_of(nodes, {"yes": np.asarray(True)}, outputs=[f"a{count - 1}"])


def _text_weights() -> bytes:
    model = model_of([node("Conv", "x w", "y")], {})
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.STRING, [1], [b"../../x"]))
    return bytes(model.SerializeToString())


def _sparse() -> bytes:
    model = model_of([node("Conv", "x w", "y")], {})
    model.graph.sparse_initializer.add().dims.extend([4, 3, 3, 3])
    return bytes(model.SerializeToString())


def _with_metadata(entries: int, length: int) -> bytes:
    model = model_of([node("Conv", "x gone", "y")], {"w": W})
    for index in range(entries):
        model.metadata_props.add(key=f"names{index}", value="[" * length)
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="[" * length)
    return bytes(model.SerializeToString())


BY_HAND: dict[str, tuple[Callable[[], bytes], str]] = {
    "no model": (lambda: b"GIF89a" * 50, "is a picture. An ONNX file is wanted"),
    "nothing": (lambda: b"", "The file is empty"),
    "another file": (_external, "another file"),
    "another file, of a node": (lambda: _external(in_node=True, place="/etc/shadow"), "another file"),
    "more than the file holds": (lambda: _declared(1 << 20, 1 << 20, 3, 3), "more than the file can hold"),
    "product overflows": (lambda: _declared(1 << 40, 1 << 40, 3, 3), "more than the file can hold"),
    "negative": (lambda: _declared(-4, 3, 3, 3), "negative"),
    "incomplete": (lambda: _declared(8, 3, 3, 3), "incomplete"),
    "of a type that there is not": (lambda: _declared(4, 3, 3, 3, kind=99), "“w”"),
    "text as weights": (_text_weights, "“w”"),
    "sparse": (_sparse, "sparse"),
    "circle": (lambda: file_of([node("Add", "x y", "a"), node("Relu", "a", "y")], {}), "circle"),
    "circle through a branch": (_circle_through_a_branch, "circle"),
    "computed twice": (lambda: file_of([node("Abs", "x", "y"), node("Relu", "x", "y")], {}), "Two nodes"),
    "function calls itself": (lambda: _calls(3, circle=True), "calls itself"),
    "functions multiply": (lambda: _calls(40, circle=False), "functions written out"),
    "too many nodes": (lambda: file_of([node("Relu", "x", "y", name="")] * 100_001, {}), "more than 100,000 nodes"),
    "own domain": (lambda: file_of([helper.make_node("Relu", ["x"], ["y"], domain="evil")], {}), "domain “evil”"),
    "opset 99": (lambda: _conv(opset=99), "opset 99"),
    "opset 5": (lambda: _conv(opset=5), "opset 5"),
    "declared input": (lambda: _conv(shape=(1, 3, 1 << 31, 1 << 31)), "declared with"),
    "input of a thousand axes": (lambda: _conv(shape=(1,) * 1000), "“y” \\(Conv\\) cannot be computed: Expected 3D"),
    "100,000 images": (lambda: _conv(shape=(10**5, 3, 64, 64)), "at once"),
    "10^12 by shape": (lambda: _huge(node("ConstantOfShape", "s", "z"), s=_MANY), "1.0e\\+12 elements"),
    "10^12 by expand": (lambda: _huge(node("Expand", "one s", "z"), one=np.ones(1), s=_MANY), "1.0e\\+12 elements"),
    "10^12 by range": (
        lambda: _huge(node("Range", "a b c", "z"), a=np.int64(0), b=np.int64(10**12), c=np.int64(1)), "e\\+12"),
    "10^12 by broadcasting": (
        lambda: _huge(node("ConstantOfShape", "s", "u"), node("ConstantOfShape", "t", "v"), node("Add", "u v", "z"),
                      s=np.array([10**6, 1]), t=np.array([1, 10**6])), "1.0e\\+12 elements"),
    "10^12 by tile": (lambda: file_of([node("Tile", "x s", "y")], {"s": np.array([1, 1, 10**5, 10**6])}), "elements"),
    "10^12 by resize": (
        lambda: file_of([node("Resize", "x - - s", "y")], {"s": np.array([1, 3, 10**6, 10**6])}), "elements"),
    "10^12 by scales": (
        lambda: file_of([node("Resize", "x - s", "y")], {"s": np.array([1, 1, 1e6, 1e6], np.float32)}), "elements"),
    "10^12 by pads": (lambda: file_of([node("Pad", "x s", "y")], {"s": np.array([0] * 6 + [10**6] * 2)}), "elements"),
    "10^12 by one-hot": (
        lambda: _huge(node("OneHot", "i d v", "z"), i=np.arange(9), d=np.int64(10**12), v=np.array([0.0, 1.0])),
        "9.0e\\+12 elements"),
    "10^12 by doubling": (lambda: _doubled(40), "elements"),
    "gigabytes of known numbers": (lambda: _many_large_constants(200), "known numbers"),
    "hours of known products": (lambda: _many_products(2_000), "computes with"),
    "a branch without a body": (lambda: file_of([helper.make_node("If", ["x"], ["y"])], {}), "If"),
    "loop without end": (lambda: _loop("Loop"), "“forever” \\(Loop\\)"),
    "scan": (lambda: _loop("Scan"), "“forever” \\(Scan\\)"),
    "branches 300 deep": (lambda: _messages_in_messages(900), "not an ONNX model"),
    "messages 100,000 deep": (lambda: _messages_in_messages(10**5), "not an ONNX model"),
    "length behind the end": (lambda: b"\x3a\xff\xff\xff\xff\xff\xff\xff\x7f", "not an ONNX model"),
    "integers": (lambda: file_of([node("ConvInteger", "x w", "y", name="here")], {"w": W}), "“here” \\(ConvInteger\\)"),
    "unknown": (lambda: file_of([node("Frobnicate", "x", "y", name="here")], {}), "“here” \\(Frobnicate\\)"),
    "nothing computes it": (lambda: file_of([node("Add", "x gone", "y", name="here")], {}), "“gone”"),
    "no output": (lambda: file_of([node("Relu", "x", "a")], {}), "computed by no node"),
    "brackets without end": (lambda: _with_metadata(1000, 9_000), "“gone”"),
    "groups": (lambda: _conv_with(group=10**9), "“y”|Conv"),
    "strides of 0": (lambda: _conv_with(strides=[0, 0]), "“y”|Conv"),
    "gaps of 10^12": (lambda: _conv_with(dilations=[10**12, 10**12]), "“y”|Conv"),
    "a million pads": (lambda: _conv_with(pads=[1] * 10**6), "pads"),
    "line breaks in text": (
        lambda: file_of([node("Pad", "x s", "y", mode="a\nb\x07")], {"s": np.array([0, 0, 1, 1] * 2)}), "“a b ?”"),
    "letters of an Einsum": (lambda: file_of([node("Einsum", "x", "y", equation="a" * 10**5)], {}), "“y”"),
}  # fmt: skip
"""How each is made, and what its refusal says (a regular expression)."""

RUN: dict[str, Callable[[], bytes]] = {
    "names as paths": lambda: file_of(
        [node("Conv", "x ../../etc/passwd", "y", name="/../../dev/null")], {"../../etc/passwd": W}
    ),
    "branches 30 deep": lambda: _nested_branches(28),
    "200 branches of the same names": lambda: _many_branches(200),
}
"""Files that look hostile and are not."""

_BASES = (
    *("tf2onnx: attention by einsum", "tf2onnx: resize to a computed size", "paddle2onnx: text direction"),
    *("Caffe and others: nameless and fixed to ten", "Caffe and others: upsample and crop", "quantized: static"),
    *("float16: with casts at the end", "branch on a shape", "opset 18"),
)
_EXTREMES = (-1, 0, 1, 2, 7, 255, 65_537, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, -(2**63), 10**12)
_OPERATORS = [
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "Relu", "Reshape", "Transpose", "Concat", "Split", "Slice", "Gather"),
    *("Resize", "Expand", "Tile", "Range", "Shape", "If", "ConstantOfShape", "BatchNormalization", "ReduceMean"),
    *("Softmax", "Pad", "TopK", "NonZero", "Loop", "LSTM", "Einsum", "Where", "Cast", "QuantizeLinear", "CumSum"),
    *("DequantizeLinear", "MaxPool", "AveragePool", "Unsqueeze", "Squeeze", "OneHot", "GridSample"),
]


def mutated(seed: int) -> bytes:
    """Return a sound file with a few changed bytes, or a few changed fields; each seed is another one."""
    rng = random.Random(seed)
    content = STYLES[rng.choice(_BASES)]()
    return _changed_bytes(content, rng) if seed % 2 else _changed_fields(content, rng)


def _changed_bytes(content: bytes, rng: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place, length = rng.randrange(len(found)), rng.choice((1, 2, 8, 64))
        match rng.choice((0, 0, 0, 1, 1, 1, 2, 3, 4)):
            case 0:
                found[place] = rng.randrange(256)
            case 1:
                found[place] ^= 1 << rng.randrange(8)
            case 2:
                del found[place : place + length]
            case 3:
                found[place:place] = rng.randbytes(length)
            case 4:
                found[place:place] = found[rng.randrange(len(found)) :][:length]
        if len(found) < 2:
            break
    return bytes(found[: rng.randrange(1, len(found))]) if rng.random() < 0.05 else bytes(found)


def _changed_fields(content: bytes, rng: random.Random) -> bytes:
    model = onnx.load_from_string(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        change = rng.choice(
            (_change_node, _change_node, _change_attribute, _change_attribute, _change_tensor, _change_rest)
        )
        change(model, rng)
    try:
        return bytes(model.SerializeToString())
    except (ValueError, DecodeError):  # text that is no UTF-8
        return content


def _change_node(model: ModelProto, rng: random.Random) -> None:
    nodes = model.graph.node
    each = rng.choice(nodes)
    match rng.randrange(6):
        case 0:
            each.op_type = rng.choice(_OPERATORS)
        case 1 if each.input:
            each.input[rng.randrange(len(each.input))] = rng.choice([name for other in nodes for name in other.output])
        case 2 if each.input:
            del each.input[-1]
        case 3:
            nodes.append(each)
        case 4 if len(nodes) > 1:
            nodes.remove(each)
        case 5:
            each.output.append(rng.choice(nodes).output[0])


def _change_attribute(model: ModelProto, rng: random.Random) -> None:
    found = [each for other in model.graph.node for each in other.attribute]
    if not found:
        return
    each = rng.choice(found)
    match each.type:
        case AttributeProto.INT:
            each.i = rng.choice(_EXTREMES)
        case AttributeProto.INTS if each.ints:
            each.ints[rng.randrange(len(each.ints))] = rng.choice(_EXTREMES)
        case AttributeProto.FLOAT:
            each.f = rng.choice((float("nan"), float("inf"), -1e38, 0.0))
        case AttributeProto.STRING:
            each.s = rng.randbytes(8)
        case _:
            each.name = rng.choice(("axis", "axes", "value", "to", "then_branch"))


def _change_tensor(model: ModelProto, rng: random.Random) -> None:
    tensors = [*model.graph.initializer, *(each.t for other in model.graph.node for each in other.attribute)]
    each = rng.choice(tensors)
    match rng.randrange(4):
        case 0 if each.dims:
            each.dims[rng.randrange(len(each.dims))] = rng.choice(_EXTREMES)
        case 1:
            each.data_type = rng.randrange(24)
        case 2 if each.data_type == TensorProto.INT64 and each.raw_data:
            numbers = np.frombuffer(each.raw_data, np.int64).copy()
            numbers[rng.randrange(len(numbers))] = rng.choice(_EXTREMES)
            each.raw_data = numbers.tobytes()
        case _:
            each.raw_data = each.raw_data[: rng.randrange(len(each.raw_data) + 1)]


def _change_rest(model: ModelProto, rng: random.Random) -> None:
    match rng.randrange(4):
        case 0:
            model.opset_import[0].version = rng.randrange(1, 30)
        case 1:
            dims = rng.choice(model.graph.input).type.tensor_type.shape.dim
            rng.choice(dims).dim_value = rng.choice(_EXTREMES)
        case 2:
            model.graph.output[0].name = rng.choice(model.graph.node).output[0]
        case 3:
            model.graph.input[0].type.tensor_type.elem_type = rng.randrange(24)
