"""Parts of unlike ranges in one tensor: what joins them behind the last weights stays in float, whatever joins them."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import NodeProto

from senseapp.runtimes.onnxruntime.inserted import plain_copy
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from tests.onnx_graphs import file_of, node, weights

SHAPE = (2, 3, 8, 8)
IMAGES = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))
STORED = {
    "to_boxes": np.abs(weights(4, 3, 1, 1)),
    "to_scores": weights(2, 3, 1, 1, seed=1),
    "pixels": np.float32(300),
    "by_column": np.array([300] * 4 + [1] * 2, np.float32).reshape(1, 6, 1, 1),
    "as_rows": np.array([0, -1, 64]), "both": np.array([4, 2]), "first": np.array([1]), "zero": np.array([0]),
    "four": np.array([4]), "six": np.array([6]), "half": np.float32(0.5),
    "before": np.array([0, 0, 0, 0, 0, 2, 0, 0]), "behind": np.array([0, 4, 0, 0, 0, 0, 0, 0]),
    "is_box": np.array([True] * 4 + [False] * 2).reshape(1, 6, 1, 1),
}  # fmt: skip
PARTS = [
    node("Conv", "x to_boxes", "shares"), node("Mul", "shares pixels", "boxes"),
    node("Conv", "x to_scores", "logits"), node("Sigmoid", "logits", "scores"),
]  # fmt: skip
JOINED = node("Concat", "boxes scores", "joined", axis=1)
WAYS: dict[str, list[NodeProto]] = {
    "concat": [node("Concat", "boxes scores", "y", axis=1)],
    "concat and transpose": [JOINED, node("Transpose", "joined", "y", perm=[0, 2, 3, 1])],
    "concat, reshape and transpose": [
        JOINED, node("Reshape", "joined as_rows", "rows"), node("Transpose", "rows", "y", perm=[0, 2, 1])
    ],
    "scores of what was joined": [
        JOINED, node("Slice", "joined zero four first", "b"), node("Slice", "joined four six first", "s"),
        node("Mul", "s half", "halved"), node("Concat", "b halved", "y", axis=1),
    ],
    "joined twice": [
        JOINED, node("Slice", "joined zero four first", "b"), node("Concat", "joined b", "y", axis=1),
    ],
    "split again": [JOINED, node("Split", "joined both", "b s", axis=1), node("Add", "s half", "y")],
    "product by column": [
        node("Concat", "shares scores", "near", axis=1), node("Mul", "near by_column", "y"),
    ],
    "sum of what was padded": [
        node("Pad", "boxes before", "b"), node("Pad", "scores behind", "s"), node("Add", "b s", "y"),
    ],
    "chosen by a mask": [
        node("Pad", "boxes before", "b"), node("Pad", "scores behind", "s"), node("Where", "is_box b s", "y"),
    ],
}  # fmt: skip


def both(nodes: list[NodeProto]) -> tuple[np.ndarray, np.ndarray, Int8Writer]:
    """Return what the network computes in float and all in int8, and the writer."""
    network = plain_copy(file_of([*PARTS, *nodes], STORED, shape=SHAPE, outputs=("y",)), ["y"], SHAPE)
    with Int8Writer(network, [IMAGES], reduce_range=True) as writer:
        files = network, writer.write()
    found = [onnxruntime.InferenceSession(file).run(None, {"x": IMAGES.numpy()})[0] for file in files]
    return found[0], found[1], writer


@pytest.mark.parametrize("way", WAYS)
def test_scores_beside_boxes_in_pixels_keep_their_steps(way: str) -> None:
    before, after, writer = both(WAYS[way])
    small = before < 3
    assert np.abs(after - before)[small].max() < 0.05
    assert np.abs(after - before)[~small].max(initial=0.0) < 0.01 * max(before.max(), 1.0)
    assert any("one scale" in note for note in writer.notes)


@pytest.mark.parametrize("behind", [[], [node("Conv", "near further", "y")]])
def test_parts_that_are_alike_or_have_weights_behind_them_are_in_int8(behind: list[NodeProto]) -> None:
    name = "near" if behind else "y"
    first = "boxes" if behind else "shares"
    stored = {"further": weights(2, 6, 1, 1, seed=2)}
    nodes = [*PARTS, node("Concat", f"{first} scores", name, axis=1), *behind]
    network = plain_copy(file_of(nodes, STORED | stored, shape=SHAPE, outputs=("y",)), ["y"], SHAPE)
    with Int8Writer(network, [IMAGES]) as writer:
        content = writer.write()
        assert name in writer.nodes(content)
        assert not writer.notes
