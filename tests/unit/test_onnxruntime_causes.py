"""Why int8 harms a tensor, in a sentence: unlike parts or channels under one scale, and steps before a sigmoid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import NodeProto

from senseapp.runtimes.onnxruntime.inserted import plain_copy
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.quantizers import RoundingCause
from tests.onnx_graphs import file_of, node, weights

SHAPE = (2, 3, 8, 8)


def found_in(
    nodes: Sequence[NodeProto], stored: dict[str, np.ndarray], only: Sequence[str] | None = None
) -> tuple[Sequence[RoundingCause], dict[str, np.ndarray]]:
    """Return the causes, and the values of all tensors on the same images by onnxruntime."""
    made = [name for each in nodes for name in each.output]
    content = plain_copy(file_of(nodes, stored, shape=SHAPE, outputs=("y",)), ["y"], SHAPE)
    images = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))
    with Int8Writer(content, [images]) as writer:
        causes = writer.causes(only)
    shown = onnxruntime.InferenceSession(file_of(nodes, stored, shape=SHAPE, outputs=made))
    return causes, dict(zip(made, shown.run(made, {"x": images.numpy()}), strict=True))


def detector(scale: float) -> tuple[list[NodeProto], dict[str, np.ndarray]]:
    """Return boxes, as large as ``scale``, and scores in one tensor."""
    nodes = [
        node("Conv", "x to_boxes", "a"), node("Abs", "a", "boxes"), node("Conv", "x to_scores", "b"),
        node("Sigmoid", "b", "scores"), node("Concat", "boxes scores", "y", axis=1),
    ]  # fmt: skip
    return nodes, {"to_boxes": scale * np.abs(weights(4, 3, 1, 1)), "to_scores": weights(2, 3, 1, 1, seed=1)}


def test_scores_beside_boxes_in_pixels_round_to_zero() -> None:
    causes, values = found_in(*detector(300))
    cause = causes[0]
    assert (cause.node, cause.tensor) == ("y", "scores")
    largest, scores = values["boxes"].max(), values["scores"]
    lost = float((scores < largest / 255 / 2).mean())
    assert cause.lost == pytest.approx(lost, abs=0.02)
    assert lost > 0.9
    assert cause.sentence == (
        f"“scores”, at most {scores.max():.3g}, and “boxes”, at most {largest:.3g}, share one scale after the Concat, "
        f"in steps of {largest / 255:.2g}: {100 * cause.lost:.0f} % of the values of “scores” round to 0."
    )


def test_parts_that_are_alike_are_no_cause() -> None:
    assert not [cause for cause in found_in(*detector(1))[0] if cause.node == "y"]


def test_only_the_nodes_asked_for_are_looked_at() -> None:
    assert found_in(*detector(300), only=["scores"])[0] == []


def test_coarse_steps_before_a_sigmoid() -> None:
    nodes = [node("Conv", "x steep", "a"), node("Sigmoid", "a", "y")]
    causes, values = found_in(nodes, {"steep": 100 * weights(2, 3, 1, 1)})
    step = (max(values["a"].max(), 0) - min(values["a"].min(), 0)) / 255
    [cause] = [each for each in causes if each.tensor == "a"]
    assert f"in steps of {step:.2g}, which moves its output by up to {step / 8:.2g}" in cause.sentence


def test_channels_far_apart_under_one_scale() -> None:
    stored = {"unlike": weights(8, 3, 1, 1) * np.array([100, 100, *[0.05] * 6], np.float32)[:, None, None, None]}
    nodes = [node("Conv", "x unlike", "a"), node("Conv", "a next", "y")]
    causes, _ = found_in(nodes, {**stored, "next": weights(4, 8, 1, 1, seed=1)})
    [cause] = [each for each in causes if each.tensor == "a"]
    assert "leaves 6 of its 8 channels fewer than 4 of 256 steps" in cause.sentence
