"""Compress one layer or one coupled group for a while; each compression is loaded when it is first asked for."""

from senseapp.transforms.base import (
    Applied,
    ChannelCompressor,
    CompressionRequest,
    Compressor,
    Prepared,
    Target,
    WeightCompressor,
    build_compressor,
)
from senseapp.transforms.number_format import affine_of, fake_quantize_input, fake_quantize_weight, scale_of

__all__ = [
    "Applied",
    "ChannelCompressor",
    "CompressionRequest",
    "Compressor",
    "Prepared",
    "Target",
    "WeightCompressor",
    "affine_of",
    "build_compressor",
    "fake_quantize_input",
    "fake_quantize_weight",
    "scale_of",
]
