"""The network of a run as a graph for Model Explorer: exported once, kept in the run's folder, for every overlay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from senseapp.results import Schedule, SensitivityResult
from senseapp.service.engine import load_engine
from senseapp.store import RunFolder, replace_file, storage_errors

_STEM = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFiles:
    """The exported network of a run.

    Attributes:
        path: of the ``.pt2`` file.
        nodes: names of the graph's nodes of each layer.
    """

    path: Path
    nodes: Mapping[str, list[str]]

    def overlay(self, schedule: Schedule) -> str:
        """Return what colours the graph with ``schedule``.

        Raises:
            InvalidSchedule: a layer has no node in the graph.
        """
        from senseapp.export import overlay_of, schedule_values

        return overlay_of(schedule_values(schedule), self.nodes, title=f"{schedule.model}: {schedule.method} schedule")

    def zipped(self, schedule: Schedule) -> dict[str, bytes]:
        """Return the two files of ``schedule`` as they go into a zip."""
        overlay = self.overlay(schedule).encode()
        return {f"{_STEM}.model-explorer.json": overlay, f"{_STEM}.model-explorer.pt2": self.path.read_bytes()}


def export_graph(folder: RunFolder, result: SensitivityResult) -> GraphFiles:
    """Return the graph of the run in ``folder``; the first time this loads the model, which may take seconds.

    Raises:
        InvalidInput: the model cannot be loaded any more, or torch.export cannot trace it.
        StorageFailed: the files cannot be written.
    """
    names, path = folder.path / "graph-nodes.json", folder.path / "graph.pt2"
    if not names.is_file():
        load_engine()
        import torch  # the app paints before torch is loaded

        from senseapp.export import exported_graph
        from senseapp.models.load import load_model

        loaded = load_model(result.spec.model)
        nodes, graph = exported_graph(loaded.module, torch.zeros(1, *loaded.preprocessing.input_shape))
        replace_file(path, graph)
        replace_file(names, json.dumps(nodes))
    with storage_errors(names.name):
        return GraphFiles(path=path, nodes=json.loads(names.read_bytes()))
