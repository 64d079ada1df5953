"""Numbers of images of a run, known before its images are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.records.inputs import num_held_out
from senseapp.records.spec import NUM_DIGITS, NUM_PHOTOGRAPHS, NUM_SHAPES, DataSpec, RunSpec

_NOTHING_COUNTED: Mapping[DataSpec, int] = {}
_DEMOS = {"demo": NUM_DIGITS, "photographs": NUM_PHOTOGRAPHS, "shapes": NUM_SHAPES}


def num_images(spec: RunSpec, counted: Mapping[DataSpec, int] = _NOTHING_COUNTED) -> int | None:
    """Return how many images a run measures on; None if they must be counted first.

    ``counted`` has the numbers of counted images, by their spec without a class map.
    """
    if spec.sensitivity.num_samples is not None:
        return spec.sensitivity.num_samples
    count = num_available(spec.data, counted)
    return None if count is None else count - num_held_out(count)


def num_available(data: DataSpec, counted: Mapping[DataSpec, int] = _NOTHING_COUNTED) -> int | None:
    """Return the number of images in ``data``; None if they must be counted first, and for random inputs."""
    if data.kind in _DEMOS:
        return _DEMOS[data.kind]
    count = counted.get(replace(data, class_map=()))
    return IMAGE_SETS[data.name].num_images if count is None and data.name else count
