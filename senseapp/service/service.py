"""Everything a page can ask for: one call per user action, frozen records back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.errors import QueueFull, SenseError
from senseapp.exchange import notes_on_names, read_distiller_csv
from senseapp.results import (
    JobSnapshot,
    RunState,
)
from senseapp.results.histogram import QuantizationHistogram
from senseapp.service.access import check_paths
from senseapp.service.backend import Backend, backend_at, kind_of
from senseapp.service.headline import headline
from senseapp.service.histogram_task import HistogramTask
from senseapp.service.inputs import num_images
from senseapp.service.leaderboard import LeaderboardRow
from senseapp.service.run_log import LogEntry, read_run_log
from senseapp.service.run_room import check_run_room
from senseapp.service.scheduling import Scheduling
from senseapp.service.system_report import SystemReport, system_report
from senseapp.service.time_estimate import work_of
from senseapp.spec import ModelSpec, RunSpec
from senseapp.spec.histogram import HistogramSpec
from senseapp.store import home as default_home

LOCAL_OWNER = "local"
"""The one person of a server without login."""


class Service(Scheduling):
    """One person's view of the server. Cheap to make; holds no state of its own."""

    def __init__(self, backend: Backend, owner: str = LOCAL_OWNER) -> None:
        super().__init__(backend, owner)

    @classmethod
    def at(cls, home: Path | None = None, owner: str = LOCAL_OWNER) -> Service:
        """Return the service of this process's shared backend; ``home`` None takes ``SENSEAPP_HOME``.

        Raises:
            StorageFailed: the home cannot be used.
        """
        return cls(backend_at(home or default_home()), owner)

    def start(self, spec: RunSpec, *, title: str = "") -> str:
        """Put a run in the queue and return its id; the model is loaded by the worker, never here.

        Raises:
            InvalidInput: a file lies where this app may not read, or the title is too long.
            QueueFull: too many runs wait.
            QuotaExceeded: this person's runs or everybody's take too much disk space.
            RateLimited: this person starts too many in a minute.
            StorageFailed: the run cannot be stored.
        """
        self._backend.pace.count(self.owner, "runs")
        self.require_owner()
        check_paths(spec, self._backend.readable_folders(self.owner))
        self._backend.tidy()
        check_run_room(self.disk_use())
        record = self._store.create(spec, owner=self.owner, title=title)
        try:
            self._backend.runner.submit(record.run_id)
        except QueueFull:
            self._store.delete(record.run_id, self.owner)
            raise
        return record.run_id

    def import_csv(
        self, title: str, text: str, *, granularity: SparsityGranularity = "weight", model: ModelSpec | None = None
    ) -> str:
        """Make a finished run of another tool's sensitivity table (Distiller's columns), and return its id.

        Args:
            title: of the run.
            text: the table.
            granularity: what was zeroed as a unit.
            model: the one that was measured, for the sizes of its layers; asks for :meth:`model_card`, which may
                take seconds. What the table names and the model lacks is left out, and the run's origin says so.

        Raises:
            InvalidInput: the text is not such a table, or ``model`` has none of its parameters or cannot be built.
            InvalidSpec: the title is empty or too long.
            StorageFailed: the run cannot be stored.
        """
        self.require_owner()
        profile = self.model_card(model) if model is not None else None
        result = read_distiller_csv(text, title=title, granularity=granularity, profile=profile)
        check_run_room(self.disk_use())
        record = self._store.create(result.spec, owner=self.owner, title=title)
        try:
            sentence = headline(result)
            self._store.folder(record.run_id).save_result(replace(result, summary=sentence))
            self._store.set_headline(record.run_id, sentence)
            self._store.set_origin(record.run_id, notes_on_names(result))
        except SenseError:
            self._store.delete(record.run_id, self.owner)
            raise
        count = len(result.measurements)
        self._store.set_state(record.run_id, RunState.DONE, done=count, total=count)
        return record.run_id

    def snapshot(self, run_id: str) -> JobSnapshot:
        """Return this moment of a run, of the worker while it waits or runs, else as it was stored.

        Raises:
            NotFound: there is no such run for this person.
        """
        record, true_id = self.run(run_id), self._store.readable(run_id, self.owner)
        known = self._backend.runner.snapshot(true_id)
        if known is not None:
            return replace(known, run_id=run_id)
        done, total = self._store.progress(true_id)
        return JobSnapshot(run_id=run_id, state=record.state, done=done, total=total, error=record.error)

    def cancel(self, run_id: str) -> None:
        """Ask a run to stop; what it measured is kept, and it can be resumed.

        Raises:
            NotFound: there is no such run of this person.
        """
        self._backend.runner.cancel(self._store.owned(run_id, self.owner).run_id)

    def resume(self, run_id: str, *, here: bool = False) -> None:
        """Put a run that did not finish in the queue again; it goes on from its last stored measurement.

        A run that is done, waits or runs is left as it is. With ``here`` it goes on on this machine, whatever cluster
        there is.

        Raises:
            NotFound: there is no such run of this person.
            InvalidInput: a file that it reads is gone.
            QueueFull: too many runs wait.
            RateLimited: this person starts too many in a minute.
        """
        record = self._backend.up_to_date(self._store.owned(run_id, self.owner))
        if record.state is RunState.DONE or not record.state.finished:
            return
        check_paths(record.spec, self._backend.readable_folders(self.owner))
        self._backend.pace.count(self.owner, "runs")
        self._backend.measure_here(record.run_id, here=here)
        self._store.set_state(record.run_id, RunState.QUEUED)
        try:
            self._backend.runner.submit(record.run_id)
        except QueueFull:
            self._store.set_state(record.run_id, record.state, error=record.error)
            raise

    def leaderboard(self) -> tuple[LeaderboardRow, ...]:
        """Return this person's finished runs, the most compressible first; the first time half a second for each."""
        return self._backend.leaderboard.rows(self.runs())

    def run_log(self, run_id: str) -> tuple[LogEntry, ...]:
        """Return what was logged about a run, the oldest first; of its owner only: it may name files.

        Raises:
            NotFound: there is no such run of this person.
            StorageFailed: it cannot be read.
        """
        return read_run_log(self._store.folder(self._store.owned(run_id, self.owner).run_id).path)

    def start_histogram(self, run_id: str, spec: HistogramSpec) -> None:
        """Look at a tensor of a finished run's model in the background; then :meth:`histogram` has an answer.

        Raises:
            NotFound: there is no such run of this person.
            QueueFull: too many jobs wait.
        """
        self._store.owned(run_id, self.owner)
        self._backend.carry_out(self._histogram_task(run_id, spec))

    def histogram_progress(self, run_id: str, spec: HistogramSpec) -> JobSnapshot | None:
        """Return this moment of a histogram's job; None if none was asked for since the app started.

        Raises:
            NotFound: there is no such run for this person.
        """
        return self._backend.runner.snapshot(self._histogram_task(run_id, spec).job_id)

    def histogram(self, run_id: str, spec: HistogramSpec) -> QuantizationHistogram | None:
        """Return a histogram that was made, or None before it is.

        Raises:
            NotFound: there is no such run for this person.
            InvalidFile: the file is damaged.
        """
        task = self._histogram_task(run_id, spec)
        return self._store.folder(task.run_id).load_histogram(task.key)

    def histograms(self, run_id: str) -> tuple[QuantizationHistogram, ...]:
        """Return every histogram that was made of a run, the oldest first.

        Raises:
            NotFound: there is no such run for this person.
            InvalidFile: a file is damaged.
        """
        return self._store.folder(self._store.readable(run_id, self.owner)).histograms()

    def _histogram_task(self, run_id: str, spec: HistogramSpec) -> HistogramTask:
        return HistogramTask(run_id=self._store.readable(run_id, self.owner), spec=spec)

    def estimate_time(self, spec: RunSpec) -> float | None:
        """Predict the seconds a run takes here; None where the number of images is not known beforehand.

        Asks for :meth:`model_card`, and on first use times this machine for a quarter of a second.

        Raises:
            InvalidInput: the model cannot be used, or no layer is selected.
        """
        count = num_images(spec, self._backend.image_counts)
        if count is None:
            return None
        from senseapp.layers import select_layers  # the model card has loaded torch already

        profile = self.model_card(spec.model)
        settings = spec.sensitivity
        selected = {layer.name for layer in select_layers(profile, settings.layers, settings.layer_types)}
        work = work_of(profile, settings, num_images=count, selected=selected)
        return self._backend.speeds.predict(work, kind=kind_of(spec))

    def system(self) -> SystemReport:
        """Return how the server is right now, for anybody who may open the app."""
        running, waiting = self._backend.runner.load()
        return system_report(
            self._backend.home,
            self._store,
            self._backend.settings,
            running=running,
            waiting=waiting,
            job_pids=self._backend.job_pids(),
        )

    def warm_up(self) -> None:
        """Load torch in the background, once; call it after the first page is up."""
        self._backend.warm_up()
