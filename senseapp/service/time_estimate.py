"""How long a run will take, before it starts, from the model's MACs and this machine's measured speed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from senseapp.results import ModelProfile
from senseapp.spec import SensitivitySpec

_BACKWARD = 2.0  # a backward pass costs about two forward passes
_CALLS_PER_LAYER = 4  # a compressible layer usually comes with a norm, an activation and a block around it
# Seen on the demo, ResNet-18 and MobileNetV3-Small; finished runs correct the rest.
_REACHED_SPEED = 0.4  # of a large convolution's, over whole networks
_WATCHED_CALL = 8.0  # bare calls that a replayed one costs
_MEASUREMENT_SECONDS = 0.01  # statistics and storing
_START_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpeed:
    """What one forward pass costs here.

    Attributes:
        macs_per_second: multiply-accumulates per second of a large convolution.
        seconds_per_call: fixed cost of calling one module, however small.
    """

    macs_per_second: float
    seconds_per_call: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """The work of one run: multiply-accumulates, calls of modules, and measurements to store."""

    macs: float
    calls: float
    measurements: int

    def seconds(self, speed: MachineSpeed) -> float:
        """Return the time this work takes at ``speed``."""
        arithmetic = self.macs / (_REACHED_SPEED * speed.macs_per_second)
        overhead = _WATCHED_CALL * self.calls * speed.seconds_per_call
        return arithmetic + overhead + _MEASUREMENT_SECONDS * self.measurements + _START_SECONDS


def work_of(
    profile: ModelProfile,
    settings: SensitivitySpec,
    *,
    num_images: int,
    selected: Collection[str] | None = None,
    batch_size: int = 32,
) -> RunWork:
    """Count the work of a run on the layers named in ``selected`` (None: all).

    Measuring layer k replays the network from k on, once per level, so with layers in execution order
    ``macs = images × levels × Σ_k Σ_{j≥k} macs_j``. The baseline adds one forward pass, and the quick scan a
    forward pass, a backward pass and one more forward pass per level.
    """
    levels = len(settings.levels)
    layers = [layer for layer in profile.layers if layer.runs]
    passes = 1 + (1 + _BACKWARD + levels)
    macs = passes * profile.macs
    calls = passes * len(layers)
    measurements = 0
    if settings.mode == "exact":
        suffix_macs = 0
        for suffix_layers, layer in enumerate(reversed(layers), start=1):
            suffix_macs += layer.macs
            if selected is None or layer.name in selected:
                macs += levels * suffix_macs
                calls += levels * suffix_layers
                measurements += levels
    batches = -(-num_images // (settings.batch_size or batch_size))
    return RunWork(macs=macs * num_images, calls=_CALLS_PER_LAYER * calls * batches, measurements=measurements)
