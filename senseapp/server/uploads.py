"""One user's uploads: space within the quotas, their names, and their removal."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from senseapp.core.errors import NotFound, QuotaExceeded
from senseapp.core.files import MB, storage_errors
from senseapp.descriptions import SOURCES
from senseapp.records.jobs import RunRecord
from senseapp.records.spec import RunSpec
from senseapp.server.access import Access
from senseapp.server.process.requester import ANYBODY, Requester
from senseapp.server.quotas import sweep_uploads
from senseapp.server.settings import ServerSettings, uploads_folder
from senseapp.store.run_folder import bytes_in

if TYPE_CHECKING:
    from senseapp.server.backend import Backend

UploadPurpose: TypeAlias = Literal["checkpoint", "onnx", "images", "reference", "candidate"]
"""What uploads are kept for: those of models as :attr:`~senseapp.descriptions.ModelSource.upload` says, images, and
both sides of a check."""


class Uploads(Access):
    """One user's uploads: each in a folder of its own, with a name that cannot be guessed."""

    def __init__(self, backend: Backend, owner: str, requester: Requester = ANYBODY) -> None:
        super().__init__(backend, owner, requester)
        self._uploads = uploads_folder(backend.home, owner)

    def reserve_upload(self, num_bytes: int = 0, *, announced_bytes: int = 0) -> Path:
        """Create the file for an upload, ``num_bytes`` large, and return its path.

        It has its size without occupying the disk, so that simultaneous uploads count against the quotas.
        ``announced_bytes`` must fit in, and are not reserved. Old uploads that no run reads are removed first.

        Raises:
            RateLimited: this user sends too many files in a minute.
            QuotaExceeded: the file is too large, or a quota would be exceeded.
            StorageFailed: the file cannot be created.
        """
        self._backend.rate_limiter.count(self._owner, "uploads")
        wanted, file_mb = max(num_bytes, announced_bytes), ServerSettings.configured().upload_mb
        if wanted > file_mb * MB:
            raise QuotaExceeded(f"A file may have up to {file_mb:,} MB here, this one has {wanted // MB:,} MB.")
        with self._backend.receiving, storage_errors("the folder uploads"):
            sweep_uploads(self._uploads.parent, is_read=self._backend.reads_upload)
            self._check_quotas(wanted)
            path = self._uploads / uuid.uuid4().hex / "upload"
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
