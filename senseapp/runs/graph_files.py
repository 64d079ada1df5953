"""The network of a run as a graph for Model Explorer: exported once, kept in the run's folder, for every overlay.

Write a schedule in the format of the tool that will read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from senseapp.core.disk import replace_file, storage_errors
from senseapp.core.errors import InvalidInput, StorageFailed
from senseapp.records.measurement import SensitivityResult
from senseapp.records.schedule import Schedule
from senseapp.records.spec import ModelSpec
from senseapp.runs.session import load_engine
from senseapp.store.run_folder import RunFolder

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
        """Return what colours the graph with ``schedule``."""
        from senseapp.schedules.export.model_explorer import overlay_of, schedule_values

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

        from senseapp.models.load import load_model
        from senseapp.schedules.export.model_explorer import exported_graph

        loaded = load_model(result.spec.model)
        nodes, graph = exported_graph(loaded.module, torch.zeros(1, *loaded.preprocessing.input_shape))
        replace_file(path, graph)
        replace_file(names, json.dumps(nodes))
    with storage_errors(names.name):
        return GraphFiles(path=path, nodes=json.loads(names.read_bytes()))


_OVERLAY = "model-explorer"


def write_target_file(
    schedule: Schedule, result: SensitivityResult, *, format_name: str, path: Path
) -> tuple[Path, ...]:
    """Write ``schedule`` to ``path`` and, for formats that need it, a second file beside it; return their paths.

    ``zip`` stands for every format that can hold it, in one archive. A Model Explorer overlay loads the network of the
    run, to export the graph that it colours.
    """
    from senseapp.schedules.export.registry import ZIP_FORMAT, export_format  # loads yaml

    if format_name == ZIP_FORMAT:
        return _write({path: zipped_formats(schedule, result, lambda: _zipped_overlay(schedule, result.spec.model))})
    target = export_format(format_name)
    if target.name == _OVERLAY:
        overlay, graph = _overlay(schedule, result.spec.model)
        return _write({path: overlay, path.with_suffix(".pt2"): graph})
    files: dict[Path, str | bytes] = {path: target.write(schedule, result.profile)}
    if target.companion is not None:
        name, text = target.companion
        files[path.with_name(name)] = text
    return _write(files)


def zipped_formats(schedule: Schedule, result: SensitivityResult, overlay: Callable[[], Mapping[str, bytes]]) -> bytes:
    """Return every target file of ``schedule`` in one zip, with a manifest; a file left out is told in its README.

    Args:
        schedule: what to write.
        result: of the run that it was made from.
        overlay: returns the files of the Model Explorer overlay, for which the network is loaded and exported.
    """
    from senseapp.schedules.export.registry import build_zip  # loads yaml and what else the formats need

    try:
        return build_zip(schedule, result.profile, extra=overlay())[0]
    except (InvalidInput, StorageFailed) as error:
        return build_zip(schedule, result.profile, left_out=str(error))[0]


def _zipped_overlay(schedule: Schedule, model: ModelSpec) -> dict[str, bytes]:
    overlay, graph = _overlay(schedule, model)
    return {"schedule.model-explorer.json": overlay.encode(), "schedule.model-explorer.pt2": graph}


def _overlay(schedule: Schedule, model: ModelSpec) -> tuple[str, bytes]:
    load_engine()
    import torch  # the app paints before torch is loaded

    from senseapp.models.load import load_model
    from senseapp.schedules.export.model_explorer import model_explorer_overlay, schedule_values

    loaded = load_model(model)
    sample = torch.zeros(1, *loaded.preprocessing.input_shape)
    title = f"{schedule.model}: {schedule.method} schedule"
    return model_explorer_overlay(schedule_values(schedule), loaded.module, sample, title=title)


def _write(files: dict[Path, str | bytes]) -> tuple[Path, ...]:
    for path, content in files.items():
        with storage_errors(f"the folder of {path.name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    return tuple(files)
