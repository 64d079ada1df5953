"""What one user reaches in the server: runs, uploads, and the disk space for both."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from senseapp.core.errors import NotFound, QuotaExceeded
from senseapp.core.files import MB, bytes_in, storage_errors
from senseapp.descriptions import SOURCES
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import RunResult
from senseapp.records.spec import RunSpec
from senseapp.server.process.requester import ANYBODY, AnswerT, Requester, WorkerRequest
from senseapp.server.settings import ServerSettings, check_paths, uploads_folder
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.server.backend import Backend


class Access:
    """One user's access to runs and to worker processes."""

    def __init__(self, backend: Backend, owner: str, requester: Requester = ANYBODY) -> None:
        self._backend = backend
        self._store = backend.store
        self._owner = owner
        self._requester = requester
        self._uploads = uploads_folder(backend.home, owner)

    def require_owner(self, what: str = "a run") -> None:
        """Raise NotFound unless this user can own anything: the last guard, should a page admit a stranger."""
        if not self._owner:
            raise NotFound(f"Nobody is logged in, so there is nobody to keep {what} for. Log in first.")

    def _answer(self, request: WorkerRequest[AnswerT]) -> AnswerT:
        """Answer a request of this user in a worker process; may wait."""
        return self._backend.answer(request, self._requester)

    def _folder(self, run_id: str) -> RunFolder:
        """Return the folder of a run, named by its id or its link; NotFound unless this user may read it."""
        return self._store.folder(self._store.readable(run_id, self._owner))

    def _runnable(self, run_id: str) -> tuple[RunFolder, RunResult]:
        """Return folder and result of a finished run that this user may read, if its owner may read its model."""
        folder = self._folder(run_id)
        result, owner = folder.load_result(), self._store.record(self._store.readable(run_id, self._owner)).owner
        check_paths(RunSpec(model=result.spec.model), self._backend.readable_folders(owner))
        return folder, result


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Disk space of one user's and of all users' runs, free space, and :attr:`ServerSettings.keep_days`."""

    own_bytes: int
    own_limit_bytes: int
    all_bytes: int
    all_limit_bytes: int
    free_bytes: int
    keep_days: int


def check_run_room(use: DiskUse, num_bytes: int = 0) -> None:
    """Raise QuotaExceeded unless the quotas allow a new run, or ``num_bytes`` more."""
    more = f", and this adds {_megabytes(num_bytes)}" if num_bytes else ""
    if use.own_bytes + num_bytes >= use.own_limit_bytes:
        raise QuotaExceeded(
            f"Your runs may take {_megabytes(use.own_limit_bytes)} and take {_megabytes(use.own_bytes)}{more}. "
            "Delete some on the Runs page; those with compressed models are the largest."
        )
    if use.all_bytes + num_bytes >= use.all_limit_bytes:
        raise QuotaExceeded(
            f"The runs on this server may take {_megabytes(use.all_limit_bytes)} in all, and there is no room left"
            f"{more}. Delete runs that you no longer need, or ask whoever runs it."
        )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / MB:,.1f} MB" if num_bytes < 10 * MB else f"{num_bytes // MB:,} MB"


_UNFINISHED = "upload"  # name of a file until a page has taken it


def sweep_uploads(everybodys: Path, *, is_read: Callable[[str], bool], at_start: bool = False) -> None:
    """Remove uploads of six hours ago, ``at_start`` also unfinished ones, whose folder no run reads (``is_read``)."""
    oldest = time.time() - 6 * 3600.0
    for own in everybodys.glob("*/*/"):
        with suppress(FileNotFoundError):  # another upload may be removed at any time
            written = [path.lstat().st_mtime for path in own.iterdir()] or [own.lstat().st_mtime]
            is_unfinished = at_start and (own / _UNFINISHED).exists()
            if (is_unfinished or max(written) <= oldest) and not is_read(own.name):
                shutil.rmtree(own, ignore_errors=True)


UploadPurpose: TypeAlias = Literal["checkpoint", "onnx", "images", "reference", "candidate"]
"""What uploads are kept for: those of models as :attr:`~senseapp.descriptions.ModelSource.upload` says, images, and
both sides of a check."""


class Uploads(Access):
    """One user's uploads: each in a folder of its own, with a name that cannot be guessed."""

    def reserve_upload(self, num_bytes: int = 0, *, announced_bytes: int = 0) -> Path:
        """Create the file for an upload, ``num_bytes`` large, and return its path.

        It has its size without occupying the disk, so that simultaneous uploads count against the quotas.
        ``announced_bytes`` must fit in, and are not reserved. Old uploads that no run reads are removed first. Raises
        RateLimited, QuotaExceeded also where the file is too large, and StorageFailed where it cannot be created.
        """
        self._backend.rate_limiter.count(self._owner, "uploads")
        wanted, file_mb = max(num_bytes, announced_bytes), ServerSettings.configured().upload_mb
        if wanted > file_mb * MB:
            raise QuotaExceeded(f"A file may have up to {file_mb:,} MB here, this one has {wanted // MB:,} MB.")
        with self._backend.receiving, storage_errors("the folder uploads"):
            sweep_uploads(self._uploads.parent, is_read=self._backend.reads_upload)
            self._check_quotas(wanted)
            path = self._uploads / uuid.uuid4().hex / _UNFINISHED
            path.parent.mkdir(parents=True)
            with path.open("xb") as stream:
                stream.truncate(num_bytes)
        return path

    def extend_upload(self, path: Path, num_bytes: int) -> None:
        """Reserve ``num_bytes`` more for an upload of this user; raises as :meth:`reserve_upload` does."""
        with self._backend.receiving, storage_errors("the folder uploads"):
            self._check_quotas(num_bytes)
            os.truncate(path, path.stat().st_size + num_bytes)

    def discard_upload(self, path: Path) -> None:
        """Remove an upload of this user with its own folder, unless a run reads it."""
        own = path.parent
        with self._backend.receiving:
            if own.parent == self._uploads and not self._backend.reads_upload(own.name):
                shutil.rmtree(own, ignore_errors=True)

    def upload_name(self, path: str) -> str:
        """Return the name of an upload of this user, its folder and file; empty for any other path."""
        file = Path(path)
        return f"{file.parent.name}/{file.name}" if file.parent.parent == self._uploads else ""

    def upload_named(self, name: str) -> Path:
        """Return the upload with this name from :meth:`upload_name`; NotFound if this user has none."""
        for file in self._uploads.glob("*/*") if len(name) <= 200 else ():  # longer than any name; never used as a path
            if self.upload_name(str(file)) == name and file.is_file() and not file.is_symlink():
                return file
        raise NotFound("This upload is no longer there. Upload the file again.")

    def used_uploads(self, runs: Sequence[RunRecord], purpose: UploadPurpose) -> tuple[Path, ...]:
        """Return the uploads that ``runs`` of this user read for ``purpose``, without repetition."""
        files = dict.fromkeys(Path(file) for run in runs if (file := upload_of(run.spec, purpose)))
        return tuple(file for file in files if file.parent.parent == self._uploads and file.is_file())

    def _check_quotas(self, num_bytes: int) -> None:
        limits, used, in_all = ServerSettings.configured(), bytes_in(self._uploads), bytes_in(self._uploads.parent)
        if used + num_bytes > limits.person_mb * MB:
            raise QuotaExceeded(
                f"Your uploads may take {limits.person_mb:,} MB and take {used // MB:,} MB; this file adds "
                f"{num_bytes // MB:,} MB. Delete runs whose files you no longer need, or bring a smaller file."
            )
        if in_all + num_bytes > limits.uploads_mb * MB:
            raise QuotaExceeded(
                f"The uploads on this server may take {limits.uploads_mb:,} MB in all, and there is no room for "
                f"{num_bytes // MB:,} MB more. Try again later, or ask whoever runs it."
            )


def upload_of(spec: RunSpec, purpose: UploadPurpose) -> str:
    """Return the path of the file that ``spec`` names for ``purpose``; empty where it names none."""
    if purpose == "images":
        return spec.data.path if spec.data.kind == "archive" else ""
    return spec.model.checkpoint if SOURCES[spec.model.library].upload == purpose else ""
