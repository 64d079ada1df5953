"""What a person does with a schedule of a finished run: prove it, search for the strongest, see what was measured."""

from __future__ import annotations

from pathlib import Path

from senseapp.results import (
    JobSnapshot,
    RunRecord,
    RunState,
    Schedule,
    SensitivityResult,
    StrongestFound,
    ValidationResult,
)
from senseapp.results.coupling import CoupledGroup
from senseapp.service.access import check_paths
from senseapp.service.engine import load_engine
from senseapp.service.graph_files import GraphFiles, export_graph
from senseapp.service.library import Library
from senseapp.service.run_room import check_run_room
from senseapp.service.same_model import same_model
from senseapp.service.strongest_search import DropLimit, StrongestSearch
from senseapp.service.target_file import zipped_formats
from senseapp.service.verification import Verification
from senseapp.spec import CompressionConfig, RunSpec
from senseapp.store import RunFolder


class Scheduling(Library):
    """One person's proofs and searches; they go through the queue and leave files in the run's folder."""

    def verify(
        self, run_id: str, schedule: Schedule, *, repair: bool = True, other: CompressionConfig | None = None
    ) -> str:
        """Prove ``schedule`` in the background, and return the id of the job.

        The compressed model is measured on images that the curves have not seen, beside a uniform schedule of equal
        cost; then :meth:`validation` and :meth:`compressed_model` have answers. One that is proven is not again.
        ``other`` is how a second run compresses, whose levels are in the schedule too.

        Raises:
            NotFound: there is no such run of this person.
            QueueFull: too many jobs wait.
            QuotaExceeded: there is no room for the compressed model.
        """
        record = self._store.owned(run_id, self.owner)
        check_run_room(self.disk_use())
        verification = self._verification(record.run_id, schedule, repair, other)
        self._backend.carry_out(verification)
        return verification.job_id

    def verification(
        self, run_id: str, schedule: Schedule, *, repair: bool = True, other: CompressionConfig | None = None
    ) -> JobSnapshot | None:
        """Return this moment of the proof of ``schedule``; None if none was asked for since the app started.

        Raises:
            NotFound: there is no such run for this person.
        """
        return self._backend.runner.snapshot(self._verification(run_id, schedule, repair, other).job_id)

    def cancel_verification(
        self, run_id: str, schedule: Schedule, *, repair: bool = True, other: CompressionConfig | None = None
    ) -> None:
        """Ask the proof of ``schedule`` to stop.

        Raises:
            NotFound: there is no such run of this person.
        """
        self._store.owned(run_id, self.owner)
        self._backend.runner.cancel(self._verification(run_id, schedule, repair, other).job_id)

    def validation(
        self, run_id: str, schedule: Schedule, *, repair: bool = True, other: CompressionConfig | None = None
    ) -> ValidationResult | None:
        """Return what was measured of ``schedule``, or None before it is proven.

        Raises:
            NotFound: there is no such run for this person.
            InvalidFile: the file is damaged.
        """
        verification = self._verification(run_id, schedule, repair, other)
        return self._store.folder(verification.run_id).load_validation(verification.key)

    def compressed_model(
        self, run_id: str, schedule: Schedule, *, repair: bool = True, other: CompressionConfig | None = None
    ) -> tuple[Path, ...]:
        """Return the files of the compressed model: its state dict, and where channels were removed the network.

        Raises:
            NotFound: there is no such run for this person, or the schedule is not proven yet.
        """
        verification = self._verification(run_id, schedule, repair, other)
        return verification.files(self._store.folder(verification.run_id))

    def _verification(
        self, run_id: str, schedule: Schedule, repair: bool, other: CompressionConfig | None
    ) -> Verification:
        known = self._store.readable(run_id, self.owner)
        return Verification(run_id=known, schedule=schedule, repair=repair, other=other)

    def validations(self, run_id: str) -> tuple[ValidationResult, ...]:
        """Return every proof of the run, the oldest first.

        Raises:
            NotFound: there is no such run for this person.
            InvalidFile: one is damaged.
        """
        return self._store.folder(self._store.readable(run_id, self.owner)).validations()

    def start_search(self, run_id: str, drop: DropLimit) -> None:
        """Search in the background for the strongest schedule within ``drop``; then :meth:`strongest` has it.

        Raises:
            NotFound: there is no such run of this person.
            QueueFull: too many jobs wait.
        """
        self._store.owned(run_id, self.owner)
        self._backend.carry_out(self._search(run_id, drop))

    def search_progress(self, run_id: str, drop: DropLimit) -> JobSnapshot | None:
        """Return this moment of a search; None if none was asked for since the app started.

        Raises:
            NotFound: there is no such run for this person.
        """
        return self._backend.runner.snapshot(self._search(run_id, drop).job_id)

    def cancel_search(self, run_id: str, drop: DropLimit) -> None:
        """Ask a search to stop.

        Raises:
            NotFound: there is no such run of this person.
        """
        self._store.owned(run_id, self.owner)
        self._backend.runner.cancel(self._search(run_id, drop).job_id)

    def strongest(self, run_id: str, drop: DropLimit) -> StrongestFound | None:
        """Return what a search found, or None before it has.

        Raises:
            NotFound: there is no such run for this person.
            InvalidFile: the file is damaged.
        """
        search = self._search(run_id, drop)
        return self._store.folder(search.run_id).load_strongest(search.key)

    def _search(self, run_id: str, drop: DropLimit) -> StrongestSearch:
        return StrongestSearch(run_id=self._store.readable(run_id, self.owner), drop=drop)

    def partners(self, run_id: str) -> tuple[RunRecord, ...]:
        """Return this person's finished runs of the same network whose compression goes together with this run's.

        Raises:
            NotFound: there is no such run for this person.
        """
        own = self.run(run_id).spec
        wanted = own.sensitivity.compression.description.partners
        return tuple(
            other
            for other in self.runs()
            if other.state is RunState.DONE
            and other.spec.sensitivity.compression.kind in wanted
            and other.spec.model.library != "imported"
            and same_model(other.spec.model, own.model)
        )

    def couplings(self, run_id: str) -> tuple[CoupledGroup, ...]:
        """Return which layers shrink together when channels go; loads the model of the run, which may take seconds.

        Raises:
            NotFound: there is no such run for this person, or it is not finished.
            InvalidInput: the model cannot be loaded any more.
        """
        _, result = self._with_model(run_id)
        load_engine()
        from senseapp.models.load import load_model
        from senseapp.validation import couplings_of

        return couplings_of(load_model(result.spec.model).module, result)

    def graph(self, run_id: str) -> GraphFiles:
        """Return the network of the run as a graph for Model Explorer; exporting it, once, may take seconds.

        Raises:
            NotFound: there is no such run for this person, or it is not finished.
            InvalidInput: the model cannot be loaded any more, or not be exported.
            StorageFailed: the files cannot be written.
        """
        return export_graph(*self._with_model(run_id))

    def target_zip(self, run_id: str, schedule: Schedule) -> bytes:
        """Return every target file of ``schedule`` in one zip, with a manifest; a file left out is told in its README.

        Raises:
            NotFound: there is no such run for this person, or it is not finished.
            InvalidSchedule: the schedule belongs to another model.
        """
        _, result = self._readable_result(run_id)
        return zipped_formats(schedule, result, lambda: self.graph(run_id).zipped(schedule))

    def _readable_result(self, run_id: str) -> tuple[RunFolder, SensitivityResult]:
        folder = self._store.folder(self._store.readable(run_id, self.owner))
        return folder, folder.load_result()

    def _with_model(self, run_id: str) -> tuple[RunFolder, SensitivityResult]:
        """Return the folder and the result of a finished run whose model its owner may still read."""
        folder, result = self._readable_result(run_id)
        owner = self._store.record(self._store.readable(run_id, self.owner)).owner
        check_paths(RunSpec(model=result.spec.model), self._backend.readable_folders(owner))
        return folder, result
