"""Which axis of a recorded call's tensors counts images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from senseapp.layers import CallTrace


def batch_axis(single: Sequence[int], seen: Sequence[int], num_images: int) -> int | None:
    """Return the axis that grew with the number of images; None if that cannot be told.

    Args:
        single: shape for one image.
        seen: shape for ``num_images`` images.
        num_images: how many.
    """
    if num_images == 1 and tuple(single) == tuple(seen):
        return 0
    grown = [axis for axis, (one, many) in enumerate(zip(single, seen, strict=False)) if one != many]
    if len(single) != len(seen) or len(grown) != 1 or seen[grown[0]] != num_images * single[grown[0]]:
        return None
    return grown[0]


def batch_axes(single: Sequence[Sequence[int]], seen: Sequence[Sequence[int]], num_images: int) -> list[int] | None:
    """Return the batch axis of each call; None if any cannot be told, or the calls are not those of one image."""
    if len(single) != len(seen):
        return None
    axes = [batch_axis(one, many, num_images) for one, many in zip(single, seen, strict=True)]
    return [axis for axis in axes if axis is not None] if None not in axes else None


def shapes_in(trace: CallTrace, names: set[str], *, of_inputs: bool) -> dict[str, list[tuple[int, ...]]]:
    """Return the shape of each call's first input (or output) for one image, by module."""
    assert trace.batch_size == 1
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}
    for call in trace.calls:
        if call.module in shapes:
            shapes[call.module].append(call.input_shape if of_inputs else call.output_shape)
    return shapes


def rows(values: Tensor, order: tuple[int, ...], num_images: int) -> Tensor:
    """Return ``values``, whose axes are put in this order, as one row for each image."""
    return values.permute(order).reshape(num_images, -1)
