"""What one user reaches in the server: the parts of a service share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from senseapp.records.measurement import RunResult
from senseapp.records.spec import RunSpec
from senseapp.server.process.requester import ANYBODY, Requester, WorkerRequest
from senseapp.server.settings import check_paths
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.server.backend import Backend

AnswerT = TypeVar("AnswerT")


class Access:
    """One user's access to runs and to worker processes."""

    def __init__(self, backend: Backend, owner: str, requester: Requester = ANYBODY) -> None:
        self._backend = backend
        self._store = backend.store
        self._owner = owner
        self._requester = requester

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
