"""Causes of damage by 8 bits of a tensor: one scale for values of unlike ranges, found on a few images.

The remedy is to leave the part in float. Activations of 16 bits are none: onnxruntime 1.32 has no integer kernels for
them on processors and computes in float between roundings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx
from onnx import NodeProto, numpy_helper
from torch import Tensor

from senseapp.runtimes.onnxruntime.rounding.ranges import tensors_of
from senseapp.runtimes.quantizers import RoundingCause

_IMAGES = 2  # enough to see whole parts lost; all tensors of both are held
_CURVED = {"Sigmoid": 0.25, "Softmax": 0.25, "HardSigmoid": 0.2, "Tanh": 1.0, "Exp": 1.0}
"""Operators by the most that a step of their input moves their output, for each unit."""
_NOTABLE_MOVE = 0.05  # of an output between 0 and 1, by one step
_FEW_STEPS = 4  # that the values of a channel span
_SOME_CHANNELS = 0.25  # share of the channels, from which one scale for all is named as the cause


def causes(
    network: bytes, int8: bytes, batches: Sequence[Tensor], nodes: Collection[str] | None = None
) -> list[RoundingCause]:
    """Return what speaks against rounding the tensors that ``nodes`` read and make, what is lost most first.

    Args:
        network: plain, in float.
        int8: what onnxruntime's quantizer or :class:`~senseapp.runtimes.onnxruntime.int8.Int8Writer` made of it.
        batches: images as calls take them, of which a few are looked at.
        nodes: names of those of ``network`` to look at; None for all.
    """
    graph = onnx.load_from_string(network).graph
    grids = _grids(int8)
    constants = {each.name for each in graph.initializer}
    looked_at = [node for node in graph.node if nodes is None or node.name in nodes]
    wanted = {
        name for node in looked_at for name in (*node.input, *node.output) if name not in constants and name in grids
    }
    if not wanted:
        return []
    few = [batches[0][:_IMAGES]]
    values = next(iter(tensors_of(network, few, sorted(wanted))))
    found = [cause for node in looked_at for cause in _of_node(node, values, grids)]
    worst = {cause.tensor: cause for cause in sorted(found, key=lambda each: each.lost)}
    return sorted(worst.values(), key=lambda each: -each.lost)


def _grids(int8: bytes) -> dict[str, float]:
    """Return the scale of each tensor that a QDQ file rounds as a whole."""
    graph = onnx.load_from_string(int8).graph
    constants = {each.name: each for each in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[1] in constants:
            scale = numpy_helper.to_array(constants[node.input[1]])
            if scale.size == 1:
                found[node.input[0].removesuffix("_QuantizeLinear_Input")] = float(scale.reshape(-1)[0])
    return found


def _of_node(node: NodeProto, values: dict[str, Tensor], grids: dict[str, float]) -> Iterator[RoundingCause]:
    output = node.output[0]
    if node.op_type in _CURVED and node.input[0] in grids:
        step = grids[node.input[0]]
        move = _CURVED[node.op_type] * step / 2
        if move > _NOTABLE_MOVE:
            yield RoundingCause(
                node=node.name,
                tensor=node.input[0],
                lost=min(1.0, move),
                sentence=f"“{node.input[0]}” goes into a {node.op_type} in steps of {step:.2g}, which moves its output "
                f"by up to {move:.2g}.",
            )
    if output in grids and output in values:
        yield from _of_channels(node, values[output], grids[output])


def _of_channels(node: NodeProto, values: Tensor, step: float) -> Iterator[RoundingCause]:
    """Yield a cause where channels, along the axis that torch and ONNX share, span a few steps of the tensor's."""
    if values.ndim < 3 or not values.is_floating_point():
        return
    axis = 1 if values.ndim == 4 else values.ndim - 1
    flat = values.movedim(axis, 0).flatten(1)
    widths = flat.amax(1) - flat.amin(1)
    alive = widths > 0
    few = alive & (widths < _FEW_STEPS * step)
    share = float(few.sum()) / max(1, int(alive.sum()))
    if share >= _SOME_CHANNELS and bool((~few & alive).any()):
        times = float(widths.max() / widths[alive].median())
        yield RoundingCause(
            node=node.name,
            tensor=node.output[0],
            lost=share / 2,  # a few steps are left
            sentence=f"One scale of “{node.output[0]}” leaves {int(few.sum())} of its {len(widths)} channels fewer "
            f"than {_FEW_STEPS} of 256 steps: the widest channel is {times:.0f} times as wide as the median one.",
        )
