"""Files of a finished run for other tools: layers as CSV, target files, and the graph that Model Explorer colours."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from senseapp.core.errors import InfeasibleBudget, InvalidInput, InvalidSchedule, StorageFailed
from senseapp.core.files import replace_file, storage_errors, write_file
from senseapp.core.texts import csv_text
from senseapp.descriptions import DENSE_BITS
from senseapp.records.measurement import RunResult, Status
from senseapp.records.schedule import ResourceBudget, Schedule
from senseapp.records.spec import ModelSpec
from senseapp.store.run_folder import RunFolder

_FIGURES = ("baseline", "value", "delta", "ci_low", "ci_high")
COLUMNS = ("layer", "layer_type", "params", "macs", "compression", "level", "metric", *_FIGURES, "status", "group")


def sensitivity_rows(result: RunResult) -> Iterator[dict[str, str | int | float]]:
    """Yield one row per layer, level and metric, with the keys of :data:`COLUMNS`.

    Levels are percent (bits for quantization), metrics are fractions, nats or dB as measured, ``delta`` > 0 is
    worse. Each member of a coupled group has its own row with the group's id and the group's figures. A layer that
    could not be measured at a level has one row, without figures, for the ranking metric. ``status`` is
    ``measured``, ``estimated`` (quick scan), ``not_applicable`` or ``failed``.
    """
    profiles = {layer.name: layer for layer in result.profile.layers}
    for item in result.shown:
        is_estimate = item.estimated and item.status is Status.MEASURED
        for layer, change in product(item.members or (item.layer,), item.changes or (None,)):
            yield {
                "layer": layer,
                "layer_type": profiles[layer].layer_type,
                "params": profiles[layer].num_params,
                "macs": profiles[layer].macs,
                "compression": result.compression.kind,
                "level": f"{result.compression.scale.shown(item.level):.10g}",
                "metric": change.metric if change else result.metric,
                **{name: getattr(change, name) if change else "" for name in _FIGURES},
                "status": "estimated" if is_estimate else item.status.value,
                "group": item.group,
            }


def sensitivity_csv(result: RunResult) -> str:
    """Return :func:`sensitivity_rows` as CSV text; see :mod:`senseapp.core.texts`."""
    return csv_text(COLUMNS, (row.values() for row in sensitivity_rows(result)))


def default_targets(result: RunResult) -> dict[str, float]:
    """Return one number per measured layer; members of a group have the same.

    Percent for sparsity and pruning: the gamma rule on the drops of the ranking metric at the level nearest to 50 %,
    for a mean of 50 % weighted by parameters (2:4 sparsity: 50 % everywhere). Bits for quantization: the least damage
    at 4 bits on average, or at the nearest average that the measured levels reach; 32 for an unchanged layer.
    """
    from senseapp.solve.gamma import layer_targets  # loads scipy, which the app avoids until its first chart

    config = result.compression
    if not any(item.changes for item in result.shown):
        return {}
    try:
        if config.description.sets_bits:
            return _bits(result)
        targets = layer_targets(result, metric=result.metric if result.metric in result.shown_metrics else None)
    except InvalidSchedule:  # no layer has a finite figure either
        return {}
    if config.only_level is not None:
        return dict.fromkeys(targets, config.scale.shown(config.only_level[0]))
    percents = {layer: round(100 * fraction, 6) for layer, fraction in targets.items()}
    return {layer.name: percents[layer.name] for layer in result.profile.layers if layer.name in percents}


def _bits(result: RunResult) -> dict[str, float]:
    from senseapp.solve.methods import make_schedule

    try:  # half of int8 on average, so that layers get different bits
        schedule = make_schedule(result, budget=ResourceBudget(kind="bits", target=4.0))
    except InfeasibleBudget as error:  # float rounding must not miss the nearest feasible budget
        schedule = make_schedule(result, budget=ResourceBudget(kind="bits", target=error.nearest + 1e-6))
    return {member: int(entry.level or DENSE_BITS) for entry in schedule.entries for member in entry.members}


def write_outputs(result: RunResult, folder: Path) -> tuple[Path, ...]:
    """Write ``sensitivity.csv`` and ``targets.json`` into ``folder`` and return their paths."""
    table, targets = folder / "sensitivity.csv", folder / "targets.json"
    replace_file(table, sensitivity_csv(result))
    replace_file(targets, json.dumps(default_targets(result), indent=2, allow_nan=False) + "\n")
    return table, targets


_GRAPH, _GRAPH_NODES = "graph.pt2", "graph-nodes.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFiles:
    """The exported network of a run: its ``.pt2`` file, and the names of the graph's nodes of each layer."""

    path: Path
    nodes: Mapping[str, list[str]]

    def overlay(self, schedule: Schedule) -> str:
        """Return what colours the graph with ``schedule``; raises InvalidSchedule where a layer has no node in it."""
        from senseapp.formats.model_explorer import overlay_of, schedule_values

        title = f"{schedule.model}: {schedule.method} schedule"
        return overlay_of(schedule_values(schedule), self.nodes, title=title, notes=schedule.file_notes)


def read_graph(folder: RunFolder) -> GraphFiles | None:
    """Return the graph in the folder of a run; None where it was not written yet."""
    names = folder.path / _GRAPH_NODES
    if not names.is_file():
        return None
    with storage_errors(names.name):
        return GraphFiles(path=folder.path / _GRAPH, nodes=json.loads(names.read_bytes()))


def write_graph(folder: Path, model: ModelSpec) -> GraphFiles:
    """Write the graph of ``model`` into the folder of a run.

    It loads the model, so it runs in a worker process. Raises InvalidInput where the model cannot be loaded any more,
    or torch.export cannot trace it, and StorageFailed where the files cannot be written.
    """
    nodes, graph = _exported(model)
    replace_file(folder / _GRAPH, graph)
    replace_file(folder / _GRAPH_NODES, json.dumps(nodes, allow_nan=False))
    return GraphFiles(path=folder / _GRAPH, nodes=nodes)


def _exported(model: ModelSpec) -> tuple[Mapping[str, list[str]], bytes]:
    """Return the names of the graph's nodes of each layer, and the ``.pt2`` file."""
    import torch  # the app paints before torch is loaded

    from senseapp.formats.model_explorer import exported_graph
    from senseapp.networks.sources.load import load_model

    loaded = load_model(model)
    return exported_graph(loaded.module, torch.zeros(1, *loaded.preprocessing.input_shape))


def write_target_file(schedule: Schedule, result: RunResult, *, format_name: str, path: Path) -> tuple[Path, ...]:
    """Write ``schedule`` to ``path`` and, for formats that need it, a second file beside it; return their paths.

    ``zip`` stands for every format that can hold it, in one archive. A Model Explorer overlay loads the network of the
    run, to export the graph that it colours. Raises InvalidSpec for an unknown format, and InvalidSchedule where it
    cannot hold this schedule.
    """
    from senseapp.formats.registry import ZIP_FORMAT, export_format  # loads yaml

    files: dict[Path, str | bytes] = {}
    if format_name == ZIP_FORMAT:
        files[path] = zipped_formats(schedule, result, lambda: _coloured(schedule, result)[0])
    elif (target := export_format(format_name)).name == "model-explorer":
        files[path], files[path.with_suffix(".pt2")] = _coloured(schedule, result)
    else:
        files[path] = target.write(schedule, result.profile)
    for each, content in files.items():
        write_file(each, content)
    return tuple(files)


def _coloured(schedule: Schedule, result: RunResult) -> tuple[str, bytes]:
    nodes, graph = _exported(result.spec.model)
    return GraphFiles(path=Path(_GRAPH), nodes=nodes).overlay(schedule), graph


def zipped_formats(schedule: Schedule, result: RunResult, overlay: Callable[[], str], *, run: str = "RUN") -> bytes:
    """Return every target file of ``schedule`` in one zip, with a manifest; a file left out is told in its README.

    ``result`` is of the run that it was made from, and ``run`` what the command line takes for it. ``overlay`` returns
    the Model Explorer overlay, for which the network is loaded and exported; the graph may have 100 MB, and is given
    apart.
    """
    from senseapp.formats.registry import build_zip  # loads yaml and what else the formats need

    try:
        extra = {"schedule.model-explorer.json": overlay().encode()}
        return build_zip(schedule, result.profile, extra=extra, run=run)
    except (InvalidInput, StorageFailed) as error:
        return build_zip(schedule, result.profile, left_out=str(error), run=run)
