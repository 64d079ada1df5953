"""The operator table: one function of tensors for each ONNX operator, and for each version that changed its meaning.

What is not in the table is not run: it is an allow-list. Each entry follows the ONNX operator specification. A new
operator is one line of a dictionary given to :func:`enter`, or one function with :func:`operator` above it::

    @operator("Concat")
    def _concat(*tensors: Tensor, axis: int = 1) -> Tensor: ...

Its positional parameters are the inputs, its keyword-only ones the attributes, read as the types of their defaults. A
parameter ``at`` is given all attributes, and ``num_outputs`` how many outputs are asked for. Numbers and scalars that
older versions have as attributes are given to the input of that name.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.operators.in_runtime import InRuntime
from senseapp.networks.onnx.torch_graph import Node, UnreadNode

Function = Callable[..., Any]
Decorated = TypeVar("Decorated", bound=Function)


class FormNotRead(UnsupportedModel):
    """A form of an operator that is not read; the message ends a sentence that begins with its node."""


_FLOAT_FILE = "Bring the float file that this one was quantized from."
_UNKNOWN = (
    "the operator is not in the table of those that are read. Export the network without it, or with another opset "
    "version, which writes it as simpler operators."
)
_OF_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
_OF_COUNTS = ("NonMaxSuppression", "NonZero", "Unique", "Compress")
_REFUSED = {
    **dict.fromkeys(
        ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"),
        f"it computes in integers, which a float network cannot be measured through. {_FLOAT_FILE}",
    ),
    "DynamicQuantizeLinear": f"it chooses integer ranges anew for every image. {_FLOAT_FILE}",
    **dict.fromkeys(
        ("If", "Loop", "Scan"),
        "it runs a graph of its own, conditionally or repeatedly. Export the network without that part, or with "
        "torch's newer exporter (torch.onnx.export with dynamo=True), which decides branches once.",
    ),
    **dict.fromkeys(_OF_COUNTS, "how much it returns depends on the image. Choose an output before it."),
    **dict.fromkeys(_OF_RANDOM, "it draws at random. Export the network in eval mode."),
}
"""Why an operator is not read, and what to do, as the end of a sentence and another one."""
NEVER_RUN = frozenset(
    {
        *(*_OF_COUNTS, *_OF_RANDOM, "Bernoulli", "Multinomial", "StringNormalizer", "SplitToSequence"),
        *("SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceInsert", "Optional"),
    }
)
"""Operators that onnxruntime does not compute here either: they return random numbers, or no tensor of known shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """How one operator is computed.

    Attributes:
        function: of the inputs, and of attributes by name; it returns a tensor, or a tuple of them.
        reading: how the attributes that it takes are read, by name.
        numbers: positions of inputs that are given as (lists of) Python numbers: shapes, axes, sizes.
        scalars: positions that are given as a Python number where it is constant and has no axes, else as a tensor.
        elements: elements of the output by ``numbers``, for operators that have no input to infer them from.
        lacks: why a form of a node is not read, as the end of a sentence and another one; empty where it is.
    """

    function: Function
    reading: Mapping[str, Function] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()
    scalars: tuple[int, ...] = ()
    elements: Callable[[Mapping[int, Any]], float] | None = None
    lacks: Callable[[Node], str] = lambda _node: ""

    def of(self, node: Node) -> Function:
        """Return the function of the inputs of ``node`` alone."""
        found = {**node.attributes, "at": node.attributes, "num_outputs": len(node.outputs)}
        given = {name: read(found[name]) for name, read in self.reading.items() if name in found}
        return partial(self.function, **given) if given else self.function


TABLE: dict[tuple[str, int], Operator] = {}
"""Entries by operator, with its domain before it where that is not the default one, and by their first version."""


def operator(*names: str, since: int = 1, **how: Any) -> Callable[[Decorated], Decorated]:
    """Enter the decorated function in the table under each of ``names``, as it is since a version of its domain.

    ``how`` are further attributes of :class:`Operator`.
    """

    def put(function: Decorated) -> Decorated:
        numbers = (*how.get("numbers", ()), *how.get("scalars", ()))
        entry = Operator(function=function, reading=_reading_of(function, numbers), **how)
        TABLE.update({(name, since): entry for name in names})
        return function

    return put


def enter(functions: Mapping[str, Function], **how: Any) -> None:
    """Enter functions by the names of their operators, as :func:`operator` does."""
    for name, function in functions.items():
        operator(name, **how)(function)


def _reading_of(function: Function, numbers: tuple[int, ...]) -> dict[str, Function]:
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except ValueError:  # torch's own functions have no signature; they take tensors alone here
        return {}
    named = [each for place, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY or place in numbers]
    kinds = {each.name: type(each.default) for each in named}
    return {name: kind if kind in (int, float, str, bool) else lambda value: value for name, kind in kinds.items()}


@cache
def entry_of(op: str, version: int) -> Operator | None:
    """Return the table's entry for an operator in a version of its domain; None without one."""
    versions = [since for name, since in TABLE if name == op and since <= version]
    return TABLE[op, max(versions)] if versions else None


def operation_of(node: Node) -> Operator:
    """Return the table's entry for ``node``, or onnxruntime where the node was read to be computed by it.

    Raises UnsupportedModel, naming the node, where there is none; UnreadNode where onnxruntime may compute it.
    """
    if node.source:
        return Operator(function=InRuntime(node))
    found = entry_of(node.op, node.version)
    reason = _REFUSED.get(node.op, _UNKNOWN) if found is None else found.lacks(node)
    if found is not None and not reason:
        return found
    kind = UnsupportedModel if node.op in NEVER_RUN else UnreadNode
    raise kind(f"Node {node.title} is not supported: {reason}")


def is_read(node: Node) -> bool:
    """Return whether the table computes ``node``."""
    found = entry_of(node.op, node.version)
    return found is not None and not found.lacks(node)
