"""Why int8 harms, in a sentence: unlike channels under one scale, steps before a sigmoid, calibration images."""

from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import NodeProto

from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.float_graph import FloatGraph
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.rounding.ranges import calibration_warnings
from senseapp.runtimes.quantizers import RoundingCause
from tests.onnx_graphs import file_of, node, weights
from tests.small_models import images_for, small_network

SHAPE = (2, 3, 8, 8)


def found_in(
    nodes: Sequence[NodeProto], stored: dict[str, np.ndarray], only: Sequence[str] | None = None
) -> tuple[Sequence[RoundingCause], dict[str, np.ndarray]]:
    """Return the causes, and the values of all tensors on the same images by onnxruntime."""
    made = [name for each in nodes for name in each.output]
    content = FloatGraph.of(file_of(nodes, stored, shape=SHAPE, outputs=("y",)), ["y"], SHAPE).part
    images = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))
    causes = Int8Writer(content, [images]).causes(only)
    shown = onnxruntime.InferenceSession(file_of(nodes, stored, shape=SHAPE, outputs=made))
    return causes, dict(zip(made, shown.run(made, {"x": images.numpy()}), strict=True))


def test_coarse_steps_before_a_sigmoid() -> None:
    nodes = [node("Conv", "x steep", "a"), node("Sigmoid", "a", "b"), node("Conv", "b next", "y")]
    causes, values = found_in(nodes, {"steep": 100 * weights(2, 3, 1, 1), "next": weights(2, 2, 1, 1)})
    step = (max(values["a"].max(), 0) - min(values["a"].min(), 0)) / 255
    [cause] = [each for each in causes if each.tensor == "a"]
    assert f"in steps of {step:.2g}, which moves its output by up to {step / 8:.2g}" in cause.sentence
    assert found_in(nodes, {"steep": 100 * weights(2, 3, 1, 1), "next": weights(2, 2, 1, 1)}, only=["a"])[0] == []


def test_channels_far_apart_under_one_scale() -> None:
    stored = {"unlike": weights(8, 3, 1, 1) * np.array([100, 100, *[0.05] * 6], np.float32)[:, None, None, None]}
    nodes = [node("Conv", "x unlike", "a"), node("Conv", "a next", "y")]
    causes, _ = found_in(nodes, {**stored, "next": weights(4, 8, 1, 1, seed=1)})
    [cause] = [each for each in causes if each.tensor == "a"]
    assert "leaves 6 of its 8 channels fewer than 4 of 256 steps" in cause.sentence


@pytest.mark.slow  # exports a network
@pytest.mark.parametrize(("count", "scale", "words"), [
    (40, 1.0, []), (20, 1.0, ["only 20 images"]), (40, 4.0, ["lie beyond the ranges"]),
])  # fmt: skip
def test_few_images_and_another_domain_are_named(count: int, scale: float, words: list[str]) -> None:
    calibration, held_out = images_for(count).images, scale * images_for(12, seed=4).images
    content = onnx_model(small_network(), calibration[:1])
    ranges = Int8Writer(content, [calibration]).rounding.ranges
    found = calibration_warnings(content, ranges, [calibration], [held_out])
    assert len(found) == len(words)
    assert all(each in sentence for each, sentence in zip(words, found, strict=True))
