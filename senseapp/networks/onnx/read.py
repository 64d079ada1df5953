"""Bytes of an ONNX file to a protobuf message that is safe to work with: nothing is run, no other file is opened."""

import math
from collections import ChainMap, Counter
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.inliner import inline_local_functions

from senseapp.core.errors import InvalidCheckpoint, UnsupportedModel
from senseapp.networks.checkpoints.weights_file import foreign_kind, is_text
from senseapp.networks.onnx.graph import (
    DEFAULT_DOMAINS,
    OnnxGraph,
    graphs_in,
    label,
    nodes_in,
    opset_of,
    tensor_in,
    tensors_in,
)
from senseapp.networks.onnx.torch_graph import UnreadNode

_MOST_NODES = 100_000  # far above exported networks, which have some thousand; each takes time and memory to read
# operators had other meanings before; the newest that the table of operators was compared with
_OLDEST_OPSET, _NEWEST_OPSET = 7, 26
BY_CHANNEL_OPSET = 13  # the first in which QuantizeLinear has an axis
_RUNTIME_DOMAIN = "com.microsoft"
_OF_RUNTIME = (
    (
        ("QLinear", "QGemm", "Integer", "Quantize", "QAttention", "QOrdered"),
        "computes in integers, which a float network cannot be measured through. Bring the float file that this one "
        "was quantized from, or quantize it with Q/DQ nodes (QuantFormat.QDQ).",
    ),
    (("NBits", "Bnb4", "QMoE"), "stores weights in a few bits. Bring the float file that this one was quantized from."),
    (
        ("",),
        "is one of onnxruntime's own operators, which its optimisers write. Bring the file as it was before it was "
        "optimised, or export with standard ONNX operators.",
    ),
)
"""Why operators of onnxruntime with one of these words in their names are not read, as the end of a sentence."""
_FOREIGN = {
    "ai.onnx.ml": "is of the domain “ai.onnx.ml”, in which scikit-learn, LightGBM and others write models of tables. "
    "Only neural networks of images are measured.",
    **dict.fromkeys(
        ("com.microsoft.nchwc", "com.ms.internal.nhwc"),
        "is laid out for one kind of processor by onnxruntime's optimiser. Bring the file as it was before, or save it "
        "at a lower optimisation level (ORT_ENABLE_EXTENDED or below).",
    ),
    **dict.fromkeys(
        ("ai.onnx.contrib", "com.microsoft.extensions"),
        "is of onnxruntime-extensions, which decode pictures or read text around a network. Export the network without "
        "that part.",
    ),
}
"""Why nodes of other domains are not read, and what to do, as the end of a sentence."""
_HALF_TYPES = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_MOST_RUN = 10**7  # nodes run in loops for one call: some ten seconds
_ENDLESS = 1 << 63  # passes: no number of an ONNX file is as large
_SNIFFED = 4096  # bytes that tell what a file is
_FIRST_FIELD = b"\x08"  # ir_version, with which exporters begin


def read_graph(content: bytes, *, in_runtime: bool = False) -> tuple[OnnxGraph, tuple[str, ...]]:
    """Return the graph in ``content``, sorted, with functions inlined and float16 as float32, and notes on changes.

    With ``in_runtime``, operators that onnxruntime has beside the standard are read too.

    Raises:
        InvalidCheckpoint: it is not an ONNX model, or one that cannot be trusted.
        UnsupportedModel: an opset version, or operators of a domain, that cannot be read.
    """
    model = parsed_model(content)
    if model.functions:
        model = inline_local_functions(model)
        del model.functions[:]
    _check_domains(model, in_runtime=in_runtime)
    model = _checked_opset(model)
    narrow = _as_float32(model)
    notes = [f"The file computes in {each}; it is read and measured in float32." for each in sorted(narrow)]
    if "bfloat16" in narrow:
        notes.append("onnxruntime does not run bfloat16 here: for a file that runs, export the network in float32.")
    check_loops(model)
    graph = OnnxGraph(model)
    graph.sort()
    return graph, tuple(notes)


def parsed_model(content: bytes) -> ModelProto:
    """Return the model in ``content`` as it is, whatever operators it has, once its declared sizes are plausible.

    Raises:
        InvalidCheckpoint: it is not an ONNX model, has weights in other files, declares more than it holds, or becomes
            endless with its functions written out.
        UnsupportedModel: it holds sparse initializers.
    """
    try:
        model: ModelProto = ModelProto.FromString(content)
    except DecodeError as error:
        raise InvalidCheckpoint(_unlike_a_model(content)) from error
    if not model.graph.node or not model.graph.output:
        if not content or foreign_kind(content[:_SNIFFED]):
            raise InvalidCheckpoint(_unlike_a_model(content))
        raise InvalidCheckpoint(
            "The file is not an ONNX model, or one without nodes or outputs: there is nothing to run in it."
        )
    _check_nodes_and_tensors(model, len(content))
    _check_calls(model)
    return model


def _unlike_a_model(content: bytes) -> str:
    """Return the kind of a file that is no ONNX model, and a remedy."""
    head = content[:_SNIFFED]
    if not content:
        return "The file is empty (0 bytes). Export the network again."
    if kind := foreign_kind(head):
        return f"The file is {kind}. An ONNX file is wanted here."
    if head.startswith((b"PK", b"\x80")) or head[8:9] == b"{":
        return (
            "The file holds weights or an archive, not an ONNX model. Choose weights as a checkpoint, "
            "or export their network as ONNX."
        )
    if head[4:8] == b"TFL3":
        return (
            "The file is for LiteRT (TensorFlow Lite); it can be checked but not analysed. Choose the network that it "
            "was made of, as ONNX or as weights, or convert it with tf2onnx."
        )
    if is_text(head):
        return "The file is text, not an ONNX model: ONNX files are binary. Download or export it again."
    if head.startswith(_FIRST_FIELD):
        return "The file is an ONNX model that was cut short, or is damaged. Copy or export it again."
    return "The file is not an ONNX model: its bytes cannot be read as one. Export the network as ONNX."


def _check_nodes_and_tensors(model: ModelProto, size: int) -> None:
    for number, _ in enumerate(nodes_in(model)):
        if number >= _MOST_NODES:
            raise InvalidCheckpoint(
                f"The graph has more than {_MOST_NODES:,} nodes, the most that are read. Export a smaller network."
            )
    for graph in graphs_in(model):
        if graph.sparse_initializer:
            raise UnsupportedModel("The file holds sparse initializers; export it with dense weights.")
        for value in (*graph.input, *graph.output, *graph.value_info):
            elements = math.prod(max(1, dim.dim_value) for dim in value.type.tensor_type.shape.dim)
            if elements > 1 << 40:
                raise InvalidCheckpoint(
                    f"“{value.name}” is declared with {elements:.1e} elements; no network has so many."
                )
    for tensor in tensors_in(model):
        _check_tensor(tensor, size)


def _check_tensor(tensor: TensorProto, size: int) -> None:
    name = tensor.name or "a constant"
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise InvalidCheckpoint(
            f"The weights of “{name}” are in another file. Choose both files together, or a zip or folder of both; or "
            "export again with torch.onnx.export(..., external_data=False)."
        )
    if any(length < 0 for length in tensor.dims):
        raise InvalidCheckpoint(f"“{name}” has a negative length in its shape {list(tensor.dims)[:8]}.")
    elements = math.prod(tensor.dims)
    if elements > 2 * size:  # two elements a byte, as in int4, are the most that a file can hold
        raise InvalidCheckpoint(f"“{name}” is declared with {elements:.1e} elements, more than the file can hold.")


def _check_calls(model: ModelProto) -> None:
    """Refuse functions that recurse, and calls that would become more than _MOST_NODES nodes."""
    bodies = {(each.domain, each.name): Counter((n.domain, n.op_type) for n in each.node) for each in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    try:
        called = {key: calls.keys() & bodies.keys() for key, calls in bodies.items()}
        for key in TopologicalSorter(called).static_order():
            sizes[key] = min(_MOST_NODES + 1, sum(n * sizes.get(each, 1) for each, n in bodies[key].items()))
    except CycleError as error:
        name = error.args[1][0][1]
        raise InvalidCheckpoint(f"The function “{name}” of the file calls itself; such a model never ends.") from error
    if sum(sizes.get((node.domain, node.op_type), 1) for node in model.graph.node) > _MOST_NODES:
        raise InvalidCheckpoint(f"With its functions written out the graph has more than {_MOST_NODES:,} nodes.")


def _check_domains(model: ModelProto, *, in_runtime: bool) -> None:
    for node in nodes_in(model):
        if node.domain in DEFAULT_DOMAINS:
            continue
        if node.domain != _RUNTIME_DOMAIN:
            other = f"is an operator of the domain “{node.domain}”, which only its own runtime can compute. "
            reason = _FOREIGN.get(node.domain, f"{other}Export with standard ONNX operators.")
            raise UnsupportedModel(f"The {label(node)} {reason}")
        if not in_runtime:
            reason = next(reason for words, reason in _OF_RUNTIME if any(word in node.op_type for word in words))
            raise UnreadNode(f"The {label(node)} {reason}")


def _checked_opset(model: ModelProto) -> ModelProto:
    version = opset_of(model)
    if not _OLDEST_OPSET <= version <= _NEWEST_OPSET:
        raise UnsupportedModel(
            f"The file is of opset {version}; {_OLDEST_OPSET} to {_NEWEST_OPSET} can be read. "
            "Export it again with an opset version between these."
        )
    quantized = (node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear"))
    if version < BY_CHANNEL_OPSET and any(each.name == "axis" for node in quantized for each in node.attribute):
        try:
            return onnx.version_converter.convert_version(model, BY_CHANNEL_OPSET)
        except Exception as error:  # of any kind: the converter is C++ and says RuntimeError and ValueError
            raise InvalidCheckpoint(
                f"The file is quantized by channel, which needs opset 13, but is of opset {version}. "
                "Quantize it again after raising the opset."
            ) from error
    return model


def _as_float32(model: ModelProto) -> set[str]:
    """Change half-precision tensors, casts and declarations to float32, in place; return of which types there were."""
    found = set[int]()
    for tensor in tensors_in(model):
        if tensor.data_type in _HALF_TYPES:
            found.add(tensor.data_type)
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name))
    for graph in graphs_in(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in _HALF_TYPES:
                found.add(value.type.tensor_type.elem_type)
                value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in nodes_in(model):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in _HALF_TYPES:
                found.add(attribute.i)
                attribute.i = TensorProto.FLOAT
    return {name for kind, name in _HALF_TYPES.items() if kind in found}


def check_loops(model: ModelProto) -> None:
    """Refuse a model whose loops run too many nodes for one call; a few hundred bytes may ask for 10^15 passes.

    Only loops that cannot end early count, with the number of passes that the file holds; how long others run, a limit
    on time decides.

    Raises InvalidCheckpoint, whose message names the outermost such loop.
    """
    for graph in (model.graph, *model.functions):
        known = _scalars(graph, ChainMap())
        for node in graph.node:
            count = _nodes_of(node, known)
            if count > _MOST_RUN:
                runs = "never ends" if count >= _ENDLESS else f"runs {count:.1e} nodes for one call"
                raise InvalidCheckpoint(f"The {label(node)} {runs}; up to {_MOST_RUN:,} are run. Export it anew.")


def _nodes_of(node: NodeProto, known: ChainMap[str, float]) -> int:
    """Return how many nodes one run of ``node`` takes at least, with its bodies; ``known`` are scalars around it."""
    bodies = [each.g for each in node.attribute if each.type == AttributeProto.GRAPH]
    inside = [sum(_nodes_of(each, _scalars(body, known)) for each in body.node) for body in bodies]
    if node.op_type != "Loop" or not bodies:
        return 1 + max(inside, default=0)
    trips, condition = (*node.input, "", "")[:2]
    if not _goes_on(bodies[0], _scalars(bodies[0], known)) or (condition and not known.get(condition)):
        return 1 + inside[0]  # may end at any pass
    passes = _ENDLESS if not trips else int(max(0, known.get(trips, 1)))
    return 1 + passes * max(1, inside[0])


def _goes_on(body: GraphProto, known: ChainMap[str, float]) -> bool:
    """Return whether the condition that a body computes is always true, or the one that it is given."""
    sources = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    name = body.output[0].name if body.output else ""
    for _ in sources:
        name = sources.get(name, name)
    return bool(known.get(name)) or name in [each.name for each in body.input[1:2]]


def _scalars(graph: GraphProto | FunctionProto, around: ChainMap[str, float]) -> ChainMap[str, float]:
    """Return the numbers that a graph holds as constants, beside those ``around`` it."""
    held = graph.initializer if isinstance(graph, GraphProto) else ()
    constants: dict[str, TensorProto | None] = {each.name: each for each in held}
    constants |= {node.output[0]: tensor_in(node) for node in graph.node if node.op_type == "Constant" and node.output}
    found: dict[str, float] = {}
    for name, tensor in constants.items():
        if tensor is not None and len(tensor.dims) < 2 and all(length == 1 for length in tensor.dims):
            with suppress(ValueError, TypeError):  # texts, and damaged numbers, which the runtime refuses
                found[name] = float(numpy_helper.to_array(tensor).reshape(-1)[0])
    return around.new_child(found)
