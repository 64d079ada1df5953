"""Times of kernels by OpenVINO's own profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from senseapp.compat.openvino_internals import ExecutedNode, executed_nodes
from senseapp.core.process import quiet
from senseapp.runtimes.onnxruntime.bench import RUNS, Kernel, Profiler, usual_input
from senseapp.runtimes.openvino.runtime import OpenVinoModel, compiled, machine, read

_KINDS = {"Convolution": "Conv", "GroupConvolution": "Conv", "FullyConnected": "Gemm"}
_MICROSECOND = 1e-6  # in which OpenVINO counts, in seconds
_BORDER = ("QuantizeLinear", "DequantizeLinear")


def executed_seconds(content: bytes, threads: int, batch: int) -> dict[str, tuple[ExecutedNode, float]]:
    """Return the executed nodes of a network, each with its seconds, in order, by name.

    The network runs a few times on :func:`~senseapp.runtimes.onnxruntime.bench.usual_input`.
    """
    network = read(content)
    feeds = [_some(each, batch) for each in network.inputs]
    network = compiled(network, *(each.shape for each in feeds), threads=threads, profiled=True)
    request = network.create_infer_request()
    averages: dict[str, list[float]] = {}
    with quiet():
        for _ in range(RUNS):
            request.infer(feeds, share_inputs=True)
            for each in request.get_profiling_info():
                averages.setdefault(each.node_name, []).append(each.real_time.total_seconds())
    nodes = executed_nodes(network)
    return {each.name: (each, undisturbed(averages[each.name])) for each in nodes if each.name in averages}


def _kernels(content: bytes, threads: int, batch: int) -> list[Kernel]:
    """Return the kernels of a network: nodes that OpenVINO fuses are one kernel, named by the first of them."""
    found = executed_seconds(content, threads, batch).values()
    return [Kernel(_name(each), _kind(each), seconds, each.values) for each, seconds in found]


def undisturbed(averages: Sequence[float]) -> float:
    """Return the mean seconds of a kernel from the averages over all runs so far that OpenVINO has after each run.

    The first run, and those that took more than twice as long as the median run, are left out. An average is cut to
    whole microseconds, so a single run is known to as many microseconds as there were runs, and their mean to one.
    """
    totals = np.arange(1, len(averages) + 1) * np.array(averages)
    runs = np.diff(totals)
    kept = runs <= 2 * np.median(runs) + _MICROSECOND * len(averages)
    return max(0.0, float(runs[kept].mean()))


def _name(node: ExecutedNode) -> str:
    return node.parts[0] if node.parts else node.name


def _kind(node: ExecutedNode) -> str:
    """Return the kind of an executed node in the words of ONNX, where it is a product or rounds to integers only."""
    if node.kind in _KINDS:
        return _KINDS[node.kind]
    border = next((kind for kind in _BORDER if node.parts and node.parts[-1].endswith(f"_{kind}")), None)
    return border or node.kind


def _some(port: Any, batch: int) -> NDArray[Any]:
    shape = [size.get_length() if size.is_static else batch for size in port.partial_shape]
    kind = np.dtype(port.element_type.to_dtype())
    return usual_input(shape, kind)


PROFILER = Profiler(
    kernels=_kernels, open=lambda content, threads: OpenVinoModel(content, threads=threads), machine=machine
)
"""OpenVINO's."""
