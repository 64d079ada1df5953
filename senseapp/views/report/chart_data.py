"""What a report is made of: a run's records, and charts as specifications whose rows are kept once for all of them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import pandas as pd

from senseapp.records.candidate import Candidate
from senseapp.records.changed_answers import ChangedAnswers
from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.measurement import RunResult
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import Schedule, ValidationResult
from senseapp.views.charts.axes import chart_parts

_DECIMALS = 10
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

    ``made_seconds`` is when the report is made, in Unix time.
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
    finished: bool = True
    made_seconds: float = field(default_factory=time.time)
