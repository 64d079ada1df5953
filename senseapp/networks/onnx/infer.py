"""Values of a graph, computed node by node: shapes and known numbers of every value for one batch, without running it.

A graph is computed on the meta device, where tensors have shapes and no memory. What follows from shapes alone, such as
the target of a Reshape, is a real tensor, and bounded in size and in time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint, SenseError, UnsupportedModel, first_line_of
from senseapp.networks.onnx.operators import FormNotRead, operation_of
from senseapp.networks.onnx.operators.elementwise import dtype_of
from senseapp.networks.onnx.torch_graph import GraphInput, Node, TorchGraph
from senseapp.records.inputs import OTHER_SIZES, USUAL_SIZES

Value = Tensor | None
Values = dict[str, Tensor]
Facts = Sequence[tuple[int, Values]]
"""Values of a graph for one or more numbers of images, each with that number."""
_LARGEST = 1 << 31  # elements of one value, for one batch that is looked at
_KNOWN = 1 << 27  # elements of all values that are known before anything runs, but for the file's own
_WORK = 1 << 31  # elements that are read to compute them; some seconds
LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that are layers where they multiply by a tensor of the file."""
_PRODUCTS = frozenset({"MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN"})


class DoesNotFit(UnsupportedModel):
    """An operator cannot take values of these shapes and types; the message names the node."""


class TooLarge(InvalidCheckpoint):
    """A value has more elements than may be computed."""


def evaluate(node: Node, values: Sequence[Value], *, most: int = _LARGEST) -> tuple[Any, ...]:
    """Return the outputs of ``node`` for ``values``; on the meta device where a value is.

    Raises:
        TooLarge: an output would have more than ``most`` elements.
        InvalidCheckpoint: it would have more than any memory holds, which is the file's fault.
        UnsupportedModel: the table has no such operator or form of it; the message names the node.
        DoesNotFit: it fails on these values.
    """
    operator = operation_of(node)
    if node.op == "CastLike":  # of its second input only the type counts, which is always known
        values = [values[0], *(torch.empty(0, dtype=each.dtype) for each in values[1:] if each is not None)]
    numbers = {index: _numbers(node, values[index]) for index in operator.numbers if index < len(values)}
    if operator.elements is not None:
        _check_size(node, operator.elements(numbers), most)
    inputs = [numbers.get(index, value) for index, value in enumerate(values)]
    for index in operator.scalars:
        if index < len(values) and is_scalar(values[index]):
            inputs[index] = values[index].item()  # type: ignore[union-attr]
    tensors = [each for index, each in enumerate(values) if index not in numbers and each is not None]
    try:
        function = operator.of(node)
        with torch.no_grad():
            if tensors:  # first on the meta device, which checks sizes without memory
                outputs = _run(function, [each.to("meta") if isinstance(each, Tensor) else each for each in inputs])
                for output in outputs:
                    if isinstance(output, Tensor):
                        _check_size(node, output.numel(), most)
                if any(each.is_meta for each in tensors):
                    return outputs
            return _run(function, inputs)
    except FormNotRead as error:
        raise UnsupportedModel(f"Node {node.title} is not supported: {error}") from error
    except SenseError:
        raise
    except Exception as error:  # torch says what does not fit in errors of many kinds
        raise DoesNotFit(f"Node {node.title} cannot be computed: {first_line_of(error)}.") from error


def _run(function: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    result = function(*inputs)
    return result if isinstance(result, tuple) else (result,)


def _numbers(node: Node, value: Value) -> Any:
    if value is None:
        return None
    if value.is_meta:
        raise UnsupportedModel(
            f"Node {node.title} depends on numbers that differ from image to image, which is not read."
        )
    if value.numel() > 1 << 16:
        raise InvalidCheckpoint(f"Node {node.title} has a shape of {value.numel():,} numbers.")
    return value.tolist()


def _check_size(node: Node, elements: float, most: int) -> None:
    if elements > most:
        sentence = f"Node {node.title} would compute {elements:.1e} elements"
        if elements > _LARGEST:
            raise InvalidCheckpoint(f"{sentence}, more than fit in memory; the file is damaged or made to be.")
        raise TooLarge(f"{sentence}.")


def is_scalar(value: Value) -> bool:
    """Return whether ``value`` is one known number without axes."""
    return value is not None and not value.is_meta and value.ndim == 0


@dataclass(slots=True)
class Folding:
    """What computing the values of a graph has taken that no image changes: their elements, and elements read."""

    known: int = 0
    work: float = 0.0

    def spend(self, node: Node, operands: Sequence[Value]) -> None:
        """Add what ``node`` reads; raises InvalidCheckpoint where that is out of proportion."""
        read = [each for each in operands if each is not None]
        if not any(each.is_meta for each in read):
            # Sixteen multiply-accumulates take the time of reading one element.
            self.work += sum(each.numel() for each in read) + _products(node, read) / 16
            self._check(node, f"computes with {self.work:.1e} numbers", self.work > _WORK)

    def keep(self, node: Node, results: Iterable[object]) -> None:
        """Add what ``node`` has computed; raises InvalidCheckpoint where that is larger than any memory."""
        self.known += sum(each.numel() for each in results if isinstance(each, Tensor) and not each.is_meta)
        self._check(node, f"computes {self.known:.1e} known numbers", self.known > _KNOWN)

    def _check(self, node: Node, what: str, is_too_much: bool) -> None:
        if is_too_much:
            raise InvalidCheckpoint(
                f"Up to node {node.title} the graph {what} that no image changes, more than any network needs."
            )


def _products(node: Node, operands: Sequence[Tensor]) -> int:
    """Return about how many multiply-accumulates a product of known tensors takes, at most."""
    if len(operands) < 2 or node.op not in _PRODUCTS:
        return 0
    one, other = operands[:2]
    if "Conv" in node.op:
        shared = list(other.shape[1:2])
    elif node.op == "Einsum":
        shared = sorted(set(one.shape) & set(other.shape))[-1:]
    else:
        shared = list(one.shape[:1] if node.attributes.get("transA") else one.shape[-1:])
    products: int = one.numel() * other.numel() // max([1, *shared])
    return products


def start(graph: TorchGraph, shapes: Mapping[str, tuple[int, ...]]) -> Values:
    """Return the values before the first node: constants, and inputs of ``shapes`` on the meta device."""
    values = {name: each.value for name, each in graph.constants.items()}
    for node in graph.nodes:  # what layers compute is not known, also of constants: their weights are compressed
        for name in node.inputs[1:2]:
            if node.op in LAYERS and name in graph.constants:
                values[name] = values[name].to("meta")
    for each in graph.inputs:
        values[each.name] = torch.empty(shapes[each.name], dtype=dtype_of(each.element_type), device="meta")
    return values


def advance(nodes: Iterable[Node], values: Values, folding: Folding) -> None:
    """Add to ``values`` what ``nodes``, in topological order, compute; ``folding`` is what known values have taken.

    Raises:
        UnsupportedModel: an operator that is not read, or that cannot take its inputs; the message names the node.
        InvalidCheckpoint: nothing computes an input, or values are larger than any memory, or take longer than any
            network needs.
    """
    for node in nodes:
        missing = next((name for name in node.inputs if name and name not in values), None)
        if missing is not None:
            raise InvalidCheckpoint(f"Node {node.title} reads “{missing}”, which nothing in the file computes.")
        operands = [values[name] if name else None for name in node.inputs]
        folding.spend(node, operands)
        results = evaluate(node, operands)
        values.update({name: each for name, each in zip(node.outputs, results, strict=False) if name})
        folding.keep(node, results)


def infer(graph: TorchGraph, shapes: Mapping[str, tuple[int, ...]]) -> Values:
    """Return every value of ``graph`` for inputs of ``shapes``: on the meta device, or real where it is known.

    Raises what :func:`advance` does.
    """
    values = start(graph, shapes)
    advance(graph.nodes, values, Folding())
    absent = next((name for name in graph.outputs if name not in values), None)
    if absent is not None:
        raise InvalidCheckpoint(f"The output “{absent}” is computed by no node of the file.")
    return values


def main_input(graph: TorchGraph) -> GraphInput:
    """Return the input of images: the first with four axes, else the first."""
    if not graph.inputs:
        raise UnsupportedModel("The file has no input: its network computes the same for every image.")
    found = max(graph.inputs, key=lambda each: len(each.shape) == 4)
    if len(found.shape) < 2:
        raise UnsupportedModel(
            f"The input “{found.name}” has no shape in the file; export it with the shape of a batch."
        )
    return found


def batch_of(graph: TorchGraph) -> int | None:
    """Return the number of images that the file declares; None where it is free."""
    return main_input(graph).shape[0]


def input_shapes(graph: TorchGraph, batch: int, size: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Return shapes of all inputs for ``batch`` images of ``size`` (height, width), where the file leaves them free."""
    declared = batch_of(graph)
    shapes = {}
    for each in graph.inputs:
        lengths = list(each.shape)
        free = iter((*size, 1, 1, 1))
        channels_last = len(lengths) == 4 and lengths[1] is None and lengths[3] in (1, 3, 4)
        for axis, length in enumerate(lengths):
            if axis == 0:
                lengths[0] = batch if length is None or length == declared else length
            elif length is None:
                is_channels = axis == 1 and len(lengths) == 4 and not channels_last
                lengths[axis] = _channels(graph) if is_channels else next(free)
        shapes[each.name] = tuple(length or 1 for length in lengths)
    return shapes


def _channels(graph: TorchGraph) -> int:
    """Return how many channels the first convolution takes; 3 without one."""
    for node in graph.nodes:
        weight = graph.constants.get(node.inputs[1]) if node.op == "Conv" else None
        if weight is not None and weight.value.ndim > 1:
            return int(weight.value.shape[1]) * int(node.attributes.get("group", 1))
    return 3


def working_size(graph: TorchGraph, usual_side: int | None = None) -> tuple[int, int]:
    """Return a (height, width) that the graph takes where it leaves lengths free: the first usual one that fits.

    ``usual_side`` is tried before all others.

    Raises UnsupportedModel where none fits, with what the graph says of the most usual size; and as :func:`infer`.
    """
    if all(None not in each.shape[1:] for each in graph.inputs):
        return 1, 1  # is not used
    batch = batch_of(graph) or 1
    first: DoesNotFit | None = None
    sides = [*USUAL_SIZES, *(OTHER_SIZES if len(graph.nodes) <= 5000 else ())]  # each is a pass over the graph
    sides = sides if usual_side is None else [usual_side, *sides]
    for length in sides:
        try:
            infer(graph, input_shapes(graph, batch, (length, length)))
        except DoesNotFit as error:
            first = first or error
        else:
            return length, length
    assert first is not None
    raise UnsupportedModel(
        f"The file leaves the size of images free, and none of the usual ones fits. Give the height and width of its "
        f"images (img_size). For {sides[0]} × {sides[0]}: {first}"
    ) from first
