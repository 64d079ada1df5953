"""The operator table: from an ONNX operator's attributes to a function of tensors.

What is not in the table is not run: it is an allow-list. Each entry follows the ONNX operator specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.operators.in_runtime import InRuntime
from senseapp.networks.onnx.torch_graph import Node, UnreadNode

Function = Callable[..., Any]


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
    """Attributes of one node, read by name and kind; ``version`` is the opset's, ``outputs`` how many are asked for."""

    values: Mapping[str, Any]
    version: int
    outputs: int
    op: str

    @classmethod
    def of(cls, node: Node) -> Attributes:
        """Return the attributes of ``node``."""
        return cls(node.attributes, node.version, len(node.outputs), node.op)

    def has(self, name: str) -> bool:
        """Return whether the file sets ``name``."""
        return name in self.values

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

    def floats(self, name: str) -> list[float] | None:
        """Return numbers; None where the file does not set them."""
        found = self.values.get(name)
        return None if found is None else [float(each) for each in found]


Make = Callable[[Attributes], Function]
Elements = Callable[[Attributes, Mapping[int, Any]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """How one operator is computed.

    Attributes:
        make: from attributes to a function of the inputs; it returns a tensor, or a tuple of them.
        numbers: positions of inputs that are given as (lists of) Python numbers: shapes, axes, sizes.
        scalars: positions that are given as a Python number where it is constant and has no axes, else as a tensor.
        elements: elements of the output, for operators that have no input to infer them from.
    """

    make: Make
    numbers: tuple[int, ...] = ()
    scalars: tuple[int, ...] = ()
    elements: Elements = lambda _attributes, _numbers: 0


TABLE: dict[str, Operator] = {}


def operator(
    *names: str, numbers: tuple[int, ...] = (), scalars: tuple[int, ...] = (), elements: Elements | None = None
) -> Callable[[Make], Make]:
    """Enter the decorated ``make`` in the table under each of ``names``."""

    def enter(make: Make) -> Make:
        for name in names:
            entry = Operator(make=make, numbers=numbers, scalars=scalars)
            TABLE[name] = entry if elements is None else Operator(make=make, numbers=numbers, elements=elements)
        return make

    return enter


def plain(functions: Mapping[str, Function]) -> None:
    """Enter functions that need no attributes."""
    for name, function in functions.items():
        TABLE[name] = Operator(make=_Always(function))


@dataclass(frozen=True, slots=True)
class _Always:
    function: Function

    def __call__(self, _attributes: Attributes) -> Function:
        return self.function


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
        return Operator(make=_Always(InRuntime(node)))
    found = TABLE.get(node.op)
    if found is not None:
        return found
    reason = REFUSED.get(node.op, _UNKNOWN)
    kind = UnsupportedModel if node.op in NEVER_RUN else UnreadNode
    raise kind(f"Node “{node.name}” ({node.op}) is not supported: {reason}")
