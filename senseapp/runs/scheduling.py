"""What a person does with a schedule of a finished run: prove it, search for the strongest, see what was measured."""

from __future__ import annotations

from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.measurement import SensitivityResult
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import Schedule
from senseapp.records.spec import RunSpec
from senseapp.runs.backend import Backend
from senseapp.runs.graph_files import GraphFiles, export_graph, zipped_formats
from senseapp.runs.model_cards import same_model
from senseapp.runs.session import load_engine
from senseapp.runs.settings import check_paths
from senseapp.store.run_folder import RunFolder


class Scheduling:
    """What a person makes of a finished run's schedules."""

    def __init__(self, backend: Backend, owner: str) -> None:
        self._backend = backend
        self._store = backend.store
        self._owner = owner

    def partners(self, run_id: str) -> tuple[RunRecord, ...]:
        """Return this person's finished runs of the same network whose compression goes together with this run's."""
        own = self._store.get(run_id, self._owner).spec
        wanted = own.sensitivity.compression.description.partners
        return tuple(
            other
            for other in map(self._backend.up_to_date, self._store.list(self._owner))
            if other.state is RunState.DONE
            and other.spec.sensitivity.compression.kind in wanted
            and other.spec.model.library != "imported"
            and same_model(other.spec.model, own.model)
        )

    def couplings(self, run_id: str) -> tuple[CoupledGroup, ...]:
        """Return which layers shrink together when channels go; loads the model of the run, which may take seconds."""
        _, result = self._with_model(run_id)
        load_engine()
        from senseapp.models.load import load_model
        from senseapp.schedules.strongest import couplings_of

        return couplings_of(load_model(result.spec.model).module, result)

    def graph(self, run_id: str) -> GraphFiles:
        """Return the network of the run as a graph for Model Explorer; exporting it, once, may take seconds."""
        return export_graph(*self._with_model(run_id))

    def target_zip(self, run_id: str, schedule: Schedule) -> bytes:
        """Return every target file of ``schedule`` in one zip, with a manifest; a file left out is told in its README."""
        _, result = self._readable_result(run_id)
        return zipped_formats(schedule, result, lambda: self.graph(run_id).zipped(schedule))

    def _readable_result(self, run_id: str) -> tuple[RunFolder, SensitivityResult]:
        folder = self._store.folder(self._store.readable(run_id, self._owner))
        return folder, folder.load_result()

    def _with_model(self, run_id: str) -> tuple[RunFolder, SensitivityResult]:
        """Return the folder and the result of a finished run whose model its owner may still read."""
        folder, result = self._readable_result(run_id)
        owner = self._store.record(self._store.readable(run_id, self._owner)).owner
        check_paths(RunSpec(model=result.spec.model), self._backend.readable_folders(owner))
        return folder, result
