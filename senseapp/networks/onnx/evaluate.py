"""Run one node of a graph on tensors, after a run on the meta device that checks its size without memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint, SenseError, UnsupportedModel, first_line_of
from senseapp.networks.onnx.operators import FormNotRead, operation_of
from senseapp.networks.onnx.torch_graph import Node

LARGEST = 1 << 31  # elements of one value, for one batch that is looked at
_SAME_SHAPE = frozenset(
    {
        *("Relu", "Sigmoid", "HardSwish", "HardSigmoid", "Clip", "Tanh", "Erf", "Gelu", "LeakyRelu", "Softmax", "Sqrt"),
        *("BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization", "Mish", "Elu"),
    }
)
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
Value = Tensor | None


class DoesNotFit(UnsupportedModel):
    """An operator cannot take values of these shapes and types; the message names the node."""


class TooLarge(InvalidCheckpoint):
    """A value has more elements than may be computed."""


def evaluate(node: Node, values: Sequence[Value], *, most: int = LARGEST) -> tuple[Any, ...]:
    """Return the outputs of ``node`` for ``values``; on the meta device where a value is.

    Raises:
        TooLarge: an output would have more than ``most`` elements.
        InvalidCheckpoint: it would have more than ``LARGEST``, which is the file's fault.
        UnsupportedModel: the table has no such operator or form of it; the message names the node.
        DoesNotFit: it fails on these values.
    """
    operator = operation_of(node)
    if node.op == "CastLike":  # of its second input only the type counts, which is always known
        values = [values[0], *(torch.empty(0, dtype=each.dtype) for each in values[1:] if each is not None)]
    numbers = {index: _numbers(node, values[index]) for index in operator.numbers if index < len(values)}
    _check_size(node, operator.elements(numbers), most)
    inputs = [numbers.get(index, value) for index, value in enumerate(values)]
    for index in operator.scalars:
        if index < len(values) and is_scalar(values[index]):
            inputs[index] = values[index].item()  # type: ignore[union-attr]
    tensors = [each for index, each in enumerate(values) if index not in numbers and each is not None]
    known = all(not each.is_meta for each in tensors)
    quick = None if known else _shape_alone(node, values)
    if quick is not None:
        _check_size(node, quick.numel(), most)
        return (quick,)
    try:
        function = operator.of(node)
        with torch.no_grad():
            if tensors:
                outputs = _run(function, [each.to("meta") if isinstance(each, Tensor) else each for each in inputs])
                for output in outputs:
                    if isinstance(output, Tensor):
                        _check_size(node, output.numel(), most)
                if not known:
                    return outputs
            return _run(function, inputs)
    except FormNotRead as error:
        raise UnsupportedModel(f"Node “{node.name}” ({node.op}) is not supported: {error}") from error
    except SenseError:
        raise
    except Exception as error:  # torch says what does not fit in errors of many kinds
        raise DoesNotFit(f"Node “{node.name}” ({node.op}) cannot be computed: {first_line_of(error)}.") from error


def _shape_alone(node: Node, values: Sequence[Value]) -> Tensor | None:
    """Return the output of frequent operators whose shape is plain: torch's own way on the meta device takes longer."""
    first = values[0]
    if first is None or len(node.outputs) > 1 or not first.is_floating_point():
        return None
    shape: Sequence[int] | None = first.shape if node.op in _SAME_SHAPE and first.is_meta else None
    if node.op in _ARITHMETIC and len(values) == 2:
        second = values[1]
        alike = second is not None and second.dtype == first.dtype
        shape = _broadcast(first.shape, second.shape) if alike and second is not None else None
    return None if shape is None else torch.empty(tuple(shape), dtype=first.dtype, device="meta")


def _broadcast(one: Sequence[int], other: Sequence[int]) -> Sequence[int] | None:
    """Return the shape that both are brought to; None where they do not fit, which torch explains."""
    short, long = sorted((tuple(one), tuple(other)), key=len)
    pairs = list(zip((1,) * (len(long) - len(short)) + short, long, strict=True))
    return [b if a == 1 else a for a, b in pairs] if all(a == b or 1 in (a, b) for a, b in pairs) else None


def _run(function: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
    result = function(*inputs)
    return result if isinstance(result, tuple) else (result,)


def _numbers(node: Node, value: Value) -> Any:
    if value is None:
        return None
    if value.is_meta:
        raise UnsupportedModel(
            f"Node “{node.name}” ({node.op}) depends on numbers that differ from image to image, which is not read."
        )
    if value.numel() > 1 << 16:
        raise InvalidCheckpoint(f"Node “{node.name}” ({node.op}) has a shape of {value.numel():,} numbers.")
    return value.tolist()


def _check_size(node: Node, elements: float, most: int) -> None:
    if elements > most:
        sentence = f"Node “{node.name}” ({node.op}) would compute {elements:.1e} elements"
        if elements > LARGEST:
            raise InvalidCheckpoint(f"{sentence}, more than fit in memory; the file is damaged or made to be.")
        raise TooLarge(f"{sentence}.")


def is_scalar(value: Value) -> bool:
    """Return whether ``value`` is one known number without axes."""
    return value is not None and not value.is_meta and value.ndim == 0
