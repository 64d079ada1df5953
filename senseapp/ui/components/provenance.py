"""Measured or estimated, on how many images, with which interval: the line that is on every view of a run."""

from __future__ import annotations

import streamlit as st

from senseapp.results import SensitivityResult
from senseapp.ui import format as fmt

__all__ = ["provenance", "provenance_text"]


def provenance_text(result: SensitivityResult) -> str:
    """Return where the numbers come from, in one line."""
    if result.spec.data.kind == "imported":
        return "**Imported**: measured elsewhere · number of images unknown · intervals unknown"
    parts = [
        _source(result),
        fmt.plural(result.num_samples, "image"),
        "95 % intervals, paired by image" if result.measurements else "no intervals",
        f"precision {result.precision}",
        f"seed {result.spec.sensitivity.seed}",
    ]
    if result.spec.data.kind == "random":
        parts.insert(1, "random inputs, indicative only")
    if not result.profile.pretrained:
        parts.insert(1, "random weights")
    return " · ".join(parts)


def _source(result: SensitivityResult) -> str:
    shown = result.shown
    estimated = sum(item.estimated for item in shown)
    if not estimated:
        return "**Measured**"
    if estimated == len(shown):
        return "**Estimated** from one backward pass"
    return f"**Measured** {len(shown) - estimated} of {len(shown)}, the rest **estimated**"


def provenance(result: SensitivityResult) -> None:
    """Show the line, the agreement of estimate and measurement, and the run's notes."""
    st.caption(provenance_text(result), help="A 95 % interval says where the true change lies, had all images been "
               "measured that are like these. Baseline and compressed model see the same images.")  # fmt: skip
    notes = list(result.notes) + list(result.profile.notes)
    if result.agreement and result.measurements:
        found = ", ".join(f"{value:.2f} at {level}" for level, value in _agreement(result))
        notes.append(f"Rank agreement of estimate and measurement (Spearman, 1 is perfect): {found}.")
    if notes:
        with st.expander(fmt.plural(len(notes), "note") + " on this run"):
            st.markdown("\n".join(f"- {note}" for note in notes))


def _agreement(result: SensitivityResult) -> list[tuple[str, float]]:
    kind = result.spec.sensitivity.compression.kind
    return [(_level_text(kind, level), value) for level, value in result.agreement.items()]


def _level_text(kind: str, level: str) -> str:
    try:
        return fmt.level(kind, float(level))
    except ValueError:
        return level
