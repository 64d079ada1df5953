"""Which axis of a recorded tensor counts images."""

from __future__ import annotations

import pytest

from senseapp.sensitivity.quick.responses import batch_axis


@pytest.mark.parametrize(
    ("single", "seen", "expected"),
    [
        ((1, 6, 8, 8), (5, 6, 8, 8), 0),
        ((16, 49, 96), (80, 49, 96), 0),  # windows of each image, one after the other
        ((64, 1, 96), (64, 5, 96), 1),
        ((1, 5), (5, 5), 0),
        ((5,), (5,), None),  # the same for any number of images
        ((1, 5), (5, 25), None),
        ((1, 6), (7, 6), None),
        ((1, 6), (5, 1, 6), None),
    ],
)
def test_batch_axis(single: tuple[int, ...], seen: tuple[int, ...], expected: int | None) -> None:
    assert batch_axis(single, seen, 5) == expected


def test_all_belongs_to_a_single_image() -> None:
    assert batch_axis((64, 1, 96), (64, 1, 96), 1) == 0
