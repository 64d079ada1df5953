"""Runs side by side: how good each model is, and how small it can be made for at most one point."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from senseapp.errors import InfeasibleBudget, InvalidSchedule, InvalidSpec, SenseError
from senseapp.metrics import METRICS, primary_among
from senseapp.results import RunRecord, RunState, SensitivityResult
from senseapp.results.counts import plural
from senseapp.results.resolution import can_show
from senseapp.service.headline import headline
from senseapp.store import RunStore

ALLOWED_DROP = 0.01
"""One point of a hundred."""

_log = logging.getLogger(__name__)
_COLUMNS = (
    *("run", "model", "compression", "levels", "params", "images", "metric", "baseline"),
    *("bytes_removable", "drop_metric", "source", "headline"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardRow:
    """One run in a leaderboard.

    Attributes:
        run: its id, or the name of its folder.
        model: its name.
        compression: ``sparsity``, ``pruning`` or ``quantization``.
        levels: that were measured, as fractions or bits.
        num_params: of the model; 0 where unknown.
        num_images: measured on; 0 where unknown.
        metric: that ranks its layers.
        baseline: of the uncompressed model in that metric; None where it says nothing (KL) or is unknown.
        bytes_removable: the largest share of bytes, of the schedules of the trade-off, that is predicted to cost at
            most :data:`ALLOWED_DROP`; 0 if none is that gentle, None where it cannot be said.
        unknown_because: why it cannot be said, where the images cannot show such a drop; else empty.
        drop_metric: what that drop is counted in: top-1, or agreement with the uncompressed model.
        headline: the result in one sentence.
    """

    run: str
    model: str
    compression: str
    levels: tuple[float, ...]
    num_params: int
    num_images: int
    metric: str
    baseline: float | None
    bytes_removable: float | None
    drop_metric: str
    headline: str
    unknown_because: str = ""


def leaderboard_row(result: SensitivityResult, *, run: str) -> LeaderboardRow:
    """Return what a leaderboard says about a finished run."""
    measured = {change.metric for item in result.measurements for change in item.changes}
    counted = primary_among(measured) or ""
    baseline = result.baseline.get(result.metric)
    unknown = _cannot_be_told(result, counted)
    return LeaderboardRow(
        run=run,
        model=result.profile.title,
        compression=result.spec.sensitivity.compression.kind,
        levels=result.levels,
        num_params=result.profile.num_params,
        num_images=result.num_samples,
        metric=result.metric,
        baseline=baseline if METRICS[result.metric].needs_labels else None,
        bytes_removable=_removable(result, counted) if counted and not unknown else None,
        drop_metric=counted,
        headline=headline(result),
        unknown_because=unknown,
    )


def ranked(rows: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    """Return the rows with the most compressible first; those that cannot be said come last, in their order."""
    return sorted(rows, key=lambda row: -1.0 if row.bytes_removable is None else row.bytes_removable, reverse=True)


def leaderboard_csv(rows: Sequence[LeaderboardRow]) -> str:
    """Return the rows as a table with the columns ``run,model,compression,...``; unknown figures are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        known = "" if row.bytes_removable is None else f"{row.bytes_removable:.4f}"
        writer.writerow(
            [
                *(row.run, row.model, row.compression, " ".join(f"{level:g}" for level in row.levels)),
                *(row.num_params, row.num_images, row.metric, "" if row.baseline is None else f"{row.baseline:.6g}"),
                *(known, row.drop_metric, "predicted" if known else row.unknown_because, row.headline),
            ]
        )
    return text.getvalue()


def _cannot_be_told(result: SensitivityResult, metric: str) -> str:
    """Say that images which cannot show :data:`ALLOWED_DROP` in one layer cannot vouch for it in all; else empty."""
    if not metric or can_show(result, metric, ALLOWED_DROP):
        return ""
    return f"cannot be told with {plural(result.num_samples, 'image')}"


def _removable(result: SensitivityResult, metric: str) -> float | None:
    from senseapp.schedule import trade_off  # it loads scipy, which the app starts without

    try:
        points = trade_off(result, "bytes", metric=metric)
    except (InvalidSchedule, InvalidSpec, InfeasibleBudget):  # no layer has a curve, or no budget can be asked for
        return None
    return max((point.figure for point in points if point.damage <= ALLOWED_DROP), default=0.0)


class Leaderboard:
    """Rows of stored runs; each is made once, for that takes about half a second."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._known: dict[tuple[str, float], LeaderboardRow | None] = {}

    def rows(self, records: Sequence[RunRecord]) -> tuple[LeaderboardRow, ...]:
        """Return a row for each finished run of ``records``, except where its files are damaged."""
        found = (self._row(record) for record in records if record.state is RunState.DONE)
        return tuple(ranked([row for row in found if row is not None]))

    def _row(self, record: RunRecord) -> LeaderboardRow | None:
        key = record.run_id, record.updated_seconds
        if key not in self._known:
            try:
                result = self._store.folder(record.run_id).load_result()
                self._known[key] = leaderboard_row(result, run=record.run_id)
            except SenseError:
                _log.warning("run %s is left out of the leaderboard", record.run_id, exc_info=True)
                self._known[key] = None
        return self._known[key]
