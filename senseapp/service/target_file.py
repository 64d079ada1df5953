"""Write a schedule in the format of the tool that will read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from senseapp.errors import InvalidInput, StorageFailed
from senseapp.results import Schedule, SensitivityResult
from senseapp.service.engine import load_engine
from senseapp.spec import ModelSpec
from senseapp.store import replace_file, storage_errors

_OVERLAY = "model-explorer"


def write_target_file(
    schedule: Schedule, result: SensitivityResult, *, format_name: str, path: Path
) -> tuple[Path, ...]:
    """Write ``schedule`` to ``path`` and, for formats that need it, a second file beside it; return their paths.

    ``zip`` stands for every format that can hold it, in one archive. A Model Explorer overlay loads the network of the
    run, to export the graph that it colours.

    Raises:
        InvalidSpec: no such format.
        InvalidSchedule: the format cannot hold this schedule.
        InvalidInput: the network, where it is needed, cannot be loaded or exported.
        StorageFailed: a file cannot be written.
    """
    from senseapp.export import ZIP_FORMAT, export_format  # loads yaml and what else the formats need

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

    Raises:
        InvalidSchedule: the schedule belongs to another model.
    """
    from senseapp.export import build_zip  # loads yaml and what else the formats need

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
