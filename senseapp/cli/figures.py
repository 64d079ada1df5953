"""Measured figures as the JSON that commands print."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from senseapp.metrics import MetricChange
from senseapp.records.candidate import Candidate
from senseapp.records.deployment import RuntimeFigures


def number(value: float) -> float | None:
    """Return ``value``, or None where JSON has no form for it."""
    return value if math.isfinite(value) else None


def changes_json(changes: Iterable[MetricChange], *, values: bool = True) -> dict[str, dict[str, float | None]]:
    """Return each metric's drop with its interval, and, with ``values``, the metric itself."""
    kept = ("value", "delta", "ci_low", "ci_high") if values else ("delta", "ci_low", "ci_high")
    return {each.metric: {name: number(getattr(each, name)) for name in kept} for each in changes}


def figures_json(figures: RuntimeFigures) -> dict[str, Any]:
    """Return the changes, milliseconds, ratio of times and bytes of one file."""
    milliseconds = {name: 1000 * value for name, value in asdict(figures.seconds).items()}
    return {
        "changes": changes_json(figures.changes),
        "ms": milliseconds,
        "time_ratio": asdict(figures.time_ratio),
        "file_bytes": figures.file_bytes,
    }


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """Return what was measured of one file that can be delivered, its headline first."""
    return {
        "headline": candidate.headline,
        "form": candidate.form,
        "reconstruction": candidate.reconstruction,
        "metric": candidate.metric,
        "held_out": candidate.held_out,
        "images": candidate.images,
        "pays": candidate.pays,
        **figures_json(candidate.figures),
        "original_bytes": candidate.original.file_bytes,
        "notes": list(candidate.notes),
    }
