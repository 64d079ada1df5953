"""The leaderboard as a frame: one row per finished run, numbers as numbers, so that every column sorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from senseapp import compressions
from senseapp.metrics import METRICS
from senseapp.results import RunRecord
from senseapp.service import LeaderboardRow


def leaderboard_frame(rows: Sequence[LeaderboardRow], records: Mapping[str, RunRecord]) -> pd.DataFrame:
    """Return the rows of runs that are still there, in their order."""
    return pd.DataFrame(
        [
            {
                "title": records[row.run].title,
                "link": f"results?run={row.run}",
                "model": row.model,
                "compression": compressions.get(row.compression).label,
                "levels": compressions.get(row.compression).scale.texts(row.levels),
                "removable": None if row.bytes_removable is None else 100 * row.bytes_removable,
                "told": row.unknown_because or ("predicted" if row.bytes_removable is not None else ""),
                "counted_in": METRICS[row.drop_metric].label if row.drop_metric else "",
                "baseline": None if row.baseline is None else METRICS[row.metric].factor * row.baseline,
                "metric": METRICS[row.metric].label,
                "params": row.num_params or None,
                "images": row.num_images or None,
                "headline": row.headline,
            }
            for row in rows
            if row.run in records
        ]
    )
