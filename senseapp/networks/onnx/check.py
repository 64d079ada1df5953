"""Comparison of a network with onnxruntime's results of the file, and the first node at which they differ."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint, UnsupportedModel, first_line_of, is_about_memory
from senseapp.networks.onnx.graph import Array, OnnxGraph, label
from senseapp.networks.onnx.infer import input_shapes
from senseapp.networks.onnx.modules import OnnxNetwork
from senseapp.networks.onnx.operators.elementwise import dtype_of
from senseapp.networks.onnx.operators.in_runtime import open_session
from senseapp.networks.onnx.torch_graph import TorchGraph

_TOLERANCE = 1e-5  # of the largest number of an output
TOLERANCE_OF_ROUNDED = 2e-2  # where numbers are rounded on the way, which the last bit of a sum decides
_ROUNDING = frozenset({"QuantizeLinear", "Round", "ConvInteger", "MatMulInteger"})
_SMALLEST_SCALE = 0.05  # of an output: onnxruntime approximates a sigmoid to 2⁻²¹, also where all of it is smaller
_CANNOT_RUN = "onnxruntime cannot run the file"


class Differs(UnsupportedModel):
    """The network computes other numbers than onnxruntime does from the file."""


def check(
    network: OnnxNetwork, graph: OnnxGraph, inputs: Mapping[str, Tensor], *, batch: int, tolerance: float = _TOLERANCE
) -> float:
    """Return the largest relative difference between outputs of ``network`` and of onnxruntime.

    ``graph`` is that of the file, which onnxruntime runs on ``batch`` images at once; ``inputs``, by name, are for any
    number of images, and ``tolerance`` is relative to the largest number of each output.

    Raises:
        Differs: they differ by more, and not only because the network amplifies rounding: a step gives other numbers
            than onnxruntime does for the same input. The message names the first such node.
        InvalidCheckpoint: onnxruntime cannot open or run the file.
    """
    names = network.output_names
    with torch.no_grad():
        try:
            outputs = network(*[inputs[name] for name in network.input_names])
        except RuntimeError as error:  # of torch, where shapes that the graph was read with do not hold
            if is_about_memory(error):
                raise
            raise Differs(f"The file's network cannot be run as it is read: {first_line_of(error)}.") from error
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    theirs = _by_onnxruntime(graph, names, inputs, batch=batch)
    worst = max(_difference(mine, theirs[name]) for mine, name in zip(outputs, names, strict=True))
    if worst <= tolerance:
        return worst
    node = graph.maker(first_unlike(network, graph, inputs, batch=batch, tolerance=tolerance))
    if node is None and math.isfinite(worst):
        return worst
    named = "" if node is None else f", first at {label(node)}"
    raise Differs(f"The file's network gives other numbers than onnxruntime does ({worst:.1g} of the largest){named}.")


def sample_inputs(graph: TorchGraph, batch: int, size: tuple[int, int]) -> dict[str, Tensor]:
    """Return random values for every input of ``graph``: for ``batch`` images, of ``size`` where the file is free."""
    generator = torch.Generator().manual_seed(0)
    shapes, inputs = input_shapes(graph, batch, size), {}
    for each in graph.inputs:
        shape, dtype = shapes[each.name], dtype_of(each.element_type)
        if dtype.is_floating_point:
            inputs[each.name] = torch.rand(shape, generator=generator, dtype=dtype)
        else:
            # Bytes of images; other whole numbers are masks, kinds or places in a table, which may be as short as two.
            most = 256 if len(shape) == 4 and dtype != torch.bool else 2
            inputs[each.name] = torch.randint(0, most, shape, generator=generator).to(dtype)
    return inputs


def tolerance_of(graph: TorchGraph, *, exact: float = _TOLERANCE) -> float:
    """Return the tolerance for ``graph``: ``exact`` unless the last bit of a sum can move a value by a whole step."""
    return TOLERANCE_OF_ROUNDED if any(node.op in _ROUNDING or "Quant" in node.op for node in graph.nodes) else exact


def _difference(mine: Tensor, theirs: Array) -> float:
    """Return the largest difference relative to the largest number, or to a scale that small numbers share."""
    if tuple(mine.shape) != theirs.shape:
        return float("inf")
    ours, known = mine.detach().double().cpu().numpy(), theirs.astype(np.float64)
    largest = np.abs(known[np.isfinite(known)]).max(initial=_SMALLEST_SCALE)
    with np.errstate(invalid="ignore"):
        apart = np.where((ours == known) | (np.isnan(ours) & np.isnan(known)), 0.0, np.abs(ours - known))
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0) / largest)


def _by_onnxruntime(
    graph: OnnxGraph, names: Sequence[str], inputs: Mapping[str, Tensor], *, batch: int
) -> dict[str, Array]:
    """Return values that onnxruntime computes node by node, ``batch`` images a run, joined along the first axis."""
    try:
        session = open_session(graph.part(names).content(), optimised=False)
        wanted = {each.name: inputs[each.name].numpy() for each in session.get_inputs()}
        count, parts = max(map(len, wanted.values())), []
        for first in range(0, count, batch):
            feed = {
                name: value[first : first + batch] if len(value) == count else value for name, value in wanted.items()
            }
            parts.append(session.run(list(names), feed))
    except Exception as error:  # onnxruntime's own errors share no base
        raise InvalidCheckpoint(_why_not(graph, str(error)) or f"{_CANNOT_RUN}: {first_line_of(error)}.") from error
    joined = (
        each[0] if len(each) == 1 or not each[0].ndim else np.concatenate(each) for each in zip(*parts, strict=True)
    )
    return dict(zip(names, joined, strict=True))


def _why_not(graph: OnnxGraph, said: str) -> str:
    """Return a sentence for a file that onnxruntime refuses for what a user can change; empty for others."""
    newest = re.search(r"max supported IR version: (\d+)", said)
    if newest is not None:
        return (
            f"The file is of IR version {graph.model.ir_version}, and onnxruntime {onnxruntime.__version__} reads up "
            f"to {newest[1]}. Set model.ir_version = {newest[1]} and save it again, or use a newer onnxruntime."
        )
    values = [each.type.tensor_type.elem_type for each in graph.model.graph.input]
    if TensorProto.DOUBLE in values and "NOT_IMPLEMENTED" in said:
        return f"{_CANNOT_RUN}: it computes in float64. Export the network in float32, after model.float()."
    return ""


def first_unlike(
    network: OnnxNetwork, graph: OnnxGraph, inputs: Mapping[str, Tensor], *, batch: int, tolerance: float
) -> str:
    """Return the first value that a step computes differently from the values that onnxruntime computes before it.

    Empty where there is none: outputs that differ all the same are rounding, which the network amplifies. Arguments are
    those of :func:`check`.
    """
    named_outputs = {name for node in graph.nodes for name in node.output if name}
    is_one_run = max(map(len, inputs.values())) <= batch  # else values that are not one per image are joined wrongly
    values: dict[str, Any] = {name: inputs[name] for name in network.input_names}
    values |= {each.name: getattr(each.holder, each.attribute) for each in network.stored}
    for first in range(0, len(network.steps), 64):
        steps = network.steps[first : first + 64]
        names = [name for step in steps for name in step.outputs if name in named_outputs]
        theirs = _by_onnxruntime(graph, names, inputs, batch=batch) if names else {}
        for step in steps:
            with torch.no_grad():
                results = step.run(values)
            for name, mine in zip(step.outputs, results, strict=False):
                other = theirs.get(name)
                if other is not None and (is_one_run or other.shape == tuple(mine.shape)):
                    if _difference(mine, other) > tolerance:
                        return name
                    mine = torch.from_numpy(other).to(mine.dtype)
                values[name] = mine
            for name in step.done:
                values.pop(name, None)
    return ""
