"""Requests of pages about a model and images before a run: cards, reports, previews, space for uploads; the demo."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from senseapp.compressions import QuantizationConfig
from senseapp.records.deployment import LayerTimes
from senseapp.records.goal import makes_files, settings_for, with_goal
from senseapp.records.inputs import ImageSurvey, MatchReport, OnnxReport, PreviewReport
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.records.spec import (
    MOST_RANDOM_INPUTS,
    NUM_MEASURED_PHOTOGRAPHS,
    NUM_MEASURED_SHAPES,
    DataSpec,
    Goal,
    ModelSpec,
    RunSpec,
    SensitivitySpec,
)
from senseapp.server.access import Uploads
from senseapp.server.machine import MACHINE_LOAD
from senseapp.server.model_cards import (
    CheckpointReport,
    compare_checkpoint,
    examine_onnx_file,
    find_pruning_groups,
    identify_checkpoint,
)
from senseapp.server.process.requester import COPIES, WorkerRequest, file_request, network_request
from senseapp.server.run_requests import preview_images, read_schedule_file, read_times, survey
from senseapp.server.settings import check_paths
from senseapp.server.time_estimate import levels_before, num_available, num_images, source_of
from senseapp.store.device_times.base import ReportSummary
from senseapp.store.layer_times import summarised
from senseapp.tasks import task_named

PHOTOGRAPHS_DEMO = RunSpec(
    model=ModelSpec(library="demo", name="efficientnet_lite0"),
    data=DataSpec(kind="photographs"),
    sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(4, 8), num_samples=NUM_MEASURED_PHOTOGRAPHS),
)
"""The second demo: EfficientNet-Lite0 on photographs, without a download."""

DETECTION_DEMO = RunSpec(
    model=ModelSpec(library="demo", name="shapes_detector", task="detection"),
    data=DataSpec(kind="shapes"),
    sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(3, 4, 8), num_samples=NUM_MEASURED_SHAPES),
)
"""The third demo: a small detector on coloured rectangles over photographs."""


def usual_settings(model: ModelSpec, goal: Goal) -> SensitivitySpec:
    """Return the settings that a page fills in for ``model`` and ``goal``."""
    demo = next((each for each in (PHOTOGRAPHS_DEMO, DETECTION_DEMO) if each.model == model), None)
    return settings_for(goal, task_named(model.task)) if demo is None else with_goal(demo, goal).sensitivity


_DOWNLOAD_SECONDS = 3600.0  # of an image set on a slow connection; one that stalls is given up after a minute


class Inputs(Uploads):
    """One user's models and images. Calls may take seconds: not for the user-interface thread.

    Each raises InvalidInput if a file may not be read here, or a model or images cannot be used.
    """

    def _checked(self, spec: RunSpec) -> tuple[Path, ...]:
        """Return the folders that this user's runs may read, after checking the paths in ``spec``."""
        folders = self._backend.readable_folders(self._owner)
        check_paths(spec, folders)
        return folders

    def model_card(self, model: ModelSpec) -> ModelProfile:
        """Return the profile of a model; the first call loads it."""
        self._checked(RunSpec(model=model))
        return self._backend.cards.card(model, self._requester).profile

    def pruning_groups(self, spec: RunSpec) -> tuple[tuple[str, ...], ...]:
        """Return the layers that a run of pruning couples, by group; loads the model, takes seconds."""
        self._checked(RunSpec(model=spec.model))
        if not spec.sensitivity.compression.description.removes_channels:
            return ()
        return self._answer(network_request(partial(find_pruning_groups, spec), spec.model, passes=2))

    def identify_checkpoint(self, path: str, *, network: str = "") -> CheckpointReport:
        """Read a checkpoint and rank the architectures it may belong to; may take seconds."""
        self._checked(RunSpec(model=ModelSpec(library="auto", checkpoint=path, network=network)))
        return self._answer(file_request(partial(identify_checkpoint, path, network=network), path, copies=COPIES))

    def examine_onnx(self, model: ModelSpec) -> OnnxReport:
        """Return what an ONNX file holds and how it would be measured; may take seconds."""
        self._checked(RunSpec(model=model))
        subject = Path(model.checkpoint).name
        return self._answer(network_request(partial(examine_onnx_file, model), model, subject=subject))

    def compare_checkpoint(self, model: ModelSpec) -> MatchReport:
        """Compare a checkpoint with one architecture, name by name; may take seconds."""
        self._checked(RunSpec(model=model))
        return self._answer(network_request(partial(compare_checkpoint, model), model))

    def survey_images(self, data: DataSpec, model: ModelSpec) -> ImageSurvey:
        """List a folder or archive and propose the class of ``model`` for each of its labels.

        The first call for a model loads it, as :meth:`model_card` does.
        """
        roots = self._checked(RunSpec(model=model, data=data))
        classes, card = self.model_card(model).num_classes, self._backend.cards.card(model, self._requester)
        call = partial(survey, data, model.task, classes, card.class_names, roots)
        request = file_request(call, data.path, subject=Path(data.path).name or data.name)
        found = self._answer(replace(request, seconds=_DOWNLOAD_SECONDS) if data.name else request)
        counts = self._backend.image_counts
        counts[source_of(data)] = found.num_images
        while len(counts) > 512:
            counts.pop(next(iter(counts)))
        return found

    def preview(self, spec: RunSpec) -> PreviewReport:
        """Return some images of ``spec`` as its model gets them, with the model's figures on them; takes seconds."""
        roots, count = self._checked(spec), num_available(spec.data, self._backend.image_counts)
        call = partial(preview_images, spec, num_images=count, data_roots=roots)
        request = network_request(call, spec.model)
        return self._answer(replace(request, seconds=600.0))  # with a search for the preprocessing

    def read_schedule(self, content: bytes, profile: ModelProfile) -> Schedule:
        """Read a senseapp schedule file; InvalidSchedule unless it is one, for the model of ``profile``."""
        return self._answer(WorkerRequest(call=partial(read_schedule_file, content, profile)))

    def read_times(self, content: bytes, result: RunResult, *, name: str, level: float | None = None) -> LayerTimes:
        """Read times of layers from a file called ``name``; InvalidFile, in one sentence, if it has none."""
        call = partial(read_times, content, name, result.profile, result.spec.sensitivity.compression, level)
        return self._answer(WorkerRequest(call=call))

    def summarise_report(self, content: bytes, *, name: str) -> ReportSummary:
        """Return the figures of a device's report called ``name``; InvalidFile, in one sentence, if it is none."""
        return self._answer(WorkerRequest(call=partial(summarised, content, name=name)))

    def estimate_time(self, spec: RunSpec) -> float | None:
        """Predict the seconds until the files of a run here, under the present load of this machine.

        None if images were not counted, or this machine is not timed yet. Uses :meth:`model_card`.
        """
        count = num_images(spec, self._backend.image_counts)
        if count is None or not self.machine_timed:
            return None
        load, earlier = MACHINE_LOAD.load(), self._backend.store.finished_specs(self._owner)
        card = self.model_card(spec.model)
        steps = self._backend.speeds.run_steps(spec, card, count, load=load, earlier=earlier)
        return sum(step.seconds for step in steps)

    def levels_before(self, spec: RunSpec) -> int:
        """Return of how many levels of a run the measurements are taken over from an earlier one of this user."""
        return levels_before(spec, self._backend.store.finished_specs(self._owner))

    def known_time(self, spec: RunSpec) -> float | None:
        """Return :meth:`estimate_time` where it is known without loading the model, else None."""
        return self.estimate_time(spec) if self._backend.cards.knows(spec.model) else None

    def files_follow(self, spec: RunSpec) -> bool:
        """Return whether files are made at the end of a run by themselves; False if images were not counted."""
        count = num_images(spec, self._backend.image_counts)
        if count is None or not makes_files(spec.goal):
            return False
        return self._backend.speeds.follows(spec, self.model_card(spec.model), count) != "nothing"

    def most_images(self, data: DataSpec) -> int | None:
        """Return the largest allowed number of images of ``data``; None if they were not counted."""
        return MOST_RANDOM_INPUTS if data.kind == "random" else num_available(data, self._backend.image_counts)

    @property
    def machine_timed(self) -> bool:
        """Whether times can be predicted without waiting; the process that loads the engine times the machine."""
        return self._backend.processes is None or (self._backend.speeds.known and MACHINE_LOAD.known)
