"""The rows that compare files that can be delivered: size, time and answers, each of that very file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from senseapp.metrics import METRICS
from senseapp.records.candidate import Candidate, offered
from senseapp.views.words import format as fmt

COLUMNS = (
    *("file", "name", "run", "megabytes", "milliseconds", "time_share", "value", "low", "high", "beaten", "size"),
    *("time", "answers", "description"),
)


def candidates_frame(candidates: Iterable[Candidate], *, run: str = "") -> pd.DataFrame:
    """Return a row per candidate, the smallest first.

    ``megabytes`` and ``milliseconds`` are those of the file, ``time_share`` is in percent of the original's time;
    ``value``, ``low`` and ``high`` are in the unit of the metric that people judge it by, ``beaten`` marks what another
    candidate is no worse than in size, time and loss; ``size``, ``time`` and ``answers`` are texts.
    """
    known = tuple(candidates)
    kept = offered(known)
    rows = [_row(each, run=run, beaten=each not in kept) for each in known]
    return pd.DataFrame(rows, columns=list(COLUMNS)).sort_values(["megabytes", "value"], ignore_index=True)


def _row(candidate: Candidate, *, run: str, beaten: bool) -> dict[str, object]:
    figures, view = candidate.figures, METRICS[candidate.metric]
    low, high = candidate.interval
    return {
        "file": candidate.file,
        "name": candidate.made_of,
        "run": run,
        "megabytes": figures.file_bytes / 1e6,
        "milliseconds": 1000 * figures.seconds.value,
        "time_share": 100 * figures.time_ratio.value,
        "value": view.factor * candidate.loss.value,
        "low": view.factor * low,
        "high": view.factor * high,
        "beaten": beaten,
        "size": fmt.bytes_size(figures.file_bytes),
        "time": f"{1000 * figures.seconds.value:.3g} ms, {candidate.time_text}",
        "answers": f"{candidate.answers_text} ({candidate.evidence})",
        "description": f"{candidate.made_of}: {candidate.headline}",
    }


def answers_axis(candidates: Sequence[Candidate]) -> str:
    """Return the title of the axis of ``value``."""
    view = METRICS[candidates[0].metric]
    return view.value_axis if view.additive else view.axis


def original_row(candidates: Sequence[Candidate], *, run: str = "") -> dict[str, object]:
    """Return the row of the uncompressed network: its size, its time, and what it does in the unit of ``value``."""
    first = next((each for each in candidates if each.runs), candidates[0])
    view = METRICS[first.metric]
    value = view.factor * first.loss.baseline if view.additive else 0.0
    size = fmt.bytes_size(first.original.file_bytes)
    return {
        "run": run,
        "megabytes": first.original.file_bytes / 1e6,
        "milliseconds": 1000 * first.original.seconds.value,
        "value": value,
        "description": f"The original: {size}, {1000 * first.original.seconds.value:.3g} ms a call",
    }
