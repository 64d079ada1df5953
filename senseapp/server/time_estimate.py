"""Prediction of the time to a run's files, by step: from the model's MACs, this machine's speed and its load.

Seconds are of a quiet machine until :class:`LoadWatch` is asked. Finished runs correct the steps of their kind.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from senseapp.core.errors import StorageFailed
from senseapp.core.files import replace_file
from senseapp.core.steps import StepTitle
from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.records.goal import makes_files
from senseapp.records.inputs import num_held_out, num_previewed
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile, select_layers
from senseapp.records.spec import (
    NUM_DIGITS,
    NUM_PHOTOGRAPHS,
    NUM_SHAPES,
    REPAIR_IMAGES,
    DataSpec,
    RunSpec,
    SensitivitySpec,
)
from senseapp.server.job_progress import PlannedStep
from senseapp.server.machine import MachineSpeed

_SCAN_PASSES, _SCAN_PASSES_PER_LEVEL = 5, 2  # of the quick scan, whose backward pass costs about two forward ones
_CALLS_PER_LAYER = 4  # a compressible layer usually comes with a norm, an activation and a block around it
# From the demo, ResNet-18, EfficientNet-Lite0 and MobileNetV3-Small; finished runs correct the rest.
_REACHED_SPEED = 0.28  # of a large convolution's, over whole networks
_WATCHED_CALL = 3.0  # cost of a replayed call, in plain calls
_MEASUREMENT_SECONDS = 0.01  # statistics and storing
_REPLAYED = 0.45  # share of the counted replays that is computed: levels of one layer share what they have in common
_USUAL_BATCH = 32  # images of a micro-batch, where the run leaves it open
_CALLS_PER_SECOND = 60_000  # replayed ones, on the machine on which fixed seconds were measured

UNKNOWN_STEPS = (
    PlannedStep(title=StepTitle.READ, seconds=5.0),
    PlannedStep(title=StepTitle.ESTIMATE, seconds=5.0),
    PlannedStep(title=StepTitle.LAYERS, seconds=30.0),
)
"""Those of a run before anything of its model is known."""
SEARCHES_PER_FILE = 10
"""A file follows a run by itself up to this multiple of the limit for recommendations."""
Follows: TypeAlias = Literal["nothing", "file", "schedule"]
"""What follows the measurement of a run by itself: the file of the original weights, or the recommendation too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """The work of one step: multiply-accumulates, calls of modules, and measurements to store."""

    macs: float = 0.0
    calls: float = 0.0
    measurements: int = 0

    def seconds(self, speed: MachineSpeed) -> float:
        """Return the seconds of this work at ``speed``."""
        arithmetic = self.macs / (_REACHED_SPEED * speed.macs_per_second)
        overhead = _WATCHED_CALL * self.calls * speed.seconds_per_call
        return arithmetic + overhead + _MEASUREMENT_SECONDS * self.measurements


Works: TypeAlias = dict[StepTitle, RunWork]
"""The work of each step of a job; a step that is done twice has the work of both."""


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


def run_works(
    profile: ModelProfile, settings: SensitivitySpec, *, num_images: int, selected: Collection[str] | None = None
) -> Works:
    """Count the work of a run on the layers named in ``selected`` (None: all), without what follows it.

    Measuring layer k replays the network from k on, once per level, so with layers in execution order
    ``macs = images × levels × Σ_k Σ_{j≥k} macs_j``. The quick scan is some passes, and two more per level.
    """
    levels = len(settings.levels)
    layers = [layer for layer in profile.layers if layer.runs]
    macs = calls = measurements = 0
    if settings.mode == "exact":
        suffix_macs = 0
        for suffix_layers, layer in enumerate(reversed(layers), start=1):
            suffix_macs += layer.macs
            if selected is None or layer.name in selected:
                macs += levels * suffix_macs
                calls += levels * suffix_layers
                measurements += levels
    batches = _CALLS_PER_LAYER * -(-num_images // (settings.batch_size or _USUAL_BATCH))
    passes = _SCAN_PASSES + _SCAN_PASSES_PER_LEVEL * levels
    share = 1.0 if settings.mode == "quick" else num_previewed(num_images, profile.macs, passes) / num_images
    scan = passes * share
    return {
        StepTitle.READ: _work(_READ, profile, num_images),
        StepTitle.ESTIMATE: RunWork(macs=scan * profile.macs * num_images, calls=scan * len(layers) * batches),
        StepTitle.LAYERS: RunWork(
            macs=_REPLAYED * macs * num_images, calls=_REPLAYED * calls * batches, measurements=measurements
        ),
    }


# Fitted to the steps of runs of digits, photographs and the detector on two quiet machines.
_READ, _INT8, _WEIGHTS = (0.25, 0.002, 3.0), (0.6, 0.005, 4.0), (0.5, 0.0, 27.0)
_OWN, _PARTS = (0.0, 0.005, 10.0), (0.1, 0.003, 4.5)
_TEST, _WRITE, _FLOAT_TEST = (0.2, 0.015, 14.0), (0.4, 0.01, 0.0), (0.2, 0.01, 4.0)
"""Of a step: fixed seconds, seconds for each layer, passes over its images."""
_FILE_IMAGES = 384  # that fit and judge a file, at most
_ANSWER_SECONDS = {"detection": 0.0056}
"""Seconds for reading and comparing the answers to one image, for tasks in which that takes long."""


def _work(step: tuple[float, float, float], profile: ModelProfile, images: int, task: str = "") -> RunWork:
    fixed, of_layer, passes = step
    layers = sum(layer.runs for layer in profile.layers)
    seconds = fixed + of_layer * layers + passes * images * _ANSWER_SECONDS.get(task, 0.0)
    return RunWork(macs=passes * images * profile.macs, calls=_CALLS_PER_SECOND * seconds)


def file_works(profile: ModelProfile, *, num_images: int, task: str) -> Works:
    """Count the work of making and measuring the file of the original weights in int8."""
    images = min(num_images, _FILE_IMAGES)
    return {
        StepTitle.INT8: _work(_INT8, profile, images),
        StepTitle.WEIGHTS: _work(_WEIGHTS, profile, images),
        StepTitle.OWN: _work(_OWN, profile, images),
        StepTitle.PARTS: _work(_PARTS, profile, images, task),
        StepTitle.TEST: _work(_TEST, profile, images, task),
    }


_SCHEDULES = 15  # whole schedules that a recommendation measures before the proof
_REPAIRED = 9  # of them and of the proof, those also measured with repair
_REPAIR_PASSES = 6  # over the images for a repair's fit and evaluation
_ADAPTING_PASSES = 40  # equivalent passes of a repair that adapts weights
_PROVING = 0.4  # share of the proof in the work of the search


def schedule_works(profile: ModelProfile, settings: SensitivitySpec, *, num_images: int, task: str) -> Works:
    """Count the work of recommending a schedule on ``num_images`` images, with its files."""
    layers = sum(layer.runs for layer in profile.layers)
    passes = _ADAPTING_PASSES if settings.adapted else _REPAIR_PASSES
    images = (_SCHEDULES + 2) * num_images + _REPAIRED * passes * min(num_images, REPAIR_IMAGES)
    calls = _CALLS_PER_LAYER / 2 * layers * images / _USUAL_BATCH  # nothing is watched
    calls += _CALLS_PER_SECOND * images * _ANSWER_SECONDS.get(task, 0.0)
    both = {StepTitle.SCHEDULES: 1 - _PROVING, StepTitle.PROOF: _PROVING}
    written = {StepTitle.PROOF: _work(_WRITE, profile, 0).calls}
    search = {
        each: RunWork(macs=share * profile.macs * images, calls=share * calls + written.get(each, 0.0))
        for each, share in both.items()
    }
    if settings.compression.description.removes_channels:
        return search | file_works(profile, num_images=num_images, task=task)
    return search | {StepTitle.TEST: _work(_FLOAT_TEST, profile, min(num_images, _FILE_IMAGES), task)}


_NEWEST_WEIGHT = 0.5  # of the newest run in a correction, on a log scale
_CORRECTION_RANGE = (1 / 50, 50.0)  # of one finished run: a paused machine must not spoil later predictions


def kind_of(spec: RunSpec) -> str:
    """Return the properties that runs of similar speed share: model, compression, mode and precision."""
    settings = spec.sensitivity
    return "|".join((spec.model.title, settings.compression.kind, settings.mode, settings.precision, settings.device))


class RuntimePredictor:
    """Predicts the steps of runs and of what follows them, and learns from finished runs.

    Args:
        path: file of its state; a missing or damaged one is created.
        calibrate: times this machine, called at most once.
        recommend_seconds: longest predicted time of a recommendation that follows a run by itself; 0: nothing does.
    """

    def __init__(self, path: Path, *, calibrate: Callable[[], MachineSpeed], recommend_seconds: float = 0) -> None:
        self._path = path
        self._time_machine = calibrate
        self._longest = recommend_seconds
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

    def steps(self, works: Sequence[Works], *, kind: str, load: float = 1.0) -> tuple[PlannedStep, ...]:
        """Return the steps of ``works`` in this order; ``kind`` names similar runs (model, compression).

        ``load`` is the present :meth:`LoadWatch.slowdown` of this machine.
        """
        with self._lock:
            speed = self._measured_speed()
            return tuple(
                PlannedStep(title=title, seconds=load * work.seconds(speed) * self._correction(kind, title))
                for each in works
                for title, work in each.items()
            )

    def run_steps(self, spec: RunSpec, profile: ModelProfile, images: int, *, load: float) -> tuple[PlannedStep, ...]:
        """Return the steps of a run on so many ``images`` up to its files; ``load`` is a slowdown."""
        settings, follows = spec.sensitivity, self.follows(spec, profile, images)
        names = {layer.name for layer in select_layers(profile, settings.layers, settings.layer_types)}
        works = [run_works(profile, settings, num_images=images, selected=names)]
        if follows != "nothing" and makes_files(spec.goal):
            *before, (last, layers) = works[0].items()
            works = [dict(before), file_works(profile, num_images=images, task=spec.model.task), {last: layers}]
        if follows == "schedule":
            works.append(schedule_works(profile, settings, num_images=images, task=spec.model.task))
        return self.steps(works, kind=kind_of(spec), load=load)

    def task_steps(self, result: RunResult, *, with_schedule: bool, load: float) -> tuple[PlannedStep, ...]:
        """Return the steps of the files of a finished run, and of the search for a schedule."""
        spec, profile, images = result.spec, result.profile, result.num_samples
        works = [file_works(profile, num_images=images, task=spec.model.task)] if makes_files(spec.goal) else []
        if with_schedule:
            works.append(schedule_works(profile, spec.sensitivity, num_images=images, task=spec.model.task))
        return self.steps(works, kind=kind_of(spec), load=load)

    def follows(self, spec: RunSpec, profile: ModelProfile, images: int) -> Follows:
        """Return what follows a run: the recommendation if it is quick, else the file of the original in int8."""
        if not self._longest or spec.goal == "look" or spec.sensitivity.mode == "quick":
            return "nothing"

        def seconds(works: Works) -> float:
            return sum(step.seconds for step in self.steps([works], kind=kind_of(spec)))

        if seconds(schedule_works(profile, spec.sensitivity, num_images=images, task=spec.model.task)) <= self._longest:
            return "schedule"
        if not makes_files(spec.goal):
            return "nothing"
        file = seconds(file_works(profile, num_images=images, task=spec.model.task))
        return "file" if file <= self._longest * SEARCHES_PER_FILE else "nothing"

    def learn(self, planned: Sequence[PlannedStep], taken: Mapping[str, float], *, kind: str) -> None:
        """Correct predictions by the seconds that steps took, for runs of this kind and for unknown kinds."""
        with self._lock:
            for title, seconds in taken.items():
                ratio = seconds / (sum(each.seconds for each in planned if each.title == title) or math.inf)
                if not ratio > 0:
                    continue
                newest = self._correction(kind, title) * min(max(ratio, _CORRECTION_RANGE[0]), _CORRECTION_RANGE[1])
                for name in (f"{kind}|{title}", title):
                    known = self._corrections.get(name, newest)
                    self._corrections[name] = float(known ** (1 - _NEWEST_WEIGHT) * newest**_NEWEST_WEIGHT)
            self._write()

    def _correction(self, kind: str, title: str) -> float:
        return self._corrections.get(f"{kind}|{title}", self._corrections.get(title, 1.0))

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
        with suppress(StorageFailed):  # predictions work with a read-only home, until the next start
            replace_file(self._path, json.dumps({"speed": speed, "corrections": self._corrections}, allow_nan=False))
