"""Prediction of the time to a run's files, by step: from a model's layers, this machine's speed and its load.

Seconds are of a quiet machine where no load is given. Finished runs correct the steps of their kind.
"""

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
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
from senseapp.records.profile import LayerProfile, ModelProfile, select_layers
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
# Fitted to forward passes of seven networks of 224 pixels, and to the demos; finished runs correct the rest.
_REACHED_SPEED = 0.9  # share of a large convolution's speed that layers reach
_MOVED = 5.7  # cost of a value that a layer returns, in values of a norm with its activation
_WATCHED_CALL = 3.0  # cost of a replayed call, in plain calls
_MEASUREMENT_SECONDS = 0.01  # statistics and storing
_REPLAYED = 0.45  # share of the counted replays that is computed: levels of one layer share what they have in common
_USUAL_BATCH = 32  # images of a micro-batch, where the run leaves it open
_CALLS_PER_SECOND = 60_000  # replayed ones, on the machine on which fixed seconds were measured
_OF_CALLS = 0.8  # power of the seconds of a call, with which fixed seconds grow: part of them is disk and interpreter

SEARCHES_PER_FILE = 10
"""A file follows a run by itself up to this multiple of the limit for recommendations."""
Follows: TypeAlias = Literal["nothing", "file", "schedule"]
"""What follows the measurement of a run by itself: the file of the original weights, or the recommendation too."""


Seconds: TypeAlias = dict[StepTitle, float]
"""Of each step of a job on a quiet machine; a step that is done twice has those of both."""


_NOTHING_COUNTED: Mapping[DataSpec, int] = {}
_DEMOS = {"demo": NUM_DIGITS, "photographs": NUM_PHOTOGRAPHS, "shapes": NUM_SHAPES}


def num_images(spec: RunSpec, counted: Mapping[DataSpec, int] = _NOTHING_COUNTED) -> int | None:
    """Return how many images a run measures on; None if they must be counted first.

    ``counted`` has the numbers of counted images, by :func:`source_of` their spec.
    """
    if spec.sensitivity.num_samples is not None:
        return spec.sensitivity.num_samples
    count = num_available(spec.data, counted)
    return None if count is None else count - num_held_out(count)


def source_of(data: DataSpec) -> DataSpec:
    """Return where images and labels come from, whatever is made of them: by this they are counted."""
    return DataSpec(kind=data.kind, path=data.path, name=data.name, labels=data.labels)


def num_available(data: DataSpec, counted: Mapping[DataSpec, int] = _NOTHING_COUNTED) -> int | None:
    """Return the number of images in ``data``; None if they must be counted first, and for random inputs."""
    if data.kind in _DEMOS:
        return _DEMOS[data.kind]
    count = counted.get(source_of(data))
    return IMAGE_SETS[data.name].num_images if count is None and data.name else count


Steps: TypeAlias = Mapping[StepTitle, tuple[float, float, float, float]]
# Fitted to the steps of runs of digits, photographs and the detector on four machines, with a browser there.
_READ: Steps = {StepTitle.READ: (0.1, 0.002, 3.0, 0.0)}
_FILE: Steps = {
    StepTitle.INT8: (1.2, 0.005, 4.0, 0.0),
    StepTitle.WEIGHTS: (0.7, 0.0, 17.0, 0.0),
    StepTitle.OWN: (0.0, 0.003, 3.0, 0.0),
    StepTitle.PARTS: (0.1, 0.003, 6.0, 4.5),
    StepTitle.TEST: (0.5, 0.015, 14.0, 14.0),
}
_WRITE: Steps = {StepTitle.PROOF: (1.0, 0.01, 0.0, 0.0)}
_FLOAT_TEST: Steps = {StepTitle.TEST: (0.5, 0.01, 4.0, 4.0)}
"""Of a step: fixed seconds, seconds for each layer, passes over its images, and passes whose answers are compared."""
_FILE_IMAGES = 384  # that fit and judge a file, at most
_ANSWER_SECONDS = {"detection": 0.0056}
"""Seconds for reading and comparing the answers to one image, for tasks in which that takes long."""
_USUALLY_KEPT_BUSY = 0.65  # of the processors' time that a run uses on a quiet machine: parts of it have one thread
_KEPT_BUSY = {"detection": 0.45}  # comparing answers has one
_SCHEDULES = 15  # whole schedules that a recommendation measures before the proof
_REPAIRED = 9  # of them and of the proof, those also measured with repair
_REPAIR_PASSES = 6  # over the images for a repair's fit and evaluation
_ANSWERED = 0.75  # share of all these images whose answers are compared: those of a repair's fit are not
_ADAPTING_PASSES = 40  # equivalent passes of a repair that adapts weights
_PROVING = 0.4  # share of the proof in the work of the search


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A run on so many images of a network, on a quiet machine of this speed."""

    spec: RunSpec
    profile: ModelProfile
    num_images: int
    speed: MachineSpeed

    def run(self) -> Seconds:
        """Return the seconds of the measurement, without what follows it.

        Measuring layer k replays the network from k on, once per level, so with layers in execution order
        ``seconds = images × levels × Σ_k Σ_{j≥k} seconds_j``. The quick scan is some passes, and two more per level.
        """
        settings, images = self.spec.sensitivity, self.num_images
        selected = {each.name for each in select_layers(self.profile, settings.layers, settings.layer_types)}
        levels = len(settings.levels)
        layers = [layer for layer in self.profile.layers if layer.runs]
        replayed = calls = measurements = 0.0
        if settings.mode == "exact":
            suffix = 0.0
            for suffix_layers, layer in enumerate(reversed(layers), start=1):
                suffix += self._layer(layer)
                if layer.name in selected:
                    replayed += levels * suffix
                    calls += levels * suffix_layers
                    measurements += levels
        batches = _CALLS_PER_LAYER * -(-images // (settings.batch_size or _USUAL_BATCH))
        scan: float = _SCAN_PASSES + _SCAN_PASSES_PER_LEVEL * levels
        if settings.mode != "quick":
            scan *= num_previewed(images, self.profile.macs, _SCAN_PASSES + _SCAN_PASSES_PER_LEVEL * levels) / images
        replayed = _REPLAYED * (replayed * images + self._calls(calls * batches))
        return self._steps(_READ, images) | {
            StepTitle.ESTIMATE: scan * (self._pass * images + self._calls(len(layers) * batches)),
            StepTitle.LAYERS: replayed + _MEASUREMENT_SECONDS * measurements,
        }

    def file(self) -> Seconds:
        """Return the seconds of making and measuring the file of the original weights in int8."""
        return self._steps(_FILE, min(self.num_images, _FILE_IMAGES))

    def float_file(self) -> Seconds:
        """Return the seconds of making and measuring a file in float."""
        return self._steps({**_READ, **_FLOAT_TEST}, min(self.num_images, _FILE_IMAGES))

    def schedule(self) -> Seconds:
        """Return the seconds of recommending a schedule, with its files."""
        settings, layers = self.spec.sensitivity, sum(layer.runs for layer in self.profile.layers)
        passes = _ADAPTING_PASSES if settings.adapted else _REPAIR_PASSES
        images = (_SCHEDULES + 2) * self.num_images + _REPAIRED * passes * min(self.num_images, REPAIR_IMAGES)
        calls = _CALLS_PER_LAYER / 2 * layers * images / _USUAL_BATCH  # nothing is watched
        calls += _CALLS_PER_SECOND * _ANSWERED * images * self._answer_seconds
        seconds = self._pass * images + self._calls(calls)
        search = {
            StepTitle.SCHEDULES: (1 - _PROVING) * seconds,
            StepTitle.PROOF: _PROVING * seconds + self._steps(_WRITE, 0)[StepTitle.PROOF],
        }
        if settings.compression.description.removes_channels:
            return search | self.file()
        return search | self._steps(_FLOAT_TEST, min(self.num_images, _FILE_IMAGES))

    @property
    def _answer_seconds(self) -> float:
        return _ANSWER_SECONDS.get(self.spec.model.task, 0.0)

    @property
    def _pass(self) -> float:
        """The seconds of an image in the whole network, but for calls."""
        layers = [layer for layer in self.profile.layers if layer.runs]
        others = self.profile.macs - sum(layer.macs for layer in layers)
        return sum(map(self._layer, layers)) + others / (_REACHED_SPEED * self.speed.macs_per_second)

    def _layer(self, layer: LayerProfile) -> float:
        """Return the seconds of an image in a layer and what follows it: they compute, and move what they return."""
        moved = _MOVED * math.prod(layer.output_shape) / self.speed.values_per_second
        return layer.macs / (_REACHED_SPEED * self.speed.macs_per_second) + moved

    def _calls(self, calls: float) -> float:
        return _WATCHED_CALL * calls * self.speed.seconds_per_call

    def _steps(self, steps: Steps, images: int) -> Seconds:
        layers, found = sum(layer.runs for layer in self.profile.layers), Seconds()
        pace = (_WATCHED_CALL * _CALLS_PER_SECOND * self.speed.seconds_per_call) ** _OF_CALLS
        for title, (fixed, of_layer, passes, compared) in steps.items():
            seconds = fixed + of_layer * layers + compared * images * self._answer_seconds
            found[title] = passes * images * self._pass + pace * seconds
        return found


_NEWEST_WEIGHT = 0.5  # of the newest run in a correction, on a log scale
_OF_OTHERS = 0.5  # power of a correction that runs of other kinds gave: part of it is theirs, part the machine's
_CORRECTION_RANGE = (1 / 50, 50.0)  # of one finished run: a paused machine must not spoil later predictions


def _slowdown(spec: RunSpec, load: float) -> float:
    """Return how many times as long a run takes under a load that takes processors from it."""
    return max(1.0, _KEPT_BUSY.get(spec.model.task, _USUALLY_KEPT_BUSY) * load)


def kind_of(spec: RunSpec) -> str:
    """Return the properties that runs of similar speed share: model, compression, mode and precision."""
    settings = spec.sensitivity
    return "|".join((spec.model.title, settings.compression.kind, settings.mode, settings.precision, settings.device))


def levels_before(spec: RunSpec, earlier: Sequence[RunSpec]) -> int:
    """Return of how many levels of a run the measurements are taken over from an earlier finished one."""
    alike = (one for one in earlier if (one.model, one.data) == (spec.model, spec.data))
    known = (set(one.sensitivity.levels) for one in alike if _covers(one.sensitivity, spec.sensitivity))
    return len(max(known, key=len, default=set()) & set(spec.sensitivity.levels))


def _covers(one: SensitivitySpec, wanted: SensitivitySpec) -> bool:
    """Return whether measurements of one run are also those of another one at the levels that both have."""
    if one.compression != wanted.compression or wanted.mode == "quick" or wanted.until_settled:
        return False
    one = replace(one, levels=wanted.levels, metric=wanted.metric)
    return one in (wanted, replace(wanted, layers=(), layer_types=()))


def _has_file(spec: RunSpec, earlier: Sequence[RunSpec]) -> bool:
    """Return whether a run on the same images has made the first file of a run."""

    def images(one: RunSpec) -> tuple[object, ...]:
        return one.model, one.data.kind, one.data.name, one.data.path, one.sensitivity.num_samples, one.sensitivity.seed

    return any(
        images(each) == images(spec)
        and each.sensitivity.mode == "exact"
        and makes_files(each.goal)
        and each.target == spec.target
        for each in earlier
    )


class RuntimePredictor:
    """Predicts the steps of runs and of what follows them, and learns from finished runs.

    Args:
        path: file of its state; a missing or damaged one is created.
        calibrate: times this machine, called at most once.
        recommend_seconds: longest predicted time of a recommendation that follows a run by itself, unless targets are
            the goal of the run; 0: nothing does.
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

    def steps(self, jobs: Sequence[Seconds], *, kind: str, load: float = 1.0) -> tuple[PlannedStep, ...]:
        """Return the steps of ``jobs`` in this order, corrected by finished runs; ``kind`` names similar ones.

        ``load`` is how many times as long as on a quiet machine they take.
        """
        with self._lock:
            return tuple(
                PlannedStep(title=title, seconds=load * seconds * self._correction(kind, title))
                for job in jobs
                for title, seconds in job.items()
            )

    def run_steps(
        self, spec: RunSpec, profile: ModelProfile, images: int, *, load: float, earlier: Sequence[RunSpec] = ()
    ) -> tuple[PlannedStep, ...]:
        """Return the steps of a run on so many ``images`` up to its files.

        ``load`` is that of :class:`LoadWatch`. What finished ``earlier`` runs of the same owner have made is not made
        again: such steps take no time.
        """
        work, follows = self._workload(spec, profile, images), self.follows(spec, profile, images)
        left = 1 - levels_before(spec, earlier) / len(spec.sensitivity.levels)
        *before, (last, layers) = work.run().items()
        jobs: list[Seconds] = [dict(before), {last: left * layers}]
        if follows != "nothing" and makes_files(spec.goal):
            jobs.insert(1, {title: seconds * (not _has_file(spec, earlier)) for title, seconds in work.file().items()})
        if follows == "schedule":
            jobs.append(work.schedule())
        return self.steps(jobs, kind=kind_of(spec), load=_slowdown(spec, load))

    def task_steps(
        self, result: RunResult, *, with_schedule: bool, load: float, in_float: bool = False
    ) -> tuple[PlannedStep, ...]:
        """Return the steps of the files of a finished run, or of one file ``in_float``, and of a search."""
        work = self._workload(result.spec, result.profile, result.num_samples)
        jobs = [work.float_file()] if in_float else [work.file()] if makes_files(result.spec.goal) else []
        jobs += [work.schedule()] if with_schedule else []
        return self.steps(jobs, kind=kind_of(result.spec), load=_slowdown(result.spec, load))

    def follows(self, spec: RunSpec, profile: ModelProfile, images: int) -> Follows:
        """Return what follows a run: the recommendation if quick or the goal, else the file of the original in int8.

        Finished runs do not correct these times, so that a resumed run, or one that is alike, makes the same files.
        """
        if not self._longest or spec.goal == "look" or spec.sensitivity.mode == "quick":
            return "nothing"
        work = self._workload(spec, profile, images)
        if spec.goal == "targets" or sum(work.schedule().values()) <= self._longest:
            return "schedule"
        is_quick = sum(work.file().values()) <= self._longest * SEARCHES_PER_FILE
        return "file" if makes_files(spec.goal) and is_quick else "nothing"

    def _workload(self, spec: RunSpec, profile: ModelProfile, images: int) -> Workload:
        return Workload(spec=spec, profile=profile, num_images=images, speed=self.speed())

    def learn(self, planned: Sequence[PlannedStep], taken: Mapping[str, float], *, kind: str) -> None:
        """Correct predictions by the seconds that steps took, for runs of this kind and for unknown kinds."""
        self.speed()  # known in every file of this state
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
        return self._corrections.get(f"{kind}|{title}", math.pow(self._corrections.get(title, 1.0), _OF_OTHERS))

    def speed(self) -> MachineSpeed:
        """Return the speed of this machine, which the first call measures."""
        with self._lock:
            if self._speed is None:
                self._speed = self._time_machine()
                self._write()
            return self._speed

    def _read(self) -> None:
        try:
            kept = json.loads(self._path.read_bytes())
            speeds = {name: float(kept["speed"][name]) for name in MachineSpeed.__slots__}
            corrections = {str(kind): float(ratio) for kind, ratio in kept["corrections"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # only a prediction depends on it, and the speed is soon measured again
        if all(math.isfinite(number) and number > 0 for number in (*speeds.values(), *corrections.values())):
            self._speed, self._corrections = MachineSpeed(**speeds), corrections

    def _write(self) -> None:
        assert self._speed is not None
        speed = {name: getattr(self._speed, name) for name in MachineSpeed.__slots__}
        with suppress(StorageFailed):  # predictions work with a read-only home, until the next start
            replace_file(self._path, json.dumps({"speed": speed, "corrections": self._corrections}, allow_nan=False))
