"""What a proof measured, in words; the Schedule page and the report say the same."""

from __future__ import annotations

from collections.abc import Callable

from senseapp.results import ValidationResult
from senseapp.ui import format as fmt

__all__ = ["size_changes"]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


_SIZES: dict[str, tuple[str, Callable[[float], str]]] = {
    "bytes": ("Size", fmt.bytes_size),
    "zeros": ("Zeros", fmt.count),
    "params": ("Parameters", fmt.count),
    "macs": ("MACs", fmt.count),
    "latency_seconds": ("Time of one image", _milliseconds),
}


def size_changes(validation: ValidationResult) -> dict[str, str]:
    """Return each size before and after, as label and text."""
    found = {}
    for kind, (title, write) in _SIZES.items():
        before, after = validation.sizes.get(kind, (0.0, 0.0))
        if before or after:
            found[title] = f"{write(before)} → {write(after)}"
    return found
