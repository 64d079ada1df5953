"""The operator table: one function of tensors for each ONNX operator, and for each version that changed its meaning.

What is not in the table is not run: it is an allow-list. Each entry follows the ONNX operator specification. A new
operator is one function with :func:`operator` above it::

    @operator("Concat")
    def _concat(*tensors: Tensor, axis: int = 1) -> Tensor: ...

Its positional parameters are the inputs, and its keyword-only ones the attributes: their names, types and defaults.
"""

from __future__ import annotations

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
_INTEGER_ARITHMETIC = f"it computes in integers, which a float network cannot be measured through. {_FLOAT_FILE}"
_BODIES = (
    "it runs a graph of its own, conditionally or repeatedly. Export the network without that part, or with torch's "
    "newer exporter (torch.onnx.export with dynamo=True), which decides branches once."
)
_COUNTS = "how much it returns depends on the image. Choose an output before it."
_RANDOM = "it draws at random. Export the network in eval mode."
_UNKNOWN = (
    "the operator is not in the table of those that are read. Export the network without it, or with another opset "
    "version, which writes it as simpler operators."
)
REFUSED = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"), _INTEGER_ARITHMETIC),
    "DynamicQuantizeLinear": f"it chooses integer ranges anew for every image. {_FLOAT_FILE}",
    **dict.fromkeys(("If", "Loop", "Scan"), _BODIES),
    **dict.fromkeys(("NonMaxSuppression", "NonZero", "Unique", "Compress"), _COUNTS),
    **dict.fromkeys(("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"), _RANDOM),
}
"""Why an operator is not read, and what to do, as the end of a sentence and another one."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of one node, read by name and kind."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, node: Node) -> Attributes:
        """Return the attributes of ``node``."""
        return cls(node.attributes)

    def whole(self, name: str, default: int) -> int:
        """Return a whole number."""
        return int(self.values.get(name, default))

    def number(self, name: str, default: float) -> float:
        """Return a number."""
        return float(self.values.get(name, default))

    def text(self, name: str, default: str) -> str:
        """Return a word."""
        return str(self.values.get(name, default))

    def ints(self, name: str) -> list[int] | None:
        """Return whole numbers; None where the file does not set them."""
        found = self.values.get(name)
        return None if found is None else [int(each) for each in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """How one operator is computed.

    Attributes:
        function: of the inputs, and of attributes by name; it returns a tensor, or a tuple of them.
        reading: how the attributes that it takes are read, by name.
        numbers: positions of inputs that are given as (lists of) Python numbers: shapes, axes, sizes.
        scalars: positions that are given as a Python number where it is constant and has no axes, else as a tensor.
        elements: elements of the output by ``numbers``, for operators that have no input to infer them from.
    """

    function: Function
    reading: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()
    scalars: tuple[int, ...] = ()
    elements: Callable[[Mapping[int, Any]], float] = lambda _numbers: 0

    def of(self, node: Node) -> Function:
        """Return the function of the inputs of ``node`` alone."""
        whole = {"at": Attributes.of(node), "op": node.op, "num_outputs": len(node.outputs)}
        given = {name: whole[name] for name in whole.keys() & self.reading}
        given |= {name: read(node.attributes[name]) for name, read in self.reading.items() if name in node.attributes}
        return partial(self.function, **given) if given else self.function


TABLE: dict[tuple[str, int], Operator] = {}
"""Entries by operator, with its domain before it where that is not the default one, and by their first version."""
_READING: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "Sequence[int] | None": lambda values: [int(each) for each in values],
    "Sequence[float] | None": lambda values: [float(each) for each in values],
    "Tensor | None": lambda value: value,
    "Attributes": lambda value: value,
}
"""How an attribute of each type is read. A parameter ``at`` is given all attributes, ``op`` the operator's name, and
``num_outputs`` how many outputs are asked for."""


def operator(
    *names: str,
    since: int = 1,
    numbers: tuple[int, ...] = (),
    scalars: tuple[int, ...] = (),
    elements: Callable[[Mapping[int, Any]], float] = lambda _numbers: 0,
) -> Callable[[Decorated], Decorated]:
    """Enter the decorated function in the table under each of ``names``, as it is since a version of its domain."""

    def enter(function: Decorated) -> Decorated:
        parameters = inspect.signature(function).parameters.values()
        reading = {each.name: _READING[each.annotation] for each in parameters if each.kind is each.KEYWORD_ONLY}
        for name in names:
            TABLE[name, since] = Operator(
                function=function, reading=reading, numbers=numbers, scalars=scalars, elements=elements
            )
        return function

    return enter


def plain(functions: Mapping[str, Function]) -> None:
    """Enter functions that need no attributes."""
    TABLE.update({(name, 1): Operator(function=function) for name, function in functions.items()})


@cache
def entry_of(op: str, version: int) -> Operator | None:
    """Return the table's entry for an operator in a version of its domain; None without one."""
    versions = [since for name, since in TABLE if name == op and since <= version]
    return TABLE[op, max(versions)] if versions else None


NEVER_RUN = frozenset(
    {
        *("NonMaxSuppression", "NonZero", "Unique", "Compress", "StringNormalizer", "SplitToSequence"),
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"),
        *("SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceInsert", "Optional"),
    }
)
"""Operators that onnxruntime does not compute here either: they return random numbers, or no tensor of known shape."""


def operation_of(node: Node) -> Operator:
    """Return the table's entry for ``node``, or onnxruntime where the node was read to be computed by it.

    Raises UnsupportedModel, naming the node, where there is none; UnreadNode where onnxruntime may compute it.
    """
    if node.source:
        return Operator(function=InRuntime(node))
    found = entry_of(node.op, node.version)
    if found is not None:
        return found
    reason = REFUSED.get(node.op, _UNKNOWN)
    kind = UnsupportedModel if node.op in NEVER_RUN else UnreadNode
    raise kind(f"Node “{node.name}” ({node.op}) is not supported: {reason}")
