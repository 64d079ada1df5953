"""The table of runs: one row each, as people read and sort them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import RunResult
from senseapp.records.resolution import opening_level
from senseapp.server.leaderboard import shown_metric
from senseapp.views.words.wording import STATES, compression_text

_MOST_BARS = 30
_COLUMNS = ("open", "title", "compression", "file", "headline", "bars", "state", "age", "size", "tags", "model")


def runs_frame(
    records: Sequence[RunRecord], bars: Mapping[str, list[float]], files: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Return a row for each run; ``bars`` and ``files``, by id, of runs where they are known.

    ``bars`` are what layers lose alone, ``files`` the headline of the best measured file.
    """
    known = files or {}
    rows = [
        (
            "Open",
            record.title,
            compression_text(record.spec.sensitivity),
            known.get(record.run_id, ""),
            record.headline or record.error or record.origin,
            bars.get(record.run_id),
            STATES[record.state].label,
            pd.Timestamp(record.created_seconds, unit="s", tz="UTC"),
            record.num_bytes,
            [*record.tags, *(["shared"] if record.shared else [])],
            record.spec.model.title,
        )
        for record in records
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def small_bars(result: RunResult) -> list[float]:
    """Return what layers lose alone at the level that is shown first, none below 0, in network order.

    Of neighbours that share a bar it is the worst.
    """
    metric = shown_metric(result)
    level = opening_level(result, metric)
    losses = [max(0.0, change.delta) for item in result.at(level) if (change := item.change(metric)) is not None]
    step = -(-len(losses) // _MOST_BARS) or 1
    return [max(losses[start : start + step]) for start in range(0, len(losses), step)]
