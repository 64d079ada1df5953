"""Which axis of a recorded tensor counts images, and inner products image by image."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from senseapp.measure.quick.recorder import LayerCall
from senseapp.measure.quick.responses import batch_axis, products_with


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


@pytest.mark.parametrize(("shape", "batch"), [((3, 4, 5, 6), 0), ((5, 3, 4), 1)])
def test_inner_products_are_those_of_numpy(shape: tuple[int, ...], batch: int) -> None:
    output, response, *gradients = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    call = LayerCall(args=(), kwargs={}, output=output, gradients=list(gradients))
    (found,) = products_with(call, batch, 3, [response])
    rows = [np.moveaxis(each.numpy(), batch, 0).reshape(3, -1) for each in (response, *gradients)]
    expected = np.stack([np.einsum("nv,nv->n", rows[0], each) for each in rows[1:]], axis=1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)
