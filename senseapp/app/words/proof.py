"""What a proof measured, in words; the Schedule page and the report say the same."""

from __future__ import annotations

from collections.abc import Callable

from senseapp.app.words import format as fmt
from senseapp.records.model_files import CHECKPOINT, model_file
from senseapp.records.schedule import ValidationResult


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


_SIZES: dict[str, tuple[str, Callable[[float], str]]] = {
    "file_bytes": ("Checkpoint", fmt.bytes_size),
    "bytes": ("If stored compactly (estimated, no such file)", fmt.bytes_size),
    "zeros": ("Zeros", fmt.count),
    "params": ("Parameters", fmt.count),
    "macs": ("MACs", fmt.count),
    "latency_seconds": ("Time of one image", _milliseconds),
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
