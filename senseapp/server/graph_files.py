"""Schedules in the formats of other tools, and the network as a graph for Model Explorer, coloured by a schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from senseapp.core.disk import replace_file, storage_errors
from senseapp.core.errors import InvalidInput, StorageFailed
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import Schedule
from senseapp.records.spec import ModelSpec
from senseapp.server.session import load_engine
from senseapp.store.run_folder import RunFolder

_STEM = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFiles:
    """The exported network of a run: its ``.pt2`` file, and the names of the graph nodes of each layer."""

    path: Path
    nodes: Mapping[str, list[str]]

    def overlay(self, schedule: Schedule) -> str:
        """Return the overlay that colours the graph by ``schedule``; InvalidSchedule for a layer without a node."""
        return _overlay(schedule, self.nodes)

    def zipped(self, schedule: Schedule) -> dict[str, bytes]:
        """Return the two files of ``schedule`` for a zip."""
        return _zipped(self.overlay(schedule), self.path.read_bytes())


def export_graph(folder: RunFolder, result: RunResult) -> GraphFiles:
    """Return the graph of the run in ``folder``; the first call loads the model, which may take seconds.

    Raises:
        InvalidInput: the model cannot be loaded any more, or torch.export cannot trace it.
        StorageFailed: the files cannot be written.
    """
    names, path = folder.path / "graph-nodes.json", folder.path / "graph.pt2"
    if not names.is_file():
        nodes, graph = _exported(result.spec.model)
        replace_file(path, graph)
        replace_file(names, json.dumps(nodes, allow_nan=False))
    with storage_errors(names.name):
        return GraphFiles(path=path, nodes=json.loads(names.read_bytes()))


def _exported(model: ModelSpec) -> tuple[Mapping[str, list[str]], bytes]:
    """Return the names of the graph nodes of each layer, and the ``.pt2`` file."""
    load_engine()
    import torch  # the app paints before torch is loaded

    from senseapp.formats.model_explorer import exported_graph
    from senseapp.networks.sources.load import load_model

    loaded = load_model(model)
    return exported_graph(loaded.module, torch.zeros(1, *loaded.preprocessing.input_shape))


def _overlay(schedule: Schedule, nodes: Mapping[str, list[str]]) -> str:
    from senseapp.formats.model_explorer import overlay_of, schedule_values

    title = f"{schedule.model}: {schedule.method} schedule"
    return overlay_of(schedule_values(schedule), nodes, title=title, notes=schedule.file_notes)


def _zipped(overlay: str, graph: bytes) -> dict[str, bytes]:
    return {f"{_STEM}.model-explorer.json": overlay.encode(), f"{_STEM}.model-explorer.pt2": graph}


_OVERLAY = "model-explorer"


def write_target_file(schedule: Schedule, result: RunResult, *, format_name: str, path: Path) -> tuple[Path, ...]:
    """Write ``schedule`` to ``path`` and, for some formats, a second file beside it; return their paths.

    ``zip`` is an archive of every format that can hold it. A Model Explorer overlay loads the network of the run, to
    export its graph. Raises InvalidSpec for an unknown format, and InvalidSchedule if it cannot hold this schedule.
    """
    from senseapp.formats.registry import ZIP_FORMAT, export_format  # loads yaml

    if format_name == ZIP_FORMAT:
        return _write({path: zipped_formats(schedule, result, lambda: _zipped(*_coloured(schedule, result)))})
    target = export_format(format_name)
    if target.name == _OVERLAY:
        overlay, graph = _coloured(schedule, result)
        return _write({path: overlay, path.with_suffix(".pt2"): graph})
    files: dict[Path, str | bytes] = {path: target.write(schedule, result.profile)}
    if target.companion is not None:
        name, text = target.companion
        files[path.with_name(name)] = text
    return _write(files)


def _coloured(schedule: Schedule, result: RunResult) -> tuple[str, bytes]:
    nodes, graph = _exported(result.spec.model)
    return _overlay(schedule, nodes), graph


def zipped_formats(
    schedule: Schedule, result: RunResult, overlay: Callable[[], Mapping[str, bytes]], *, run: str = "RUN"
) -> bytes:
    """Return every target file of ``schedule`` in one zip, with a manifest; its README lists files left out.

    Args:
        schedule: the schedule to write.
        result: result of its run.
        overlay: returns the files of the Model Explorer overlay; loads and exports the network.
        run: the run's argument on the command line.
    """
    from senseapp.formats.registry import build_zip  # imports yaml and other dependencies of the formats

    try:
        return build_zip(schedule, result.profile, extra=overlay(), run=run)[0]
    except (InvalidInput, StorageFailed) as error:
        return build_zip(schedule, result.profile, left_out=str(error), run=run)[0]


def _write(files: dict[Path, str | bytes]) -> tuple[Path, ...]:
    for path, content in files.items():
        with storage_errors(f"the folder of {path.name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    return tuple(files)
