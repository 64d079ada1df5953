"""Interface for pages: one call per user action, which returns frozen records."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.core.errors import NotFound, QueueFull, StorageFailed
from senseapp.core.files import MB, bytes_in, storage_errors
from senseapp.core.files import home as default_home
from senseapp.descriptions.targets import TARGETS
from senseapp.records.answers import ChangedAnswers
from senseapp.records.goal import makes_files
from senseapp.records.headline import headline
from senseapp.records.jobs import JobSnapshot, RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import ValidationResult
from senseapp.records.spec import ModelSpec, RunSpec, without_folders
from senseapp.server.access import Access, DiskUse, check_run_room
from senseapp.server.backend import Backend, backend_at
from senseapp.server.checks import Checks
from senseapp.server.finished_runs import Work
from senseapp.server.inputs import Inputs
from senseapp.server.operations import LogEntry, SystemReport, disk_problems, read_run_log
from senseapp.server.process.requester import ANYBODY, Requester, WorkerRequest, file_request
from senseapp.server.run_requests import unpack_run_file
from senseapp.server.settings import LOCAL_OWNER, ServerSettings, check_paths, uploads_folder
from senseapp.store.distiller import notes_on_names, read_distiller_csv
from senseapp.store.run_file import write_run_file
from senseapp.store.run_folder import RunFolder

_IMPORTED = "Imported from a run file; what is in it was measured elsewhere."


class Service(Access):
    """One user's view of the server: their runs, and parts for everything around them. Cheap to construct.

    Ids come from URLs: any text is accepted, with NotFound unless this user may see the run (to change it, owns it). A
    run's link, in place of its id, allows reading it and no change.

    Attributes:
        inputs: models and images, before a run.
        work: proofs, searches and histograms of finished runs, and their files and schedules.
        checks: of files against each other.
    """

    def __init__(self, backend: Backend, owner: str = LOCAL_OWNER, requester: Requester = ANYBODY) -> None:
        super().__init__(backend, owner, requester)
        self.owner = owner
        self.inputs = Inputs(backend, owner, requester)
        self.work = Work(backend, owner, requester)
        self.checks = Checks(backend, owner, requester)

    @classmethod
    def at(cls, home: Path | None = None, owner: str = LOCAL_OWNER, requester: Requester = ANYBODY) -> Self:
        """Return the service of this process's shared backend; ``home`` None: ``SENSEAPP_HOME``."""
        return cls(backend_at(home or default_home()), owner, requester)

    def run(self, run_id: str) -> RunRecord:
        """Return the record of a run."""
        return self._backend.up_to_date(self._store.get(run_id, self.owner))

    def runs(self) -> tuple[RunRecord, ...]:
        """Return this user's runs, newest first."""
        return tuple(self._backend.up_to_date(record) for record in self._store.list(self.owner))

    def result(self, run_id: str) -> RunResult | None:
        """Return the result, or, for an unfinished run, the partial result.

        A partial one has the same form with fewer measurements, so every view can show it; None before the model was
        loaded.
        """
        record = self._store.get(run_id, self.owner)
        result = self._backend.so_far(self._store.readable(run_id, self.owner))
        return without_folders(result) if result is not None and record.read_only else result

    def rename(self, run_id: str, title: str) -> None:
        """Change the title of a run."""
        self._store.rename(run_id, self.owner, title)

    def tag(self, run_id: str, tags: Sequence[str]) -> None:
        """Change the tags by which its owner finds a run."""
        self._store.tag(run_id, self.owner, tags)

    def share(self, run_id: str, *, shared: bool) -> str:
        """Allow anybody with the link to read a run, and return the link; or revoke it, and return an empty one.

        A revoked link never works again.
        """
        return self._store.share(run_id, self.owner, shared=shared)

    def delete(self, run_id: str) -> None:
        """Stop a run if necessary, and delete it; for :data:`UNDO_SECONDS` its owner can :meth:`restore` it."""
        known = self._backend.up_to_date(self._store.owned(run_id, self.owner))
        for task in self._backend.runner.unfinished():
            if task.run_id == known.run_id:
                self._backend.runner.cancel(task.job_id)
        if not known.state.finished:
            self._store.set_state(known.run_id, RunState.CANCELLED)
        self._store.delete(known.run_id, self.owner)
        self._backend.remove_deleted_later()

    def restore(self, run_id: str) -> RunRecord:
        """Undo :meth:`delete`; stopped jobs stay stopped. NotFound if its files are removed already."""
        return self._store.restore(run_id, self.owner)

    def pack(self, run_id: str, stream: BinaryIO) -> None:
        """Write a finished run as one file, for :meth:`import_run` here or on another server."""
        write_run_file(self._folder(run_id), self.run(run_id).title, stream)

    def import_run(self, path: Path) -> str:
        """Create a finished run from a file of :meth:`pack`, and return its id; the file is not trusted.

        Raises InvalidFile where it is no such file, damaged, too large, or has unexpected content, and QuotaExceeded
        where there is no room for it.
        """
        self.require_owner()
        use = self.disk_use()
        check_run_room(use)
        most_bytes = ServerSettings.configured().upload_mb * MB
        uploads = uploads_folder(self._backend.home, self.owner)
        with storage_errors("the run"):
            uploads.mkdir(parents=True, exist_ok=True)
            room = tempfile.TemporaryDirectory(dir=uploads)
        with room as folder:
            call = partial(unpack_run_file, path, Path(folder), most_bytes)
            title = self._answer(file_request(call, str(path), subject="This file"))
            unpacked = RunFolder(Path(folder))
            check_run_room(use, bytes_in(unpacked.path))
            return self._keep_finished(unpacked.load_result(), unpacked.move_to, title=title, origin=_IMPORTED)

    def disk_use(self) -> DiskUse:
        """Return disk use and limits of this user's and of all users' runs."""
        return self._backend.disk_use(self.owner)

    def introduce(self, name: str) -> None:
        """Store this user's display name, which is shown with shared runs."""
        self._store.set_owner_name(self.owner, name)

    def start(self, spec: RunSpec, *, title: str = "") -> str:
        """Queue a run and return its id; the model is loaded by the worker, never here.

        Raises InvalidInput where a file is outside the allowed folders, the title is too long, or the runtime of its
        files is not installed, QueueFull, QuotaExceeded, and RateLimited.
        """
        self._backend.rate_limiter.count(self.owner, "runs")
        self.require_owner()
        check_paths(spec, self._backend.readable_folders(self.owner))
        if makes_files(spec.goal):
            TARGETS[spec.target].check_installed()
        self._backend.tidy()
        check_run_room(self.disk_use())
        record = self._store.create(spec, owner=self.owner, title=title)
        try:
            seconds = self.inputs.known_time(spec)
            self._backend.start(record, self._requester.turn_of(self.owner), seconds=seconds)
        except QueueFull:
            self._store.remove(record.run_id)
            raise
        return record.run_id

    def import_csv(
        self, title: str, content: bytes, *, granularity: SparsityGranularity = "weight", model: ModelSpec | None = None
    ) -> str:
        """Create a finished run from another tool's sensitivity table (Distiller's columns), and return its id.

        ``model`` is the measured model, for the sizes of its layers; its card may take seconds. Parameters in the table
        that the model lacks are left out; the run's origin says so, and how the table was read. Raises InvalidInput
        where the file is not such a table, or ``model`` has none of its parameters or cannot be built.
        """
        self.require_owner()
        profile = self.inputs.model_card(model) if model is not None else None
        read = partial(read_distiller_csv, content, title=title, granularity=granularity, profile=profile)
        result = self._answer(WorkerRequest(call=read))
        check_run_room(self.disk_use())
        result = replace(result, summary=headline(result))
        origin = notes_on_names(result)
        return self._keep_finished(result, lambda folder: folder.save_result(result), title=title, origin=origin)

    def _keep_finished(self, result: RunResult, fill: Callable[[RunFolder], None], *, title: str, origin: str) -> str:
        """Create a finished run whose files ``fill`` writes, and return its id; on failure nothing is kept."""
        count = len(result.measurements)
        return self._store.create(
            result.spec,
            owner=self.owner,
            title=title,
            fill=fill,
            done=count,
            total=count,
            headline=headline(result),
            origin=origin,
        ).run_id

    def snapshot(self, run_id: str) -> JobSnapshot:
        """Return a snapshot of a run: from the worker while it waits or runs, else from the store."""
        record, true_id = self.run(run_id), self._store.readable(run_id, self.owner)
        if (known := self._backend.runner.snapshot(true_id)) is not None:
            return replace(known, run_id=run_id)
        done, total = self._store.progress(true_id)
        return JobSnapshot(run_id=run_id, state=record.state, done=done, total=total, error=record.error)

    def blocking_run(self, snapshot: JobSnapshot) -> RunRecord | None:
        """Return the run of the running job for which a waiting one waits; None unless it is this user's."""
        with suppress(NotFound):
            return self._store.owned(snapshot.behind.split(":")[0], self.owner)
        return None

    def cancel(self, run_id: str) -> None:
        """Request that a run stops; its measurements are kept, and it can be resumed."""
        self._backend.runner.cancel(self._store.owned(run_id, self.owner).run_id)

    def resume(self, run_id: str, *, here: bool = False) -> None:
        """Queue a run that did not finish again; it continues from its last stored measurement.

        A run that is done, waiting or running is unchanged. With ``here`` it continues on this machine, even if there
        is a cluster. Raises as :meth:`start` does.
        """
        record = self._backend.up_to_date(self._store.owned(run_id, self.owner))
        if record.state is RunState.DONE or not record.state.finished:
            return
        check_paths(record.spec, self._backend.readable_folders(self.owner))
        self._backend.rate_limiter.count(self.owner, "runs")
        self._store.set_state(record.run_id, RunState.QUEUED)
        try:
            self._backend.start(record, self._requester.turn_of(self.owner), here=here)
        except QueueFull:
            self._store.set_state(record.run_id, record.state, error=record.error)
            raise

    def is_expert(self) -> bool:
        """Return whether this user has the switch *Expert* on."""
        return self._store.is_expert(self.owner)

    def set_expert(self, *, expert: bool) -> None:
        """Keep the switch of this user."""
        self.require_owner()
        self._store.set_expert(self.owner, expert=expert)

    def run_log(self, run_id: str) -> tuple[LogEntry, ...]:
        """Return the log of a run, oldest first; for its owner only, as it may name files."""
        return read_run_log(self._store.folder(self._store.owned(run_id, self.owner).run_id).path)

    def validations(self, run_id: str) -> tuple[ValidationResult, ...]:
        """Return every proof of the run, oldest first."""
        return self._folder(run_id).records(ValidationResult)

    def changed_answers(self, run_id: str) -> tuple[ChangedAnswers, ...]:
        """Return every comparison of answers of a run, oldest first."""
        return self._folder(run_id).records(ChangedAnswers)

    def system(self) -> SystemReport:
        """Return the current state of the server, for every visitor of the app; problems are part of it."""
        backend, problems, runs_bytes = self._backend, [*disk_problems(self._backend.home)], None
        running, waiting = backend.runner.load()
        try:
            runs_bytes = self._store.bytes_used()
        except StorageFailed as error:
            problems.append(str(error))
        return SystemReport(
            home=backend.home,
            settings=backend.settings,
            running=running,
            waiting=waiting,
            job_pids=backend.processes.pids() if backend.processes else (),
            runs_bytes=runs_bytes,
            problems=tuple(problems),
        )

    def disk_problems(self) -> tuple[str, ...]:
        """Return problems with the disk, in sentences; raises StorageFailed if the database cannot be read."""
        self._store.bytes_used()
        return tuple(disk_problems(self._backend.home))

    def warm_up(self, also: Callable[[], None] = lambda: None) -> None:
        """Load torch and then call ``also``, in the background, once; call it after the first page is shown."""
        self._backend.warm_up(also)
