"""The file of onnxruntime's own quantizer."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.operations import default_int8

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second

IMAGES = torch.randn(24, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network() -> bytes:
    torch.manual_seed(0)
    return onnx_model(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), IMAGES[:1])


def largest_weight(content: bytes) -> int:
    stored = (numpy_helper.to_array(each) for each in onnx.load_from_string(content).graph.initializer)
    return max(int(np.abs(each.astype(int)).max()) for each in stored if each.dtype == np.int8 and each.ndim == 4)


@pytest.mark.parametrize(("reduce_range", "largest", "words"), [(False, 127, ""), (True, 64, "7-bit weights, ")])
def test_weights_have_7_bits_where_8_saturate(network: bytes, reduce_range: bool, largest: int, words: str) -> None:
    made = default_int8(network, IMAGES.split(12), reduce_range=reduce_range)
    assert largest_weight(made.content) == largest
    assert made.setting == f"quantize_static, per channel, unsigned activations, {words}min-max"
