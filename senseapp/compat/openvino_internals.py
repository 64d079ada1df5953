"""OpenVINO without its telemetry, and undocumented entries of the graphs that it executes.

``import openvino`` sends an event to Google Analytics, unless the package of its telemetry cannot be imported; then it
takes a stub. So nothing else in senseapp imports it.
"""

import math
import re
import sys
from dataclasses import dataclass
from typing import Any

if "openvino" not in sys.modules:
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # Python's own way to forbid an import
import openvino

__all__ = ["ExecutedNode", "executed_nodes", "openvino"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedNode:
    """A node that OpenVINO executes, of a kind as ``Convolution``, ``FullyConnected`` or ``Reorder``.

    ``parts`` are the nodes of the file that it computes, in order; ``values`` counts those of its first input;
    ``in_integers`` says whether it computes on numbers of 8 bits.
    """

    name: str
    kind: str
    parts: tuple[str, ...]
    values: int
    in_integers: bool


def executed_nodes(compiled: Any) -> list[ExecutedNode]:
    """Return the nodes of a compiled network of fixed shapes, in the order of their execution."""
    return [_executed(node) for node in compiled.get_runtime_model().get_ordered_ops()]


def _executed(node: Any) -> ExecutedNode:
    about = node.get_rt_info()
    parts = (_OWN_SUFFIX.sub("", each) for each in _text(about, "originalLayersNames").split(","))
    shape = node.input(0).get_shape() if node.get_input_size() else ()
    return ExecutedNode(
        name=node.get_friendly_name(),
        kind=_text(about, "layerType"),
        parts=tuple(dict.fromkeys(filter(None, parts))),
        values=math.prod(shape),
        in_integers=_text(about, "runtimePrecision") in ("i8", "u8"),
    )


_OWN_SUFFIX = re.compile(r"/(?:WithoutBiases|Dequantization\w*|sink_port_\d+|fq_\w+)(?=/|$)")
"""What OpenVINO adds to the name of a node that it takes apart."""


def _text(about: Any, name: str) -> str:
    return str(about[name].astype(str)) if name in about else ""
