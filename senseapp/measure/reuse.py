"""When a measurement of one run is the very number that another run would find."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from senseapp.core.codec import encode
from senseapp.data.images import ImageSet
from senseapp.data.per_image import bytes_of
from senseapp.measure.layout import Layout
from senseapp.measure.sweep import Sweep
from senseapp.measure.versions import engine_digest
from senseapp.networks.loaded import LoadedModel
from senseapp.records.measurement import LayerMeasurement, RunResult, Status
from senseapp.records.spec import RunSpec
from senseapp.tasks import PerImage

_BATCH = 64
_CHOSEN_PER_RUN = ("levels", "layers", "layer_types", "metric", "mode", "num_samples", "device")
"""Settings that decide which numbers a run has, not what they are; the images themselves and the device that was found
are parts of the key."""


def content_key(spec: RunSpec, model: LoadedModel, images: ImageSet, versions: Mapping[str, str]) -> str:
    """Return one hash over everything that decides the numbers of a run: weights, images, settings, versions.

    Where files lie and what they are called is no part of it. Runs with equal keys that also pass alike (see
    :func:`arithmetic_of`) find the same number, bit for bit, for each layer and level that both measure.
    """
    digest = hashlib.sha256(json.dumps([_settings(spec), sorted(versions.items()), engine_digest()]).encode())
    digest.update(f"{model.title} {model.preprocessing!r} {model.module!r}".encode())
    for name, tensor in sorted(model.module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        _add(digest, tensor)
    digest.update(f"{len(images)} images {images.indicative}".encode())
    for start in range(0, len(images), _BATCH):
        _add(digest, images.batch(start, min(start + _BATCH, len(images))))
    if images.labels is not None:
        _add(digest, images.labels)
    return digest.hexdigest()


def _add(digest: Any, value: PerImage) -> None:
    for part in bytes_of(value):
        digest.update(part)


def _settings(spec: RunSpec) -> object:
    data = encode(dataclasses.replace(spec, model=dataclasses.replace(spec.model, checkpoint="")))["data"]
    return [
        data["model"],
        {name: value for name, value in data["sensitivity"].items() if name not in _CHOSEN_PER_RUN},
    ]


def arithmetic_of(result: RunResult) -> tuple[Layout, int]:
    """Return how the passes of a run were made: their layout, and the most images measured together (0: as fits)."""
    ran = result.passes
    layout = Layout(
        channels_last=ran.channels_last,
        micro_batch=ran.micro_batch,
        precision=result.precision,
        levels_per_pass=ran.levels_together,
    )
    return layout, ran.images_at_once


def images_in_span(sweep: Sweep) -> int:
    """Return how many images are measured together; sums over other spans may differ in their last bit."""
    return sweep.chunks()[0][1]


def reusable(sweep: Sweep, earlier: RunResult) -> tuple[LayerMeasurement, ...]:
    """Return the measurements of ``earlier``, a run with an equal :func:`content_key`, that ``sweep`` would repeat.

    None where the passes were made otherwise: in another layout, or over other spans of images. Nor where the ranking
    decides how many images each layer is measured on.
    """
    if sweep.spec.until_settled:
        return ()
    layout, _ = arithmetic_of(earlier)
    same_passes = layout == sweep.context.layout and earlier.passes.images_in_span == images_in_span(sweep)
    if layout.levels_per_pass > 1 and earlier.spec.sensitivity.levels != sweep.spec.levels:
        return ()  # other levels share the passes, of another size, which may round otherwise
    if not same_passes or (earlier.method == "plain") != bool(sweep.context.replay_obstacle):
        return ()
    targets = {item.target.layer: item.target for item in sweep.planned}
    return tuple(
        item
        for item in earlier.measurements
        if item.status is Status.MEASURED  # one that failed is tried again
        and all(change.num_samples == len(sweep.context.images) for change in item.changes)
        and item.level in sweep.spec.levels
        and (target := targets.get(item.layer)) is not None
        and (item.group, item.members) == (target.group, target.members)
    )
