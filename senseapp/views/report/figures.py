"""Parts of a report: a run's records, and the charts of the Results page with rows that are stored once."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import pandas as pd

from senseapp.descriptions import LevelScale
from senseapp.metrics import Metric
from senseapp.prove.decision import Decision
from senseapp.records.answers import ChangedAnswers
from senseapp.records.candidate import Candidate
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile
from senseapp.records.recommendation import Recommendation
from senseapp.records.resolution import opening_level
from senseapp.records.schedule import Schedule, ValidationResult
from senseapp.views.charts.axes import LOOK, chart_parts
from senseapp.views.charts.layers import sensitivity_bars
from senseapp.views.charts.levels import sensitivity_curves, sensitivity_heatmap
from senseapp.views.charts.network import network_bars
from senseapp.views.frames.levels import CURVE_AXES, curve_rows, drop_domain, marked
from senseapp.views.frames.network import network_frame, num_nodes, opened_to
from senseapp.views.frames.results import at_level, ordered_levels, top_frame
from senseapp.views.palette import LegendEntry, fragility_legend
from senseapp.views.words import format as fmt

_DECIMALS = 10  # of numbers in the file: far beyond what a chart resolves
_IN_EXPRESSIONS = re.compile(r"""datum\.(\w+)|datum\[['"](\w+)['"]\]""")


@dataclass(slots=True)
class ChartData:
    """The charts of a report: specifications whose data are names of frames, and rows as JSON text by that name."""

    specs: list[dict[str, Any]] = field(default_factory=list)
    frames: dict[str, str] = field(default_factory=dict)

    def take(self, chart: alt.Chart | alt.LayerChart, look: dict[str, Any]) -> int:
        """Keep ``chart`` with the properties ``look``, and return its number.

        Altair would put the rows inside with whatever transformer the process has at the moment, and Streamlit
        exchanges it while it draws for somebody else.
        """
        drawn: Any = chart.copy()
        parts = [part for part in chart_parts(drawn) if isinstance(part.data, pd.DataFrame)]
        held = [part.data for part in parts]
        for place, part in enumerate(parts):
            part.data = alt.NamedData(name=str(place))
        spec: dict[str, Any] = drawn.to_dict(validate=False)
        used = _fields(spec)
        _rename(spec, [self._keep(frame[[column for column in frame.columns if column in used]]) for frame in held])
        self.specs.append(spec | look)
        return len(self.specs) - 1

    def packed(self) -> str:
        """Return everything as JSON, compressed by gzip, in base64."""
        frames = ",".join(f'"{name}":{rows}' for name, rows in self.frames.items())
        text = f'{{"specs":{json.dumps(self.specs, separators=(",", ":"), allow_nan=False)},"frames":{{{frames}}}}}'
        return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()

    def _keep(self, frame: pd.DataFrame) -> str:
        rows = str(frame.to_json(orient="records", double_precision=_DECIMALS))
        name = hashlib.sha256(rows.encode()).hexdigest()[:12]
        self.frames[name] = rows
        return name


def _fields(node: Any) -> set[str]:
    """Return the columns that a specification draws, filters or calculates with."""
    if isinstance(node, dict):
        named = {node["field"]} if isinstance(node.get("field"), str) else set(node.get("fields", ()))
        return named.union(*map(_fields, node.values()))
    if isinstance(node, list):
        return set().union(*map(_fields, node))
    if isinstance(node, str):
        return {dotted or bracketed for dotted, bracketed in _IN_EXPRESSIONS.findall(node)}
    return set()


def _rename(node: Any, names: Sequence[str]) -> None:
    """Put the name of its frame in the place of each number that stands for one."""
    if isinstance(node, dict):
        data = node.get("data")
        if isinstance(data, dict) and "name" in data:
            data["name"] = names[int(data["name"])]
        for child in node.values():
            _rename(child, names)
    elif isinstance(node, list):
        for child in node:
            _rename(child, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContents:
    """A run and everything that was made of it: unproven schedules, proofs, answers that they change, histograms.

    ``decided`` is what the page shows; None for the usual decision of the run. ``made_seconds`` is when the report is
    made, in Unix time.
    """

    title: str
    result: RunResult
    headline: str
    schedules: tuple[Schedule, ...] = ()
    validations: tuple[ValidationResult, ...] = ()
    histograms: tuple[QuantizationHistogram, ...] = ()
    changed: tuple[ChangedAnswers, ...] = ()
    recommendation: Recommendation | None = None
    candidates: tuple[Candidate, ...] = ()
    decided: Decision | None = None
    finished: bool = True
    made_seconds: float = field(default_factory=time.time)


_LOOK = {
    "config": {
        **LOOK,
        "axis": {**LOOK["axis"], "labelFontSize": 12, "titleFontSize": 13, "titlePadding": 8},
        "legend": {**LOOK["legend"], "labelFontSize": 12, "symbolOpacity": 1},
    },
    "width": "container",
    "autosize": {"type": "fit-x", "contains": "padding"},
}
_CURVES = 8  # as many as there are colours that are told apart
_DEPTH = 3  # levels of the tree: stages, blocks and their layers
_MOST_NODES = 120  # rows of a drawing of the tree: three screens
# drawings of levels at least and at most; bars of all of them together, to keep the file small
_FEWEST_LEVELS, _MOST_LEVELS, _MOST_BARS = 3, 20, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One chart: its number in the report's :class:`ChartData`, and its text alternative.

    ``label`` tells it from the others of its figure.
    """

    label: str
    chart: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One chart under the question that it answers, or several to choose from by ``what``, the ``first`` at first."""

    question: str
    reading: str
    drawings: tuple[Drawing, ...]
    first: int = 0
    what: str = "Level"
    legend: tuple[LegendEntry, ...] = ()


def drawn(chart: alt.Chart | alt.LayerChart, data: ChartData, *, label: str, words: str) -> Drawing:
    """Return ``chart`` as wide as the page, in the colours of paper."""
    return Drawing(label=label, chart=data.take(chart, _LOOK), words=words)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What the figures of a result are drawn from: its rows in one metric, and the levels that have any."""

    result: RunResult
    metric: Metric
    data: ChartData
    frame: pd.DataFrame
    levels: list[float]

    @property
    def scale(self) -> LevelScale:
        return self.result.spec.sensitivity.compression.scale

    @property
    def drawn_levels(self) -> list[float]:
        """The levels that have a drawing of their own: all, or some at equal distances from the mildest to the last."""
        last = len(self.levels) - 1
        most = max(_FEWEST_LEVELS, min(_MOST_LEVELS, _MOST_BARS // len(self.result.profile.layers)))
        if last < most:
            return self.levels
        return [self.levels[round(place * last / (most - 1))] for place in range(most)]

    @property
    def left_out(self) -> str:
        """A sentence on the levels without a drawing; empty where there are none."""
        drawn, total = len(self.drawn_levels), len(self.levels)
        return f" To keep this file small {drawn} of {total} levels are drawn; the tables have all." * (drawn < total)

    def each_level(self, draw: Callable[[pd.DataFrame, str], tuple[alt.LayerChart, str]]) -> tuple[Drawing, ...]:
        """Return a drawing of each level that has one, from its rows and its name."""
        drawings = []
        for level in self.drawn_levels:
            label = self.scale.text(level)
            chart, words = draw(at_level(self.frame, level), label)
            drawings.append(drawn(chart, self.data, label=label, words=words))
        return tuple(drawings)

    @property
    def first(self) -> int:
        """The place of the level to show first."""
        return self.drawn_levels.index(opening_level(self.result, self.metric.name, self.drawn_levels))

    def worst(self, rows: pd.DataFrame, level: str) -> str:
        """Return the rows with the largest losses, in words."""
        layers = fmt.plural(rows["row"].nunique(), "layer")
        most = rows.sort_values(["drop", "layer"], ascending=[False, True])["description"].head(3)
        return f"{self.metric.change_title} of {layers} at {level}. Most fragile: {'; '.join(map(str, most))}."


def result_figures(result: RunResult, metric: Metric, data: ChartData, frame: pd.DataFrame) -> tuple[Figure, ...]:
    """Return the views of a result: bars at each level, curves, the heat map and the network.

    ``frame`` is :func:`senseapp.views.frames.results.measurement_frame` of the ``metric``.
    """
    levels = [level for level in ordered_levels(result) if (frame["level"] == level).any()]
    if not levels:
        return ()
    shown = _Shown(result=result, metric=metric, data=data, frame=frame, levels=levels)
    return (_bars(shown), _curves(shown), _heatmap(shown), _network(shown))


def _bars(shown: _Shown) -> Figure:
    metric = shown.metric

    def draw(rows: pd.DataFrame, label: str) -> tuple[alt.LayerChart, str]:
        domain = drop_domain(rows, metric, num_classes=shown.result.profile.num_classes)
        return sensitivity_bars(marked(rows), metric, x_domain=domain), shown.worst(rows, label)

    return Figure(
        question="What does each layer lose when it alone is compressed?",
        reading="Thin lines are 95 % intervals, a ring means no clear loss, grey that these images cannot tell "
        f"whether it is tolerable; pale bars are estimates.{shown.left_out}",
        drawings=shown.each_level(draw),
        first=shown.first,
        legend=fragility_legend(metric),
    )


def _curves(shown: _Shown) -> Figure:
    frame, metric, scale = shown.frame, shown.metric, shown.scale
    ranked = at_level(frame, shown.levels[-1], by_sensitivity=True)
    fragile = list(top_frame(ranked, _CURVES, fragile=True)["row"])
    chart = sensitivity_curves(
        curve_rows(frame[frame["row"].isin(fragile)], metric, CURVE_AXES["drop"], scale),
        all_layers=list(dict.fromkeys(frame["row"])),
        x_title=scale.axis,
        y_title=metric.axis,
        falling=scale.stronger_is_lower,
    )
    words = f"{metric.change_title} of {', '.join(fragile)} over {scale.texts(shown.levels)}."
    return Figure(
        question="How fast does the loss grow with compression?",
        reading=f"The {fmt.plural(len(fragile), 'most fragile layer')} at the strongest level; bands are 95 % "
        "intervals. A flat curve can be compressed far.",
        drawings=(drawn(chart, shown.data, label="Curves", words=words),),
    )


def _heatmap(shown: _Shown) -> Figure:
    frame, texts = shown.frame, [shown.scale.text(level) for level in shown.levels]
    chart = sensitivity_heatmap(frame, shown.metric, order=list(dict.fromkeys(frame["row"])), level_texts=texts)
    return Figure(
        question="Where in the network, and from which level on, does compression hurt?",
        reading="Rows are layers from input to output, columns levels from mild to strong; a ring means no clear "
        "loss, grey that these images cannot tell whether it is tolerable.",
        drawings=(drawn(chart, shown.data, label="Heat map", words=shown.worst(frame, "every level")),),
        legend=fragility_legend(shown.metric),
    )


def _network(shown: _Shown) -> Figure:
    profile, metric = shown.result.profile, shown.metric
    opened = _opened(profile)
    by_macs = bool(profile.macs)
    share = (
        "Share of the multiplications"
        if by_macs
        else "Share of the parameters"
        if profile.sizes_known
        else "Share of layers"
    )

    def draw(rows: pd.DataFrame, label: str) -> tuple[alt.LayerChart, str]:
        nodes = network_frame(profile, rows, metric, opened=opened, by_macs=by_macs)
        words = f"{share} of {fmt.plural(len(nodes), 'module')}, coloured by {metric.change_inside} at {label}."
        return network_bars(nodes, metric, share_title=share, sizes=profile.sizes_known), words

    return Figure(
        question="Where does the network hold its weight, and what does it lose there?",
        reading="Long and blue: much to save at little cost. A block loses the average of its layers, weighed by their "
        f"{'multiplications' if by_macs else 'parameters'}.{shown.left_out}",
        drawings=shown.each_level(draw),
        first=shown.first,
        legend=fragility_legend(metric, no_value=True),
    )


def _opened(profile: ModelProfile) -> frozenset[str]:
    """Open the tree as deep as it stays readable."""
    deeper = (opened_to(profile, depth) for depth in range(_DEPTH, 1, -1))
    readable = (opened for opened in deeper if num_nodes(profile, opened=opened) <= _MOST_NODES)
    return next(readable, opened_to(profile, 1))
