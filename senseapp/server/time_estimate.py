"""Prediction of run times, from the model's MACs and this machine's speed, corrected by finished runs."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from senseapp.core.codec import register
from senseapp.core.errors import StorageFailed
from senseapp.core.files import replace_file
from senseapp.records.profile import ModelProfile
from senseapp.records.spec import REPAIR_IMAGES, SensitivitySpec

_BACKWARD = 2.0  # a backward pass costs about two forward passes
_CALLS_PER_LAYER = 4  # a compressible layer usually comes with a norm, an activation and a block around it
# From the demo, ResNet-18 and MobileNetV3-Small; finished runs correct the rest.
_REACHED_SPEED = 0.4  # of a large convolution's, over whole networks
_WATCHED_CALL = 8.0  # cost of a replayed call, in plain calls
_MEASUREMENT_SECONDS = 0.01  # statistics and storing
_START_SECONDS = 0.5  # loading and tracing
_USUAL_BATCH = 32  # images of a micro-batch, where the run leaves it to a timed trial


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpeed:
    """Speed of a forward pass here: MACs per second of a large convolution, and seconds per call of any module."""

    macs_per_second: float
    seconds_per_call: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """The work of one run: multiply-accumulates, calls of modules, and measurements to store."""

    macs: float
    calls: float
    measurements: int

    def seconds(self, speed: MachineSpeed) -> float:
        """Return the seconds of this work at ``speed``."""
        arithmetic = self.macs / (_REACHED_SPEED * speed.macs_per_second)
        overhead = _WATCHED_CALL * self.calls * speed.seconds_per_call
        return arithmetic + overhead + _MEASUREMENT_SECONDS * self.measurements + _START_SECONDS


def work_of(
    profile: ModelProfile,
    settings: SensitivitySpec,
    *,
    num_images: int,
    selected: Collection[str] | None = None,
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
    batches = -(-num_images // (settings.batch_size or _USUAL_BATCH))
    return RunWork(macs=macs * num_images, calls=_CALLS_PER_LAYER * calls * batches, measurements=measurements)


_SCHEDULES = 15  # whole schedules that a recommendation measures before the proof
_REPAIRED = 9  # of them and of the proof, those also measured with repair
_REPAIR_PASSES = 6  # over the images for a repair's fit and evaluation
_ADAPTING_PASSES = 40  # equivalent passes of a repair that adapts weights


def recommendation_work(profile: ModelProfile, *, num_images: int, adapted: bool = False) -> RunWork:
    """Count the work of recommending a schedule on ``num_images`` images, independent of the number of layers."""
    layers = sum(layer.runs for layer in profile.layers)
    passes = _ADAPTING_PASSES if adapted else _REPAIR_PASSES
    images = (_SCHEDULES + 2) * num_images + _REPAIRED * passes * min(num_images, REPAIR_IMAGES)
    calls = _CALLS_PER_LAYER * layers * images / _USUAL_BATCH
    return RunWork(macs=profile.macs * images, calls=calls, measurements=_SCHEDULES)


_NEWEST_WEIGHT = 0.5  # of the newest run in a correction, on a log scale
_CORRECTION_RANGE = (1 / 50, 50.0)  # of one finished run: a paused machine must not spoil later predictions


class RuntimePredictor:
    """Predicts run times, and learns from finished runs.

    Args:
        path: file of its state; a missing or damaged one is created.
        calibrate: times this machine, called at most once.
    """

    def __init__(self, path: Path, *, calibrate: Callable[[], MachineSpeed]) -> None:
        self._path = path
        self._time_machine = calibrate
        self._lock = threading.Lock()
        self._speed: MachineSpeed | None = None
        self._corrections: dict[str, float] = {}
        self._read()

    @property
    def known(self) -> bool:
        """Whether this machine was timed."""
        return self._speed is not None

    def calibrate(self) -> None:
        """Time this machine now if it is not timed yet, so that a later prediction costs nothing."""
        with self._lock:
            self._measured_speed()

    def predict(self, work: RunWork, *, kind: str) -> float:
        """Return the predicted seconds of ``work``; ``kind`` names similar runs (model, compression)."""
        with self._lock:
            return work.seconds(self._measured_speed()) * self._corrections.get(kind, self._corrections.get("", 1.0))

    def learn(self, work: RunWork, *, kind: str, seconds: float) -> None:
        """Update predictions with the ``seconds`` of ``work``, for runs of its kind and for unknown kinds."""
        with self._lock:
            ratio = seconds / work.seconds(self._measured_speed())
            if not ratio > 0:
                return
            ratio = min(max(ratio, _CORRECTION_RANGE[0]), _CORRECTION_RANGE[1])
            for name in {kind, ""}:
                known = self._corrections.get(name)
                self._corrections[name] = ratio if known is None else _geometric_mean(known, ratio)
            self._write()

    def _measured_speed(self) -> MachineSpeed:
        if self._speed is None:
            self._speed = self._time_machine()
            self._write()
        return self._speed

    def _read(self) -> None:
        try:
            kept = json.loads(self._path.read_bytes())
            speed = MachineSpeed(**{name: float(kept["speed"][name]) for name in MachineSpeed.__slots__})
            corrections = {str(kind): float(ratio) for kind, ratio in kept["corrections"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # only a prediction depends on it, and the speed is soon measured again
        if all(math.isfinite(number) and number > 0 for number in (speed.macs_per_second, *corrections.values())):
            self._speed, self._corrections = speed, corrections

    def _write(self) -> None:
        assert self._speed is not None
        speed = {name: getattr(self._speed, name) for name in MachineSpeed.__slots__}
        try:
            replace_file(self._path, json.dumps({"speed": speed, "corrections": self._corrections}, allow_nan=False))
        except StorageFailed:
            return  # predictions work with a read-only home, until the next start


_TIMED_SECONDS = 0.1  # of each convolution: the best of many calls


def _geometric_mean(known: float, newest: float) -> float:
    mean: float = known ** (1 - _NEWEST_WEIGHT) * newest**_NEWEST_WEIGHT
    return mean


@cache
def time_convolutions() -> MachineSpeed:
    """Time a large and a tiny convolution for about a quarter of a second, once in a process."""
    import torch  # the app paints before torch is loaded

    with torch.inference_mode():
        channels, size = 64, 56
        large = torch.nn.Conv2d(channels, channels, 3, padding=1)
        image = torch.zeros(1, channels, size, size)
        large_seconds = _best_seconds(lambda: large(image))
        tiny = torch.nn.Conv2d(1, 1, 1)
        pixel = torch.zeros(1, 1, 1, 1)
        call_seconds = _best_seconds(lambda: tiny(pixel))
    macs = channels * channels * 9 * size * size
    return MachineSpeed(macs_per_second=macs / max(large_seconds - call_seconds, 1e-7), seconds_per_call=call_seconds)


def _best_seconds(call: Callable[[], object]) -> float:
    best, end = math.inf, time.perf_counter() + _TIMED_SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


register(MachineSpeed)
