"""Single layers on the Schedule page: the table that sets, locks and limits them, and says why some are left alone."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from senseapp.app.common.state import LayerEdits, edits_key, layer_edits, session
from senseapp.descriptions import CompressionDescription, LevelScale
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import Schedule
from senseapp.views.frames.results import editing_frame

_READ_ONLY = ("row", "alone", "share", "damage", "reason")


def layer_rows(run_id: str, schedule: Schedule | None, result: RunResult) -> pd.DataFrame:
    """Return the rows of :func:`layer_table`; without a schedule, what was set."""
    edits = layer_edits(run_id)
    return editing_frame(result, schedule, fixed=edits.fixed, bounds=edits.bounds)


def layer_table(run_id: str, rows: pd.DataFrame, result: RunResult) -> None:
    """Show one row per layer or coupled group, of :func:`layer_rows`, to be changed."""
    edits = layer_edits(run_id)
    compression = result.compression.description
    st.caption(
        "Type an amount to lock a layer at it, or tick Locked to keep what it has; all other layers are solved again. "
        "At least and At most limit one layer."
    )
    key = f"schedule.table.{session().edit_round}.{run_id}"
    st.data_editor(
        rows,
        key=key,
        hide_index=True,
        placeholder="",
        height=35 * min(len(rows) + 1, 16) + 3,  # of Streamlit's rows with their heads, before the table scrolls
        column_order=["row", "amount", "locked", "least", "most", "reason", "alone", "share", "damage"],
        disabled=list(_READ_ONLY),
        column_config=_columns(compression),
        on_change=lambda: _take_edits(key, run_id, rows, compression.scale),
        alt="Amount, lock and limits of each layer",
    )
    if edits.fixed or edits.bounds:
        st.button(
            "Unlock all layers",
            key=f"schedule.unlock.{run_id}",
            icon=":material/lock_open:",
            on_click=_unlock_all,
            args=(run_id,),
        )


def _columns(compression: CompressionDescription) -> dict[str, Any]:
    scale = compression.scale
    low, high = map(scale.shown, scale.bounds)
    bounds: dict[str, Any] = {"min_value": low, "max_value": high, "step": scale.step}
    bounds["format"] = "%.1f %%" if scale.any_between else "%d"
    untouched = f"{scale.untouched:g} leaves a layer alone." if scale.untouched else None
    number = st.column_config.NumberColumn
    return {
        "row": st.column_config.TextColumn("Layer", width="medium"),
        "amount": number(compression.amount, width="small", help=untouched, **bounds),
        "locked": st.column_config.CheckboxColumn("Locked", width="small"),
        "least": number("At least", width="small", **bounds),
        "most": number("At most", width="small", **bounds),
        "reason": st.column_config.TextColumn("Why", help="Why a layer is left alone."),
        "alone": st.column_config.TextColumn("Loses alone"),
        "share": number("Weights", width="small", format="%.1f %%", help="Share of all compressible weights."),
        "damage": st.column_config.TextColumn("Predicted", width="small"),
    }


def _take_edits(key: str, run_id: str, rows: pd.DataFrame, scale: LevelScale) -> None:
    """Keep what was typed; the table shows its own edits over new data, so one taken back starts it anew."""
    edits = layer_edits(run_id)
    for index, changes in st.session_state[key]["edited_rows"].items():
        row = rows.iloc[int(index)]
        if take_row(edits, str(row["layer"]), changes, row, scale):
            session().edit_round += 1


def take_row(edits: LayerEdits, layer: str, changes: dict[str, Any], row: pd.Series[Any], scale: LevelScale) -> bool:
    """Take the changes of one row; return whether something was taken back."""
    amount = changes.get("amount", row["amount"])
    lock = changes.get("locked", changes.get("amount") is not None or bool(row["locked"]))
    if lock and pd.notna(amount):
        edits.fixed[layer] = scale.from_shown(float(amount))
    else:
        edits.fixed.pop(layer, None)
    bounds = tuple(changes.get(name, row[name]) for name in ("least", "most"))
    least, most = (None if pd.isna(bound) else scale.from_shown(float(bound)) for bound in bounds)
    if least is None and most is None:
        edits.bounds.pop(layer, None)
    else:
        edits.bounds[layer] = (least, most)
    unlocked = not lock and (bool(row["locked"]) or changes.get("amount") is not None)
    return unlocked or None in changes.values()


def _unlock_all(run_id: str) -> None:
    st.session_state[edits_key(run_id)] = LayerEdits()
    session().edit_round += 1
