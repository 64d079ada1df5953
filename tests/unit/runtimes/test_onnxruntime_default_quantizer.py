"""The file of onnxruntime's own quantizer, with weights of as many bits as do less harm."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from senseapp.core.steps import OptionalSteps
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.default_quantizer import default_int8
from senseapp.runtimes.quantizers import DefaultInt8

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second

IMAGES = torch.randn(24, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network() -> bytes:
    torch.manual_seed(0)
    return onnx_model(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), IMAGES[:1])


def largest_weight(content: bytes) -> int:
    stored = (numpy_helper.to_array(each) for each in onnx.load_from_string(content).graph.initializer)
    return max(int(np.abs(each.astype(int)).max()) for each in stored if each.dtype == np.int8 and each.ndim == 4)


def found(network: bytes, worse: int, *, reduce_range: bool = False, fails: int = 0) -> DefaultInt8 | None:
    def damage_of(content: bytes) -> float:
        if largest_weight(content) == fails:
            raise ValueError("it cannot be judged")
        return float(largest_weight(content) == worse)

    steps = OptionalSteps()
    made = default_int8(network, IMAGES.split(12), damage_of=damage_of, reduce_range=reduce_range, trying=steps.trying)
    assert len(steps.notes) == (1 if fails else 0)
    return made


def test_the_number_of_bits_that_does_less_harm_is_taken(network: bytes) -> None:
    for worse, bits, words in ((64, 127, ""), (127, 64, "7-bit weights, ")):
        made = found(network, worse)
        assert largest_weight(made.content) == bits
        assert made.setting == f"quantize_static, per channel, unsigned activations, {words}min-max"


def test_a_runtime_that_needs_7_bits_gets_them_and_a_file_that_fails_is_left_out(network: bytes) -> None:
    assert largest_weight(found(network, 64, reduce_range=True).content) == 64
    assert largest_weight(found(network, 64, fails=127).content) == 64
