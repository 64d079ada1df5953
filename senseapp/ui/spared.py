"""Which layers a schedule spares, and why, in sentences."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from statistics import median

import pandas as pd

from senseapp.compressions import LevelScale

_CLEARLY = 0.5  # of the typical amount: layers that get less are called spared
_BIT_STEPS = 2.0  # more bits than is typical
_TIMES = 2.0  # the loss of a typical layer: more than that is worth saying
_SMALL = 0.5  # of an even share of the weights


def spared_sentences(rows: pd.DataFrame, scale: LevelScale, *, most: int = 4) -> list[str]:
    """Return one sentence for each of the ``most`` layers that are spared most, with what speaks for it.

    Args:
        rows: of :func:`senseapp.ui.frames.editing_frame`, with a schedule, and with ``loss``, what each loses alone.
        scale: of the amounts.
        most: how many layers.
    """
    if rows.empty:
        return []
    typical = _typical(rows)
    more_spares = scale.stronger_is_lower
    spares = rows["amount"] >= typical + _BIT_STEPS if more_spares else rows["amount"] <= _CLEARLY * typical
    spared = rows[spares].sort_values(["amount", "loss"], ascending=[not more_spares, False]).head(most)
    usual = median(rows["loss"])
    even = 100.0 / len(rows)
    return [f"**{row['row']}** {_kept(row, scale)}: {_why(row, usual, even)}" for row in spared.to_dict("records")]


def _typical(rows: pd.DataFrame) -> float:
    """Return the mean amount, weighted by weights."""
    weight = rows["share"].clip(lower=1e-9)
    return float((rows["amount"] * weight).sum() / weight.sum())


def _kept(row: Mapping[Hashable, object], scale: LevelScale) -> str:
    amount = float(str(row["amount"]))
    if scale.stronger_is_lower:
        return "stays as it is" if amount > max(scale.choices) else f"keeps {amount:g} {scale.suffix}"
    return "is left alone" if amount == 0 else f"gets only {amount:.0f} {scale.suffix}"


def _why(row: Mapping[Hashable, object], usual: float, even: float) -> str:
    if row["locked"]:
        return "you locked it."
    loss, share = float(str(row["loss"])), float(str(row["share"]))
    reasons: list[str] = []
    if loss > _TIMES * usual and loss > 0:
        times = f", {loss / usual:.0f} times the typical layer" if usual > 0 else ""
        reasons.append(f"it loses more than most ({row['alone']}{times})")
    if share < _SMALL * even:
        part = f"{share:.1f} %" if share >= 0.05 else "under 0.1 %"
        reasons.append(f"it is small ({part} of the weights), so little would be won")
    return (" and ".join(reasons) or "other layers save as much for less damage") + "."
