"""What every view of a run is given: the result, the metric and level in question, and the frame of its numbers."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from senseapp.results import SensitivityResult
from senseapp.ui import format as fmt
from senseapp.ui.frames import at_level, measurement_frame, metrics_of, ordered_levels
from senseapp.ui.state import picked_layer
from senseapp.ui.vocabulary import COMPRESSIONS, METRICS, CompressionView, MetricView

__all__ = ["RunView", "choose_view"]

_USUAL = {"quantization": 4.0}
_USUAL_FRACTION = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run seen through one metric at one level.

    Attributes:
        run_id: of the run; part of every widget key.
        result: what was found.
        metric: what is drawn.
        level: the level in question, in engine units.
        frame: all rows of the metric, from :func:`senseapp.ui.frames.measurement_frame`.
    """

    run_id: str
    result: SensitivityResult
    metric: MetricView
    level: float
    frame: pd.DataFrame

    @property
    def compression(self) -> CompressionView:
        """How the run's compression is shown."""
        return COMPRESSIONS[self.result.spec.sensitivity.compression.kind]

    @property
    def level_text(self) -> str:
        """The level as people say it."""
        return fmt.level(self.compression.kind, self.level)

    @property
    def level_texts(self) -> list[str]:
        """All levels as people say them, from the mildest to the strongest."""
        return [fmt.level(self.compression.kind, level) for level in ordered_levels(self.result)]

    @property
    def at(self) -> str:
        """The level as part of a sentence: ``with 50 % of its weights at zero``."""
        return self.compression.at.format(level=self.level_text)

    @property
    def picked(self) -> str:
        """The layer picked in any view, if the run has it; else ``""``."""
        layer = picked_layer(self.run_id)
        return layer if layer in set(self.frame["layer"]) else ""

    @property
    def rows(self) -> pd.DataFrame:
        """The rows of the level, in network order."""
        return at_level(self.frame, self.level)


def choose_view(run_id: str, result: SensitivityResult, *, page: str) -> RunView | None:
    """Show the level and metric pickers; None (with a sentence) while nothing has a value."""
    metrics = metrics_of(result)
    if not metrics:
        st.info("No layer has a value yet.", icon=":material/hourglass_empty:")
        return None
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="medium")
    level = _choose_level(row, run_id, result, page)
    name = row.selectbox(
        "Metric",
        metrics,
        index=metrics.index(_best_covered(result, metrics)),
        format_func=lambda metric: METRICS[metric].label,
        key=f"{page}.metric.{run_id}",
        help="\n".join(f"- **{METRICS[metric].label}**: {METRICS[metric].help}" for metric in metrics),
        persist_state="session",
        width=240,
    )
    metric = METRICS[name if name in metrics else metrics[0]]
    frame = measurement_frame(result, metric.name)
    return RunView(run_id=run_id, result=result, metric=metric, level=level, frame=frame)


def _best_covered(result: SensitivityResult, metrics: tuple[str, ...]) -> str:
    """Return the metric to show first: the ranking one, unless a run that goes on has estimates of another only."""
    covered = {name: sum(item.change(name) is not None for item in result.shown) for name in metrics}
    return max(metrics, key=lambda name: covered[name])


def _choose_level(row: st.delta_generator.DeltaGenerator, run_id: str, result: SensitivityResult, page: str) -> float:
    kind = result.spec.sensitivity.compression.kind
    options = ordered_levels(result)
    usual = min(options, key=lambda level: abs(level - _USUAL.get(kind, _USUAL_FRACTION)))
    chosen = row.segmented_control(
        "Level",
        options,
        default=usual,
        required=True,
        format_func=lambda level: fmt.level(kind, level),
        key=f"{page}.level.{run_id}",
        help=COMPRESSIONS[kind].levels_help,
        persist_state="session",
    )
    return chosen if chosen in options else usual
