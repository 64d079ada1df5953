"""The charts of a report: those of the Results page, as specifications."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import altair as alt
import pandas as pd

from senseapp.app.charts.bars import sensitivity_bars
from senseapp.app.charts.curves import sensitivity_curves
from senseapp.app.charts.files import LOOK
from senseapp.app.charts.heatmap import sensitivity_heatmap
from senseapp.app.charts.network import network_bars
from senseapp.app.frames.fragility import LegendEntry, fragility_legend
from senseapp.app.frames.levels import CURVE_AXES, curve_rows, drop_domain, marked
from senseapp.app.frames.network import network_frame, opened_to
from senseapp.app.frames.results import at_level, measurement_frame, ordered_levels, top_frame
from senseapp.app.report.chart_data import ChartData
from senseapp.app.words import format as fmt
from senseapp.metrics import Metric
from senseapp.records.measurement import SensitivityResult
from senseapp.records.profile import ModelProfile

_LOOK = {
    "config": {
        **LOOK,
        "axis": {**LOOK["axis"], "labelFontSize": 12, "titleFontSize": 13, "titlePadding": 8},
        "legend": {**LOOK["legend"], "labelFontSize": 12, "symbolOpacity": 1},
    },
    "width": "container",
    "autosize": {"type": "fit-x", "contains": "padding"},
}
_CURVES = 8
_DEPTH = 3
_MOST_NODES = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One chart.

    Attributes:
        label: tells it from the others of its figure.
        chart: its number in the report's :class:`ChartData`.
        words: its text alternative.
    """

    label: str
    chart: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One chart, or several of a kind to choose from.

    Attributes:
        question: that it answers.
        reading: how to read it.
        drawings: to choose from.
        first: the place of the one shown at first.
        what: what is chosen.
        legend: of the colours.
    """

    question: str
    reading: str
    drawings: tuple[Drawing, ...]
    first: int = 0
    what: str = "Level"
    legend: tuple[LegendEntry, ...] = ()


def drawn(chart: alt.Chart | alt.LayerChart, data: ChartData, *, label: str, words: str) -> Drawing:
    """Return ``chart`` as wide as the page, in the colours of paper."""
    return Drawing(label=label, chart=data.take(chart, _LOOK), words=words)


def result_figures(result: SensitivityResult, metric: Metric, data: ChartData) -> tuple[Figure, ...]:
    """Return the views of a result: bars at each level, curves, the heat map and the network."""
    frame = measurement_frame(result, metric.name)
    levels = [level for level in ordered_levels(result) if (frame["level"] == level).any()]
    if not levels:
        return ()
    return (
        _bars(result, frame, metric, levels, data),
        _curves(result, frame, metric, levels, data),
        _heatmap(result, frame, metric, levels, data),
        _network(result, frame, metric, levels, data),
    )


def _each_level(
    result: SensitivityResult, levels: list[float], draw: Callable[[float, str], Drawing]
) -> tuple[tuple[Drawing, ...], int]:
    """Return a drawing of each level, and the place of the one to show first."""
    scale = result.compression.scale
    drawings = tuple(draw(level, scale.text(level)) for level in levels)
    return drawings, levels.index(scale.nearest_usual(levels))


def _bars(
    result: SensitivityResult, frame: pd.DataFrame, metric: Metric, levels: list[float], data: ChartData
) -> Figure:
    def draw(level: float, label: str) -> Drawing:
        rows = marked(at_level(frame, level))
        domain = drop_domain(rows, metric, num_classes=result.profile.num_classes)
        chart = sensitivity_bars(rows, metric, x_domain=domain)
        return drawn(chart, data, label=label, words=_worst_in_words(frame[frame["level"] == level], metric, label))

    drawings, first = _each_level(result, levels, draw)
    return Figure(
        question="What does each layer lose when it alone is compressed?",
        reading="Thin lines are 95 % intervals, a ring means no clear loss, grey that these images cannot tell "
        "whether it is tolerable; pale bars are estimates.",
        drawings=drawings,
        first=first,
        legend=fragility_legend(metric),
    )


def _worst_in_words(rows: pd.DataFrame, metric: Metric, level: str) -> str:
    worst = rows.sort_values(["drop", "layer"], ascending=[False, True]).head(3)
    found = "; ".join(str(words) for words in worst["description"])
    return f"{metric.change_title} of {fmt.plural(rows['row'].nunique(), 'layer')} at {level}. Most fragile: {found}."


def _curves(
    result: SensitivityResult, frame: pd.DataFrame, metric: Metric, levels: list[float], data: ChartData
) -> Figure:
    scale = result.compression.scale
    fragile = list(top_frame(at_level(frame, levels[-1], by_sensitivity=True), _CURVES, fragile=True)["row"])
    chart = sensitivity_curves(
        curve_rows(frame[frame["row"].isin(fragile)], metric, CURVE_AXES["drop"], scale),
        all_layers=list(dict.fromkeys(frame["row"])),
        x_title=scale.axis,
        y_title=metric.axis,
        falling=scale.stronger_is_lower,
    )
    words = f"{metric.change_title} of {', '.join(fragile)} over {scale.texts(levels)}."
    return Figure(
        question="How fast does the loss grow with compression?",
        reading=f"The {fmt.plural(len(fragile), 'most fragile layer')} at the strongest level; bands are 95 % "
        "intervals. A flat curve can be compressed far.",
        drawings=(drawn(chart, data, label="Curves", words=words),),
    )


def _heatmap(
    result: SensitivityResult, frame: pd.DataFrame, metric: Metric, levels: list[float], data: ChartData
) -> Figure:
    scale = result.compression.scale
    chart = sensitivity_heatmap(
        frame,
        metric,
        order=list(dict.fromkeys(frame["row"])),
        level_texts=[scale.text(level) for level in levels],
    )
    return Figure(
        question="Where in the network, and from which level on, does compression hurt?",
        reading="Rows are layers from input to output, columns levels from mild to strong; a ring means no clear "
        "loss, grey that these images cannot tell whether it is tolerable.",
        drawings=(drawn(chart, data, label="Heat map", words=_worst_in_words(frame, metric, "every level")),),
        legend=fragility_legend(metric),
    )


def _network(
    result: SensitivityResult, frame: pd.DataFrame, metric: Metric, levels: list[float], data: ChartData
) -> Figure:
    profile = result.profile
    opened = _opened(profile, metric)
    by_macs = bool(profile.macs)
    share = "Share of the MACs" if by_macs else "Share of the parameters" if profile.sizes_known else "Share of layers"

    def draw(level: float, label: str) -> Drawing:
        rows = network_frame(profile, at_level(frame, level), metric, opened=opened, by_macs=by_macs)
        chart = network_bars(rows, metric, share_title=share, sizes=profile.sizes_known)
        words = f"{share} of {fmt.plural(len(rows), 'module')}, coloured by {metric.change_inside} at {label}."
        return drawn(chart, data, label=label, words=words)

    drawings, first = _each_level(result, levels, draw)
    return Figure(
        question="Where does the network hold its weight, and what does it lose there?",
        reading="Long and blue: much to save at little cost. A block loses the average of its layers, weighed by their "
        f"{'MACs' if by_macs else 'parameters'}.",
        drawings=drawings,
        first=first,
        legend=fragility_legend(metric, no_value=True),
    )


def _opened(profile: ModelProfile, metric: Metric) -> frozenset[str]:
    """Open the tree as deep as it stays readable."""
    for depth in range(_DEPTH, 1, -1):
        opened = opened_to(profile, depth)
        if len(network_frame(profile, _NO_VALUES, metric, opened=opened)) <= _MOST_NODES:
            return opened
    return opened_to(profile, 1)


_NO_VALUES = pd.DataFrame(
    columns=["layer", "drop", "low", "high", "change_text", "level_text", "interval_text", "source", "members"]
)
