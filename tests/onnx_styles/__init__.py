"""Small networks in the styles of converters other than torch's, written by hand: one generator for each habit."""

from __future__ import annotations

from tests.onnx_styles import caffe, graphs, half, paddle, quantized, tensorflow

STYLES = {
    **tensorflow.STYLES,
    **paddle.STYLES,
    **caffe.STYLES,
    **quantized.STYLES,
    **half.STYLES,
    **graphs.STYLES,
}
"""A function that returns a file, by name."""

__all__ = ["STYLES"]
