"""What a person does with the runs that are kept: list, name, share, delete, weigh."""

from __future__ import annotations

from typing import BinaryIO

from senseapp.errors import NotFound
from senseapp.exchange import read_run_file, write_run_file
from senseapp.results import RunRecord, SensitivityResult
from senseapp.service.backend import Backend
from senseapp.service.inputs import Inputs
from senseapp.service.run_files import keep_run_file
from senseapp.service.run_room import DiskUse, check_run_room, disk_use
from senseapp.service.upload_room import UploadLimits


class Library(Inputs):
    """One person's runs. Ids come from URLs: any text is answered, with NotFound unless this person may see the run.

    Whoever has a run's link may read it through the link in place of its id, and can change nothing.
    """

    def __init__(self, backend: Backend, owner: str) -> None:
        super().__init__(backend, owner)
        self._store = backend.store

    def run(self, run_id: str) -> RunRecord:
        """Return what is kept about a run.

        Raises:
            NotFound: there is no such run for this person.
        """
        return self._backend.up_to_date(self._store.get(run_id, self.owner))

    def runs(self) -> tuple[RunRecord, ...]:
        """Return this person's runs, the newest first."""
        return tuple(self._backend.up_to_date(record) for record in self._store.list(self.owner))

    def result(self, run_id: str) -> SensitivityResult | None:
        """Return the result, or, of a run that has not finished, what it has found so far.

        A partial one has the same form with fewer measurements, so every view can show it; None before the
        model was loaded.

        Raises:
            NotFound: there is no such run for this person.
            InvalidFile: its files are damaged.
        """
        record = self._store.get(run_id, self.owner)
        result = self._backend.so_far(self._store.readable(run_id, self.owner))
        if result is None or not record.read_only:
            return result
        return result.without_folders()

    def rename(self, run_id: str, title: str) -> None:
        """Change the title of a run.

        Raises:
            NotFound: there is no such run of this person.
            InvalidSpec: the title is empty or too long.
        """
        self._store.rename(run_id, self.owner, title)

    def share(self, run_id: str, *, shared: bool) -> str:
        """Let anybody with the link read a run, and return the link; or nobody else, for which it is empty.

        A link that was taken back never works again.

        Raises:
            NotFound: there is no such run of this person.
        """
        return self._store.share(run_id, self.owner, shared=shared)

    def delete(self, run_id: str) -> None:
        """Stop a run if need be, and remove it with its files.

        Raises:
            NotFound: there is no such run of this person.
        """
        known = self._store.owned(run_id, self.owner).run_id
        self._backend.stop_all(known)
        self._store.delete(known, self.owner)

    def pack(self, run_id: str, stream: BinaryIO) -> None:
        """Write a finished run as one file, for :meth:`import_run` here or on another server.

        Raises:
            NotFound: there is no such run for this person, or it is not finished.
            StorageFailed: there is no room for the file.
        """
        folder = self._store.folder(self._store.readable(run_id, self.owner))
        write_run_file(folder, self.run(run_id).title, stream)

    def import_run(self, stream: BinaryIO) -> str:
        """Make a finished run of a file that :meth:`pack` wrote, and return its id; anybody may have made the file.

        Raises:
            InvalidFile: it is no such file, damaged, too large, or holds anything unexpected.
            QuotaExceeded: there is no room for it.
            StorageFailed: it cannot be stored.
        """
        self.require_owner()
        use = self.disk_use()
        check_run_room(use)
        read = read_run_file(stream, most_bytes=UploadLimits.configured().file_bytes)
        check_run_room(use, read.num_bytes)
        return keep_run_file(self._store, read, owner=self.owner)

    def disk_use(self) -> DiskUse:
        """Return what this person's runs and everybody's take, and may take."""
        return disk_use(self._store, self.owner, self._backend.settings)

    def require_owner(self) -> None:
        """Check that this is somebody whom runs can belong to: the last guard, should a page let a stranger in.

        Raises:
            NotFound: it is not.
        """
        if not self.owner:
            raise NotFound("Nobody is logged in, so there is nobody to keep a run for. Log in first.")

    def introduce(self, name: str) -> None:
        """Keep what this person is called, to be shown beside what they share."""
        self._store.introduce(self.owner, name)
