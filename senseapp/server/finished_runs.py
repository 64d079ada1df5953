"""One user's finished runs: their proofs, files, searches and histograms, and inputs of their schedules."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from filecmp import cmp
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from senseapp.core.errors import NotFound, QueueFull
from senseapp.core.files import storage_errors
from senseapp.records.answers import ChangedAnswers, FileAnswers, PictureAnswers
from senseapp.records.candidate import Candidate, Delivery, file_name
from senseapp.records.deployment import MODEL_FILES
from senseapp.records.jobs import JobSnapshot, RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.server.access import Uploads, check_run_room
from senseapp.server.backend import SHORT_SECONDS
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.machine import MACHINE_LOAD
from senseapp.server.model_cards import same_model
from senseapp.server.outputs import GraphFiles, read_graph, write_graph, zipped_formats
from senseapp.server.process.requester import BYTES_PER_SECOND, WorkerRequest, network_request, num_bytes
from senseapp.server.run_requests import find_couplings, show_pictures, solve_schedule, try_picture
from senseapp.server.run_tasks import Verification
from senseapp.server.settings import check_paths
from senseapp.server.tasks import FinishedRunTask

_INTERRUPTED = "senseapp stopped before this was finished. The run and all that was found before are kept: try again."
OutcomeT = TypeVar("OutcomeT")
TaskT = TypeVar("TaskT", bound=FinishedRunTask[Any])


class Work(Uploads):
    """Tasks on finished runs, their files, and inputs of schedules; a run is named by its id or, to read it, its link.

    Each call raises NotFound unless this user may read the run, or, to start and cancel, owns it.
    """

    def start(self, task: TaskT) -> str:
        """Queue a task and return the id of its job; finished work is not repeated, and a known job keeps its place.

        Raises QueueFull, QuotaExceeded where it leaves files and there is no room, and RateLimited.
        """
        self._store.owned(task.run_id, self._owner)
        if task.keeps_model:
            check_run_room(self._backend.disk_use(self._owner))
        known = self._backend.runner.snapshot(task.job_id)
        if known is None or known.state.finished:
            self._backend.rate_limiter.count(self._owner, "jobs on runs")
        folder, short = self._store.folder(task.run_id), task.is_short
        folder.begin(task.key)
        try:
            if isinstance(task, RecommendationTask):
                short = self.recommendation_seconds(folder.load_result()) <= SHORT_SECONDS
            self._backend.runner.submit(task, short=short, person=self._requester.turn_of(self._owner))
        except QueueFull:
            folder.end(task.key)
            raise
        return task.job_id

    def progress(self, task: TaskT) -> JobSnapshot | None:
        """Return a snapshot of a task; None if it was not requested since the app started.

        A task that was requested before the last start of the app, and did not end, is interrupted.
        """
        known = replace(task, run_id=self._store.readable(task.run_id, self._owner))
        snapshot = self._backend.runner.snapshot(known.job_id)
        if snapshot is None and self._store.folder(known.run_id).begun(known.key):
            return JobSnapshot(run_id=known.job_id, state=RunState.INTERRUPTED, error=_INTERRUPTED)
        return snapshot

    def as_it_goes(self, record: RunRecord) -> RunRecord:
        """Return a finished run as running while a task on it waits or runs: *Finished* means that nothing does."""
        unfinished = {task.run_id for task in self._backend.runner.unfinished()}
        if record.state is not RunState.DONE or not unfinished:
            return record
        goes_on = self._store.readable(record.run_id, self._owner) in unfinished
        return replace(record, state=RunState.RUNNING) if goes_on else record

    def cancel(self, task: TaskT) -> None:
        """Request that a task stops."""
        self._store.owned(task.run_id, self._owner)
        self._backend.runner.cancel(task.job_id)

    def outcome(self, task: FinishedRunTask[OutcomeT]) -> OutcomeT | None:
        """Return the outcome of a task, or None before it is done."""
        return task.outcome(self._folder(task.run_id))

    def changed(self, proof: Verification) -> ChangedAnswers | None:
        """Return the answers that a proven model changes; None if unknown."""
        return self._folder(proof.run_id).load(ChangedAnswers, proof.key)

    def compressed_model(self, proof: Verification) -> tuple[Path, ...]:
        """Return the files of the compressed model, the state dict first; raises NotFound before it is proven."""
        folder = self._folder(proof.run_id)
        weights = folder.compressed_model(proof.key)
        if proof.outcome(folder) is None or not weights.is_file():
            raise NotFound("This schedule is not proven yet, so there is no compressed model. Check it first.")
        return tuple(path for form in MODEL_FILES if (path := weights.with_suffix(form.suffix)).is_file())

    def candidates(self, run_id: str) -> tuple[Candidate, ...]:
        """Return every file made from a run, with its figures."""
        return self._folder(run_id).candidates()

    def made_as(self, run_id: str, path: Path) -> Candidate | None:
        """Return the candidate of a run whose file has the content of the one at ``path``; None if none has."""
        folder, size = self._folder(run_id), path.stat().st_size
        files = (own for own in folder.path.glob("*") if own.suffix == path.suffix and own.stat().st_size == size)
        names = {own.name for own in files if cmp(own, path, shallow=False)}
        return next((each for each in folder.candidates() if each.file in names), None) if names else None

    def candidate_file(self, run_id: str, candidate: Candidate) -> Path:
        """Return the file of a candidate; raises NotFound if only its figures are on this server."""
        return self._folder(run_id).candidate_file(candidate)

    def answers(self, run_id: str, candidate: Candidate) -> FileAnswers | None:
        """Return a file's answer to each image that it was measured on; None if they were not kept."""
        return self._folder(run_id).answers(candidate)

    def pictures(self, run_id: str, names: Sequence[str]) -> dict[str, bytes]:
        """Return pictures of a run of this user as its network gets them, as PNG, by name; none for noise.

        Takes seconds; raises InvalidInput where its model or its images cannot be read any more.
        """
        spec = self._store.folder(self._store.owned(run_id, self._owner).run_id).load_result().spec
        roots = self._backend.readable_folders(self._owner)
        check_paths(spec, roots)
        request = network_request(
            partial(show_pictures, spec, tuple(names), roots), spec.model, subject="The images of this run"
        )
        seconds = request.seconds + num_bytes(spec.data.path) / BYTES_PER_SECOND
        return self._answer(replace(request, seconds=seconds))

    def try_picture(self, run_id: str, picture: Path) -> PictureAnswers:
        """Return the predictions of a run's original network and files for an uploaded picture; takes seconds.

        The picture is removed from the disk in any case. Raises NotFound where none of these files is on this server,
        and InvalidInput where the file is no picture, or the model of the run cannot be loaded any more.
        """
        try:
            folder, result = self._runnable(run_id)
            here = tuple(
                (each.file, path, each.runtime.name)
                for each in folder.candidates()
                if each.runs and each.runtime.is_installed and (path := folder.path / each.file).is_file()
            )
            if not here:
                raise NotFound("There is no file that runs of this run on this server. Make it first.")
            call, paths = partial(try_picture, result.spec, picture, here), [str(path) for _, path, _ in here]
            return self._answer(network_request(call, result.spec.model, *paths, subject=picture.name))
        finally:
            self.discard_upload(picture)

    def pack_kit(self, run_id: str, candidate: Candidate, target: Path) -> Path:
        """Write a zip of a file for a runtime and how it is used; return ``target``."""
        from senseapp.runtimes.base import runtime_named  # torch loads here

        content = self.candidate_file(run_id, candidate)
        record = self._store.record(self._store.readable(run_id, self._owner))
        name = file_name(record.spec.model, candidate)
        kit = runtime_named(candidate.runtime.name).kit(name)
        if candidate.deployment is not None:
            kit |= {"README.txt": candidate.deployment.readme(name, record.spec.target)}
        return _zipped(kit, target, files={name: content})

    def pack_recipes(self, run_id: str, candidate: Candidate, target: Path) -> Path:
        """Write a zip of :meth:`.Runtime.recipes` of a file; return ``target``."""
        from senseapp.runtimes.base import runtime_named  # torch loads here

        content = self.candidate_file(run_id, candidate).read_bytes()
        return _zipped(runtime_named(candidate.runtime.name).recipes(content), target)

    def missing(self, run_id: str) -> tuple[str, ...]:
        """Return why files of a run could not be made, where a piece of work made none."""
        found = (each.notes for each in self._folder(run_id).records(Delivery) if not each.candidates)
        return tuple(dict.fromkeys(note for notes in found for note in notes))

    def partners(self, run_id: str) -> tuple[RunRecord, ...]:
        """Return this user's finished runs of the same network whose compression can be combined with this run's."""
        own = self._store.get(run_id, self._owner).spec
        wanted = own.sensitivity.compression.description.partners
        return tuple(
            other
            for other in map(self._backend.up_to_date, self._store.list(self._owner))
            if other.state is RunState.DONE
            and other.spec.sensitivity.compression.kind in wanted
            and other.spec.model.is_runnable
            and same_model(other.spec.model, own.model)
        )

    def recommendation_seconds(self, result: RunResult) -> float:
        """Return the predicted seconds of the recommendation for a run with this result, beside what else runs now."""
        steps = self._backend.speeds.task_steps(result, with_schedule=True, load=MACHINE_LOAD.load())
        return sum(step.seconds for step in steps)

    def search_is_long(self, result: RunResult) -> bool:
        """Return whether a run like this ends with a file of the original, as the search of a schedule is too long."""
        return self._backend.speeds.follows(result.spec, result.profile, result.num_samples) == "file"

    def was_searched(self, run_id: str) -> bool:
        """Return whether a search of a schedule, within any loss, has ended."""
        return bool(self._folder(run_id).records(Recommendation))

    def solved(
        self,
        run_id: str,
        budget: ResourceBudget,
        *,
        method: str,
        limits: Limits,
        gamma: float,
        groups: Sequence[CoupledGroup] = (),
    ) -> Schedule:
        """Return :func:`~senseapp.solve.trade_off.schedule_for` of a run, computed in a killable process."""
        request = WorkerRequest(
            call=partial(solve_schedule, self._folder(run_id).path, budget, method, limits, gamma, tuple(groups)),
            subject="The schedule of this run",
            seconds=60.0,  # both are four times what the largest imported run takes
            memory_bytes=2e9,
        )
        return self._answer(request)

    def couplings(self, run_id: str) -> tuple[CoupledGroup, ...]:
        """Return the layers that pruning shrinks together; loads the model of the run, which may take seconds."""
        folder, result = self._runnable(run_id)
        model = result.spec.model
        return self._answer(network_request(partial(find_couplings, folder.path, model), model, passes=2))

    def graph(self, run_id: str) -> GraphFiles:
        """Return the network of the run as a graph for Model Explorer; the first export may take seconds."""
        folder, result = self._runnable(run_id)
        model = result.spec.model
        request = network_request(partial(write_graph, folder.path, model), model, passes=2)
        return read_graph(folder) or self._answer(request)

    def target_zip(self, run_id: str, schedule: Schedule, *, run: str = "") -> bytes:
        """Return :func:`~senseapp.server.outputs.zipped_formats` of ``schedule``, for commands about ``run``."""
        result = self._folder(run_id).load_result()
        return zipped_formats(schedule, result, lambda: self.graph(run_id).overlay(schedule), run=run or run_id)


def _zipped(texts: Mapping[str, str], target: Path, files: Mapping[str, Path] | None = None) -> Path:
    with storage_errors(target.name), zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, path in (files or {}).items():
            archive.write(path, name)
        for name, text in texts.items():
            archive.writestr(name, text)
    return target
