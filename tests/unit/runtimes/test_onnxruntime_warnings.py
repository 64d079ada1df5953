"""Warnings about calibration images: few of them, and ones of another domain."""

from __future__ import annotations

import pytest

from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.rounding.warnings import calibration_warnings
from tests.small_models import images_for, small_network

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second


@pytest.mark.parametrize(("count", "scale", "words"), [
    (40, 1.0, []), (20, 1.0, ["only 20 images"]), (40, 4.0, ["lie beyond the ranges"]),
])  # fmt: skip
def test_few_images_and_another_domain_are_named(count: int, scale: float, words: list[str]) -> None:
    calibration, held_out = images_for(count).images, scale * images_for(12, seed=4).images
    content = onnx_model(small_network(), calibration[:1])
    with Int8Writer(content, [calibration]) as writer:
        found = calibration_warnings(content, writer.write(), [calibration], [held_out])
    assert len(found) == len(words)
    assert all(each in sentence for each, sentence in zip(words, found, strict=True))
