"""Everything a page can ask for: one call per user action, frozen records back."""

from __future__ import annotations

from pathlib import Path

from senseapp.errors import QueueFull, SenseError
from senseapp.exchange import read_distiller_csv
from senseapp.results import (
    JobSnapshot,
    RunRecord,
    RunState,
    Schedule,
    SensitivityResult,
    ValidationResult,
)
from senseapp.results.histogram import QuantizationHistogram
from senseapp.service.access import check_paths
from senseapp.service.backend import Backend, backend_at, kind_of
from senseapp.service.headline import headline
from senseapp.service.histogram_task import HistogramTask
from senseapp.service.inputs import Inputs, num_images
from senseapp.service.time_estimate import work_of
from senseapp.service.verification import Verification
from senseapp.spec import RunSpec
from senseapp.spec.compression import SparsityGranularity
from senseapp.spec.histogram import HistogramSpec
from senseapp.store import home as default_home

__all__ = ["LOCAL_OWNER", "Service"]

LOCAL_OWNER = "local"
"""The one person of a server without login."""


class Service(Inputs):
    """One person's view of the server. Cheap to make; holds no state of its own.

    Run ids come from URLs: any text is answered, with NotFound unless it is a run this person may see.
    """

    def __init__(self, backend: Backend, owner: str = LOCAL_OWNER) -> None:
        super().__init__(backend, owner)
        self._store = backend.store

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
            StorageFailed: the run cannot be stored.
        """
        check_paths(spec, self._backend.readable_folders(self.owner))
        record = self._store.create(spec, owner=self.owner, title=title)
        try:
            self._backend.runner.submit(record.run_id)
        except QueueFull:
            self._store.delete(record.run_id, self.owner)
            raise
        return record.run_id

    def import_csv(self, title: str, text: str, *, granularity: SparsityGranularity = "weight") -> str:
        """Make a finished run of another tool's sensitivity table (Distiller's columns), and return its id.

        Raises:
            InvalidFile: the text is not such a table; the message says what is wrong and where.
            InvalidSpec: the title is empty or too long.
            StorageFailed: the run cannot be stored.
        """
        result = read_distiller_csv(text, title=title, granularity=granularity)
        record = self._store.create(result.spec, owner=self.owner, title=title)
        try:
            self._store.folder(record.run_id).save_result(result)
            self._store.set_headline(record.run_id, headline(result))
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
        record = self._store.get(run_id, self.owner)
        known = self._backend.runner.snapshot(record.run_id)
        if known is not None:
            return known
        done, total = self._store.progress(record.run_id)
        return JobSnapshot(run_id=record.run_id, state=record.state, done=done, total=total, error=record.error)

    def cancel(self, run_id: str) -> None:
        """Ask a run to stop; what it measured is kept, and it can be resumed.

        Raises:
            NotFound: there is no such run of this person.
        """
        self._backend.runner.cancel(self._store.owned(run_id, self.owner).run_id)

    def resume(self, run_id: str) -> None:
        """Put a run that did not finish in the queue again; it goes on from its last stored measurement.

        A run that is done, waits or runs is left as it is.

        Raises:
            NotFound: there is no such run of this person.
            QueueFull: too many runs wait.
        """
        record = self._store.owned(run_id, self.owner)
        if record.state is RunState.DONE or not record.state.finished:
            return
        self._store.set_state(record.run_id, RunState.QUEUED)
        try:
            self._backend.runner.submit(record.run_id)
        except QueueFull:
            self._store.set_state(record.run_id, record.state, error=record.error)
            raise

    def run(self, run_id: str) -> RunRecord:
        """Return what is kept about a run.

        Raises:
            NotFound: there is no such run for this person.
        """
        return self._store.get(run_id, self.owner)

    def runs(self) -> tuple[RunRecord, ...]:
        """Return this person's runs, the newest first."""
        return self._store.list(self.owner)

    def result(self, run_id: str) -> SensitivityResult | None:
        """Return the result, or, of a run that has not finished, what it has found so far.

        A partial one has the same form with fewer measurements, so every view can show it; None before the
        model was loaded.

        Raises:
            NotFound: there is no such run for this person.
            InvalidFile: its files are damaged.
        """
        return self._backend.so_far(self._store.get(run_id, self.owner).run_id)

    def rename(self, run_id: str, title: str) -> None:
        """Change the title of a run.

        Raises:
            NotFound: there is no such run of this person.
            InvalidSpec: the title is empty or too long.
        """
        self._store.rename(run_id, self.owner, title)

    def share(self, run_id: str, *, shared: bool) -> None:
        """Let anybody with the link read a run, or nobody else.

        Raises:
            NotFound: there is no such run of this person.
        """
        self._store.share(run_id, self.owner, shared=shared)

    def delete(self, run_id: str) -> None:
        """Stop a run if need be, and remove it with its files.

        Raises:
            NotFound: there is no such run of this person.
        """
        self.cancel(run_id)
        self._backend.cancel_tasks(run_id)
        self._store.delete(run_id, self.owner)

    def verify(self, run_id: str, schedule: Schedule, *, repair: bool = True) -> str:
        """Prove ``schedule`` in the background, and return the id of the job.

        The compressed model is measured on images that the curves have not seen, beside a uniform schedule of equal
        cost; then :meth:`validation` and :meth:`compressed_model` have answers. One that is proven is not again.

        Raises:
            NotFound: there is no such run of this person.
            QueueFull: too many jobs wait.
        """
        record = self._store.owned(run_id, self.owner)
        verification = Verification(run_id=record.run_id, schedule=schedule, repair=repair)
        self._backend.carry_out(verification)
        return verification.job_id

    def verification(self, run_id: str, schedule: Schedule, *, repair: bool = True) -> JobSnapshot | None:
        """Return this moment of the proof of ``schedule``; None if none was asked for since the app started.

        Raises:
            NotFound: there is no such run for this person.
        """
        return self._backend.runner.snapshot(self._verification(run_id, schedule, repair).job_id)

    def cancel_verification(self, run_id: str, schedule: Schedule, *, repair: bool = True) -> None:
        """Ask the proof of ``schedule`` to stop.

        Raises:
            NotFound: there is no such run of this person.
        """
        self._store.owned(run_id, self.owner)
        self._backend.runner.cancel(self._verification(run_id, schedule, repair).job_id)

    def validation(self, run_id: str, schedule: Schedule, *, repair: bool = True) -> ValidationResult | None:
        """Return what was measured of ``schedule``, or None before it is proven.

        Raises:
            NotFound: there is no such run for this person.
            InvalidFile: the file is damaged.
        """
        verification = self._verification(run_id, schedule, repair)
        return self._store.folder(verification.run_id).load_validation(verification.key)

    def compressed_model(self, run_id: str, schedule: Schedule, *, repair: bool = True) -> tuple[Path, ...]:
        """Return the files of the compressed model: its state dict, and where channels were removed the network.

        Raises:
            NotFound: there is no such run for this person, or the schedule is not proven yet.
        """
        verification = self._verification(run_id, schedule, repair)
        return verification.files(self._store.folder(verification.run_id))

    def _verification(self, run_id: str, schedule: Schedule, repair: bool) -> Verification:
        record = self._store.get(run_id, self.owner)
        return Verification(run_id=record.run_id, schedule=schedule, repair=repair)

    def start_histogram(self, run_id: str, spec: HistogramSpec) -> None:
        """Look at a tensor of a finished run's model in the background; then :meth:`histogram` has an answer.

        Raises:
            NotFound: there is no such run for this person.
            QueueFull: too many jobs wait.
        """
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

    def _histogram_task(self, run_id: str, spec: HistogramSpec) -> HistogramTask:
        return HistogramTask(run_id=self._store.get(run_id, self.owner).run_id, spec=spec)

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

    def warm_up(self) -> None:
        """Load torch in the background, once; call it after the first page is up."""
        self._backend.warm_up()
