"""The table of layers on the Schedule page: set a layer's amount, lock it, limit it; all others are solved again."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from senseapp.results import Schedule, SensitivityResult
from senseapp.ui.components.figure import rows_height
from senseapp.ui.frames import editing_frame
from senseapp.ui.state import LayerEdits, forget_typed, layer_edits, session

_AMOUNTS = {"sparsity": "Zeros", "pruning": "Removed", "quantization": "Bits"}
_READ_ONLY = ("row", "alone", "share", "damage")


def layer_table(run_id: str, schedule: Schedule | None, result: SensitivityResult) -> None:
    """Show one row per layer or coupled group; without a schedule, what was set stays to be changed."""
    edits = layer_edits(run_id)
    rows = editing_frame(result, schedule, fixed=edits.fixed, bounds=edits.bounds)
    kind = result.spec.sensitivity.compression.kind
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
        height=rows_height(2 * len(rows)) or "auto",
        column_order=["row", "amount", "locked", "least", "most", "alone", "share", "damage"],
        disabled=list(_READ_ONLY),
        column_config=_columns(kind),
        on_change=lambda: _take_edits(key, run_id, rows, kind),
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


def _columns(kind: str) -> dict[str, Any]:
    bits = kind == "quantization"
    bounds = {"min_value": 2.0, "max_value": 32.0, "step": 1.0, "format": "%d"} if bits else {
        "min_value": 0.0, "max_value": 99.0, "step": 0.1, "format": "%.1f %%"
    }  # fmt: skip
    number = st.column_config.NumberColumn
    return {
        "row": st.column_config.TextColumn("Layer", width="medium"),
        "amount": number(_AMOUNTS[kind], width="small", help="32 leaves a layer alone." if bits else None, **bounds),  # type: ignore[arg-type]
        "locked": st.column_config.CheckboxColumn("Locked", width="small"),
        "least": number("At least", width="small", **bounds),  # type: ignore[arg-type]
        "most": number("At most", width="small", **bounds),  # type: ignore[arg-type]
        "alone": st.column_config.TextColumn("Loses alone"),
        "share": number("Weights", width="small", format="%.1f %%", help="Share of all compressible weights."),
        "damage": st.column_config.TextColumn("Predicted", width="small"),
    }


def _take_edits(key: str, run_id: str, rows: pd.DataFrame, kind: str) -> None:
    """Keep what was typed; the table shows its own edits over new data, so one taken back starts it anew."""
    edits, unit = layer_edits(run_id), 1.0 if kind == "quantization" else 100.0
    for index, changes in st.session_state[key]["edited_rows"].items():
        row = rows.iloc[int(index)]
        if take_row(edits, str(row["layer"]), changes, row, unit):
            forget_typed()


def take_row(edits: LayerEdits, layer: str, changes: dict[str, Any], row: pd.Series[Any], unit: float) -> bool:
    """Take the changes of one row; return whether something was taken back."""
    amount = changes.get("amount", row["amount"])
    lock = changes.get("locked", changes.get("amount") is not None or bool(row["locked"]))
    if lock and pd.notna(amount):
        edits.fixed[layer] = float(amount) / unit
    else:
        edits.fixed.pop(layer, None)
    bounds = tuple(changes.get(name, row[name]) for name in ("least", "most"))
    least, most = (None if pd.isna(bound) else float(bound) / unit for bound in bounds)
    if least is None and most is None:
        edits.bounds.pop(layer, None)
    else:
        edits.bounds[layer] = (least, most)
    unlocked = not lock and (bool(row["locked"]) or changes.get("amount") is not None)
    return unlocked or None in changes.values()


def _unlock_all(run_id: str) -> None:
    session().edits.pop(run_id, None)
    forget_typed()
