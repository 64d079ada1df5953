"""What pages and reports say of a run alike: its state, where its numbers come from, what a proof of it measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from senseapp.core.markdown import Markdown, md
from senseapp.descriptions import LevelScale
from senseapp.metrics import METRICS
from senseapp.records.jobs import RunState
from senseapp.records.measurement import RunResult
from senseapp.records.model_files import CHECKPOINT, model_file
from senseapp.records.schedule import ValidationResult
from senseapp.records.spec import Goal, RunSpec, SensitivitySpec
from senseapp.server.demos import PHOTOGRAPHS_DEMO
from senseapp.views.words import format as fmt

GOALS: dict[Goal, str] = {
    "smaller": "Smaller file",
    "faster": "Faster here",
    "targets": "Targets for a training tool",
}
"""What a run is for, as people choose it."""


def provenance_text(result: RunResult) -> str:
    """Return measured or estimated, on how many images, with which intervals, and how it was computed, in one line."""
    return " · ".join(filter(None, [_evidence(result), passes_text(result)]))


def provenance_line(result: RunResult) -> Markdown:
    """Return the first half for a page, with the word that matters most in bold; :func:`passes_text` is the other."""
    source, _, rest = _evidence(result).partition(" ")
    return md("**{}** {}", source, rest)


def passes_text(result: RunResult) -> str:
    """Return how the network was run: precision, seed and device; empty for imported figures."""
    if result.spec.data.kind == "imported":
        return ""
    parts = [f"precision {result.precision}", f"seed {result.spec.sensitivity.seed}", *_place(result)]
    return " · ".join(parts)


def _evidence(result: RunResult) -> str:
    if result.spec.data.kind == "imported":
        sizes = f" · sizes of {result.profile.title}" if result.profile.sizes_known else ""
        return f"Imported: measured elsewhere · number of images unknown · intervals unknown{sizes}"
    parts = [
        _source(result),
        fmt.plural(result.num_samples, "image"),
        "95 % intervals, paired by image" if result.measurements else "no intervals",
    ]
    if result.spec.data.kind == "random":
        parts.insert(1, "random inputs, indicative only")
    if not result.profile.pretrained:
        parts.insert(1, "random weights")
    return " · ".join(parts)


def _place(result: RunResult) -> list[str]:
    """Return where the passes were made, as far as it is known: ``on cpu``, ``on cuda:0 of 4 workers``."""
    device, workers = result.environment.get("device"), result.environment.get("workers")
    if not device:
        return []
    return [f"on {device} of {workers} workers" if workers else f"on {device}"]


def _source(result: RunResult) -> str:
    shown = result.shown
    estimated = sum(item.estimated for item in shown)
    if not estimated:
        return "Measured"
    if estimated == len(shown):
        corrected = any(item.images_passed for item in shown)
        return f"Estimated from one backward pass{' and true passes over a few images' if corrected else ''}"
    return f"Measured {len(shown) - estimated} of {len(shown)}, the rest estimated"


def caveat_of(result: RunResult) -> str:
    """Return why the run's figures are indicative only; empty where they are not."""
    reasons = []
    if result.spec.data.kind == "random":
        reasons.append("the inputs are random")
    if not result.profile.pretrained:
        reasons.append("the weights are random")
    return f"Indicative only: {' and '.join(reasons)}" if reasons else ""


def notes_of(result: RunResult) -> list[str]:
    """Return the notes on the run and its model, and how well the estimate agreed with the measurement."""
    notes = list(result.notes) + list(result.profile.notes)
    if result.agreement and result.measurements:
        scale = result.compression.scale
        found = ", ".join(f"{value:.2f} at {_level_text(scale, level)}" for level, value in result.agreement.items())
        notes.append(f"Rank agreement of estimate and measurement (Spearman, 1 is perfect): {found}.")
    return notes


def _level_text(scale: LevelScale, level: str) -> str:
    try:
        return scale.text(float(level))
    except ValueError:
        return level


def run_title(spec: RunSpec) -> str:
    """Return the title a run gets at first: the model (or the checkpoint's file) and the compression."""
    model = Path(spec.model.checkpoint).name if spec.model.checkpoint else spec.model.title
    if spec.model == PHOTOGRAPHS_DEMO.model:
        model = "EfficientNet-Lite0"
    return f"{model} · {spec.sensitivity.compression.description.label.lower()}"


def download_stem(spec: RunSpec) -> str:
    """Return how the names of files that are taken from a run begin: model and compression."""
    return fmt.file_stem(run_title(spec))


def compression_text(settings: SensitivitySpec) -> str:
    """Return compression and levels: ``Sparsity 25, 50, 75 %``."""
    return f"{settings.compression.description.label} {settings.compression.scale.texts(settings.levels)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """How a run's state is shown: a word, a badge colour and an icon as the second cue."""

    label: str
    color: str
    icon: str


STATES = {
    RunState.QUEUED: StateView(label="Waiting", color="gray", icon=":material/hourglass_empty:"),
    RunState.RUNNING: StateView(label="Running", color="blue", icon=":material/play_circle:"),
    RunState.DONE: StateView(label="Finished", color="green", icon=":material/check_circle:"),
    RunState.CANCELLED: StateView(label="Cancelled", color="gray", icon=":material/cancel:"),
    RunState.FAILED: StateView(label="Failed", color="red", icon=":material/error:"),
    RunState.INTERRUPTED: StateView(label="Interrupted", color="orange", icon=":material/pause_circle:"),
}


_SIZES: dict[str, tuple[str, Callable[[float], str]]] = {
    "file_bytes": ("Checkpoint", fmt.bytes_size),
    "bytes": ("If stored compactly (estimated, no such file)", fmt.bytes_size),
    "zeros": ("Zeros", fmt.count),
    "params": ("Parameters", fmt.count),
    "macs": ("MACs", fmt.count),
    "latency_seconds": ("Time of one image", lambda seconds: f"{1000 * seconds:.3g} ms"),
}


def size_changes(validation: ValidationResult) -> dict[str, str]:
    """Return each size before and after, as label and text; sizes of files are those on the disk."""
    found = {}
    for kind, (title, write) in _SIZES.items():
        before, after = validation.sizes.get(kind, (0.0, 0.0))
        if before or after:
            found[title] = f"{write(before)} → {write(after)}"
        if kind == "file_bytes":
            found |= {
                model_file(suffix).label: fmt.bytes_size(count)
                for suffix, count in validation.files.items()
                if suffix != CHECKPOINT.suffix
            }
    return found


def delivery(validation: ValidationResult) -> str:
    """Return one sentence on which form of the model the file holds, and why; empty where no repair was asked for."""
    return validation.delivered_reason or (
        "The file holds the repaired model: this proof is older than the choice by measurement."
        if validation.repaired and not validation.delivered
        else ""
    )


STEPS = "What each step gained, on images of the run that it was not fitted to:"


def step_lines(validation: ValidationResult) -> tuple[str, ...]:
    """Return a line for each form of the model that was tried, in the order in which they build on one another."""
    found, before = [], None
    images = max((step.change.num_samples for step in validation.steps), default=0)
    for step in validation.steps:
        view, change = METRICS[step.change.metric], step.change
        interval = view.interval_text(change.ci_low, change.ci_high)
        line = f"{step.title}: {view.change_inside} {view.change_text(change.delta)} ({interval})"
        if change.num_samples < images:  # given up when others did better on these
            found.append(f"{line}, on {change.num_samples} images")
            continue
        gained = "" if before is None else f", {view.change_text(change.delta - before)}"
        found.append(f"{line}{gained}{': kept' if step.kept else ''}")
        before = change.delta
    return tuple(found)
