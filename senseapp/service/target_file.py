"""Write a schedule in the format of the tool that will read it."""

from __future__ import annotations

from pathlib import Path

from senseapp.results import Schedule, SensitivityResult
from senseapp.service.engine import load_engine
from senseapp.spec import ModelSpec
from senseapp.store import replace_file, storage_errors

__all__ = ["write_target_file"]

_OVERLAY = "model-explorer"


def write_target_file(
    schedule: Schedule, result: SensitivityResult, *, format_name: str, path: Path
) -> tuple[Path, ...]:
    """Write ``schedule`` to ``path`` and, for formats that need it, a second file beside it; return their paths.

    A Model Explorer overlay loads the network of the run, to export the graph that it colours.

    Raises:
        InvalidSpec: no such format.
        InvalidSchedule: the format cannot hold this schedule.
        InvalidInput: the network, where it is needed, cannot be loaded or exported.
        StorageFailed: a file cannot be written.
    """
    from senseapp.export import export_format  # loads yaml and what else the formats need

    target = export_format(format_name)
    if target.name == _OVERLAY:
        overlay, graph = _overlay(schedule, result.spec.model)
        return _write({path: overlay, path.with_suffix(".pt2"): graph})
    files: dict[Path, str | bytes] = {path: target.write(schedule, result.profile)}
    if target.companion is not None:
        name, text = target.companion
        files[path.with_name(name)] = text
    return _write(files)


def _overlay(schedule: Schedule, model: ModelSpec) -> tuple[str, bytes]:
    load_engine()
    import torch  # the app paints before torch is loaded

    from senseapp.export import model_explorer_overlay, schedule_values
    from senseapp.models.load import load_model

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
