"""Reuse of an earlier run's measurements that a run would repeat bit for bit."""

import dataclasses
import hashlib
import json
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from senseapp.core.codec import encode
from senseapp.data.images import ImageSet, bytes_of
from senseapp.measure.plan import Layout
from senseapp.measure.sweep import Sweep
from senseapp.networks.loaded import LoadedModel
from senseapp.records.measurement import LayerMeasurement, RunResult, Status
from senseapp.records.spec import RunSpec
from senseapp.tasks.annotations import PerImage

_BATCH = 8  # images that are hashed at once, as float32
_CHOSEN_PER_RUN = ("levels", "layers", "layer_types", "metric", "mode", "num_samples", "device")
"""Settings that select which numbers a run has without changing them; the images and the device itself are separate
parts of the key."""


def content_key(spec: RunSpec, model: LoadedModel, images: ImageSet, versions: Mapping[str, str]) -> str:
    """Return one hash over everything that decides the numbers of a run: weights, images, settings, versions.

    Paths and file names are not included, but for the name of an ONNX file, which is its title. Runs with equal keys
    and equal :func:`arithmetic_of` have equal numbers, bit for bit, for each layer and level that both measure.
    """
    digest = hashlib.sha256(json.dumps([_settings(spec), sorted(versions.items())]).encode())
    digest.update(f"{model.title} {model.preprocessing!r} {model.module!r}".encode())
    add_weights(digest, model.module)
    add_images(digest, images)
    return digest.hexdigest()


def add_weights(digest: Any, module: nn.Module) -> None:
    """Add the weights of ``module`` to a hash."""
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        _add(digest, tensor)


def add_images(digest: Any, images: ImageSet) -> None:
    """Add ``images`` and their labels to a hash."""
    digest.update(f"{len(images)} images {images.indicative}".encode())
    for start in range(0, len(images), _BATCH):
        _add(digest, images.batch(start, min(start + _BATCH, len(images))))
    if images.labels is not None:
        _add(digest, images.labels)


def _add(digest: Any, value: PerImage) -> None:
    for part in bytes_of(value):
        digest.update(part)


def _settings(spec: RunSpec) -> object:
    data = encode(dataclasses.replace(spec, model=dataclasses.replace(spec.model, checkpoint="")))["data"]
    return [data["model"], {name: value for name, value in data["sensitivity"].items() if name not in _CHOSEN_PER_RUN}]


def arithmetic_of(result: RunResult) -> tuple[Layout, int]:
    """Return the layout of a run's passes, and the most images measured together (0: limited by memory)."""
    ran = result.passes
    layout = Layout(channels_last=ran.channels_last, micro_batch=ran.micro_batch, precision=result.precision)
    return layout, ran.images_at_once


def images_in_span(sweep: Sweep) -> int:
    """Return how many images are measured together; sums over other spans may differ in the last bit."""
    return sweep.chunks()[0][1]


def reusable(sweep: Sweep, earlier: RunResult) -> tuple[LayerMeasurement, ...]:
    """Return the measurements of ``earlier``, a run with an equal :func:`content_key`, that ``sweep`` would repeat.

    Empty if layout or spans of images differ, or if the ranking decides how many images each layer is measured on.
    """
    if sweep.spec.until_settled:
        return ()
    layout, _ = arithmetic_of(earlier)
    same_passes = layout == sweep.context.layout and earlier.passes.images_in_span == images_in_span(sweep)
    if not same_passes or (earlier.method == "plain") != bool(sweep.context.replay_obstacle):
        return ()
    targets = {item.target.layer: item.target for item in sweep.planned}
    return tuple(
        item
        for item in earlier.measurements
        if item.status is Status.MEASURED  # failed ones are tried again
        and all(change.num_samples == len(sweep.context.images) for change in item.changes)
        and item.level in sweep.spec.levels
        and (target := targets.get(item.layer)) is not None
        and (item.group, item.members) == (target.group, target.members)
    )


_PACKAGES = ("torch", "torchvision", "timm", "torch-pruning", "numpy")
_SOURCES = Path(__file__).resolve().parents[1]
_ENGINE = (
    *("compat", "compressions", "core", "data", "descriptions", "measure", "metrics", "networks", "records", "tasks"),
)


@cache
def engine_digest() -> str:
    """Return a hash of the engine's code, since a version number misses edits of a working copy."""
    digest = hashlib.sha256()
    for path in sorted(path for package in _ENGINE for path in (_SOURCES / package).rglob("*.py")):
        digest.update(path.relative_to(_SOURCES).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def versions_here() -> dict[str, str]:
    """Return the library versions, which must be equal on all machines of a run."""
    own = {"python": platform.python_version(), "senseapp": engine_digest()[:12]}
    return own | {name: version(name) for name in _PACKAGES}


def differences(asked: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return the differing versions, as ``torch 2.13.0 instead of 2.14.1``; empty if all are equal."""
    return ", ".join(
        f"{name} {here.get(name, 'none')} instead of {wanted}"
        for name, wanted in asked.items()
        if here.get(name) != wanted
    )
