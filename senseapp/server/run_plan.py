"""The steps of a run up to its files: what is done, in which order, and what follows the measurement by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from senseapp.core.steps import StepTitle
from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.records.goal import makes_files
from senseapp.records.inputs import num_held_out
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile, select_layers
from senseapp.records.spec import NUM_DIGITS, NUM_PHOTOGRAPHS, NUM_SHAPES, DataSpec, RunSpec
from senseapp.server.job_progress import PlannedStep
from senseapp.server.time_estimate import (
    Follows,
    RuntimePredictor,
    Works,
    file_works,
    run_works,
    schedule_works,
)

SEARCHES_PER_FILE = 10
"""A file follows a run by itself up to this multiple of the limit for recommendations."""
UNKNOWN_STEPS = (
    PlannedStep(title=StepTitle.READ, seconds=5.0),
    PlannedStep(title=StepTitle.ESTIMATE, seconds=5.0),
    PlannedStep(title=StepTitle.LAYERS, seconds=30.0),
)
"""Those of a run before anything of its model is known."""
_NOTHING_COUNTED: Mapping[DataSpec, int] = {}


class RunPlanner:
    """Plans runs: their steps with predicted seconds, and what follows them.

    Args:
        speeds: predicts the seconds of work.
        recommend_seconds: longest predicted time of a recommendation that follows a run by itself; 0: nothing does.
    """

    def __init__(self, speeds: RuntimePredictor, recommend_seconds: float) -> None:
        self._speeds = speeds
        self._longest = recommend_seconds

    def seconds(self, spec: RunSpec, works: Sequence[Works]) -> float:
        """Return the predicted seconds of ``works`` on a quiet machine."""
        return sum(step.seconds for step in self._speeds.steps(works, kind=kind_of(spec)))

    def steps(self, spec: RunSpec, profile: ModelProfile, images: int, *, load: float) -> tuple[PlannedStep, ...]:
        """Return the steps of a run on so many ``images`` up to its files; ``load`` is a slowdown."""
        settings, follows = spec.sensitivity, self.follows(spec, profile, images)
        names = {layer.name for layer in select_layers(profile, settings.layers, settings.layer_types)}
        works = [run_works(profile, settings, num_images=images, selected=names)]
        if follows != "nothing" and makes_files(spec.goal):
            *before, (last, layers) = works[0].items()
            works = [dict(before), file_works(profile, num_images=images, task=spec.model.task), {last: layers}]
        if follows == "schedule":
            works.append(schedule_works(profile, settings, num_images=images, task=spec.model.task))
        return self._speeds.steps(works, kind=kind_of(spec), load=load)

    def follows(self, spec: RunSpec, profile: ModelProfile, images: int) -> Follows:
        """Return what follows a run: the recommendation if it is quick, else the file of the original in int8."""
        if not self._longest or spec.goal == "look" or spec.sensitivity.mode == "quick":
            return "nothing"
        if (
            self.seconds(spec, [schedule_works(profile, spec.sensitivity, num_images=images, task=spec.model.task)])
            <= self._longest
        ):
            return "schedule"
        file = self.seconds(spec, [file_works(profile, num_images=images, task=spec.model.task)])
        return "file" if makes_files(spec.goal) and file <= self._longest * SEARCHES_PER_FILE else "nothing"

    def works_of_task(self, result: RunResult, *, with_schedule: bool) -> list[Works]:
        """Return the work of the files of a finished run, and of the search for a schedule."""
        spec, profile, images = result.spec, result.profile, result.num_samples
        works = [file_works(profile, num_images=images, task=spec.model.task)] if makes_files(spec.goal) else []
        if with_schedule:
            works.append(schedule_works(profile, spec.sensitivity, num_images=images, task=spec.model.task))
        return works


def kind_of(spec: RunSpec) -> str:
    """Return the properties that runs of similar speed share: model, compression, mode and precision."""
    settings = spec.sensitivity
    return "|".join((spec.model.title, settings.compression.kind, settings.mode, settings.precision, settings.device))


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
    if data.kind == "demo":
        return NUM_DIGITS
    if data.kind == "photographs":
        return NUM_PHOTOGRAPHS
    if data.kind == "shapes":
        return NUM_SHAPES
    count = counted.get(replace(data, class_map=()))
    return IMAGE_SETS[data.name].num_images if count is None and data.name else count
