"""Small networks in the styles of converters other than torch's, written by hand: one generator for each habit."""

from __future__ import annotations

import inspect
from functools import partial

from tests.onnx_styles import caffe, graphs, half, paddle, quantized, tensorflow

_CONVERTERS = {
    **{"tf2onnx: ": tensorflow, "paddle2onnx: ": paddle, "Caffe and others: ": caffe, "quantized: ": quantized},
    **{"float16: ": half, "": graphs},
}
STYLES = {
    **{
        converter + name.replace("_", " "): make
        for converter, module in _CONVERTERS.items()
        for name, make in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and not inspect.signature(make).parameters
    },
    **{f"opset {opset}": partial(graphs.of_opset, opset) for opset in graphs.OPSETS},
}
"""A function that returns a file, by name."""

__all__ = ["STYLES"]
