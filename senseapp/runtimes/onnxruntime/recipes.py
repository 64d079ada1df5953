"""The nodes in float of a QDQ file in the words of other quantizers: onnxruntime's, NNCF, and Qualcomm's NPU."""

from __future__ import annotations

import json

from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.runtimes.onnxruntime.int8 import int8_nodes
from senseapp.runtimes.onnxruntime.rounding.qdq import ROUNDING, SAME_RANGE, UNPACKED, WEIGHTED

_README = """\
Nodes that stay in float, for quantizers of the float ONNX file of the same network. Names are those of that file.

import json
from onnxruntime.quantization import QuantType, quantize, quantize_static
excluded = json.load(open("nodes_to_exclude.json"))

onnxruntime:
quantize_static("float.onnx", "int8.onnx", reader, per_channel=True, nodes_to_exclude=excluded)

NNCF, on the ONNX file:
import nncf
nncf.quantize(model, dataset, ignored_scope=nncf.IgnoredScope(**json.load(open("nncf_ignored_scope.json"))))

Qualcomm NPU (QNN), where these products compute with activations of 16 bits, as its integer units know no float:
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
overrides = json.load(open("qnn_tensor_quant_overrides.json"))
for tensor in overrides.values():
    tensor[0]["quant_type"] = QuantType[tensor[0]["quant_type"]]
quantize("float.onnx", "qnn.onnx", get_qnn_qdq_config("float.onnx", reader, init_overrides=overrides))
"""


def recipes_of(content: bytes) -> dict[str, str]:
    """Return the texts by name of file; nodes without a name, and those that only move values, are left out."""
    graph, in_int8 = OnnxGraph(content), set(int8_nodes(content))
    in_float = [
        node
        for node in graph.nodes
        if node.name
        and node.name not in in_int8
        and node.op_type not in {*ROUNDING, *SAME_RANGE, "Constant"}
        and not node.name.removesuffix(".cast").endswith(UNPACKED)  # it makes a stored weight float
    ]
    excluded = [node.name for node in in_float]
    products = [node.output[0] for node in in_float if node.op_type in WEIGHTED]
    found = {
        "nodes_to_exclude.json": excluded,
        "nncf_ignored_scope.json": {"names": excluded},
        "qnn_tensor_quant_overrides.json": {name: [{"quant_type": "QUInt16"}] for name in products},
    }
    return {name: json.dumps(each, indent=1) for name, each in found.items()} | {"RECIPE.txt": _README}
