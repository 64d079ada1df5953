"""The side panel of one picked layer: its shape, cost, group and curve over the levels."""

from __future__ import annotations

import streamlit as st

from senseapp.results import LayerProfile, SensitivityResult
from senseapp.ui import format as fmt
from senseapp.ui.charts import sensitivity_curves
from senseapp.ui.components.figure import figure
from senseapp.ui.components.run_view import RunView
from senseapp.ui.curve_frames import CURVE_AXES, curve_rows
from senseapp.ui.frames import apart_frame
from senseapp.ui.state import drop_pick
from senseapp.ui.tables import show_table, top_columns
from senseapp.ui.wording import caveat_of


def layer_side(view: RunView) -> None:
    """Show the picked layer, or how to pick one."""
    if view.picked:
        layer_panel(view)
    else:
        st.info("Click a row to see its layer here.", icon=":material/touch_app:")


def layer_panel(view: RunView) -> None:
    """Show the picked layer."""
    layer = view.result.profile.layer(view.picked)
    with st.container(border=True, key="layer_panel"):
        head = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center")
        head.markdown(f"**{layer.name}**")
        head.button("Close", key=f"panel.close.{view.run_id}", type="tertiary", on_click=drop_pick, args=(view.run_id,))
        _facts(layer, view.result)
        if view.picked_row:
            _curve(view)
        else:
            _no_value(view)


def _facts(layer: LayerProfile, result: SensitivityResult) -> None:
    facts = _sizes(layer, result) if result.profile.sizes_known else {"Type and size": "unknown (imported figures)"}
    others = [name for name in _group(layer.name, result) if name != layer.name]
    if others:
        facts["Compressed together with"] = ", ".join(others)
    st.markdown("  \n".join(f":small[{label}: **{value}**]" for label, value in facts.items()))


def _sizes(layer: LayerProfile, result: SensitivityResult) -> dict[str, str]:
    return {
        "Type": layer.layer_type,
        "Weight": fmt.shape(layer.weight_shape),
        "Input → output": f"{fmt.shape(layer.input_shape)} → {fmt.shape(layer.output_shape)}",
        "Parameters": f"{fmt.count(layer.num_params)} ({_share(layer.num_params, result.profile.num_params)})",
        "MACs": f"{fmt.count(layer.macs)} ({_share(layer.macs, result.profile.macs)})",
    }


def _share(part: int, whole: int) -> str:
    return f"{fmt.percent(part / whole, digits=1)} of the model" if whole else "–"


def _group(name: str, result: SensitivityResult) -> tuple[str, ...]:
    return next((item.members for item in result.shown if name in item.members), ())


def _no_value(view: RunView) -> None:
    reasons = apart_frame(view.result)
    found = reasons[reasons["layer"] == view.picked]
    why = found["reason"].iloc[0] if len(found) else f"There is no {view.metric.label} of it in this run."
    st.caption(f":material/block: No value. {why}")


def _curve(view: RunView) -> None:
    scale = view.compression.scale
    own = view.frame[view.frame["layer"] == view.picked_row]
    rows = curve_rows(own, view.metric, CURVE_AXES["drop"], scale)
    words = ", ".join(f"{row.change_text} at {row.level_text}" for row in rows.itertuples())
    figure(
        "Its loss at every level",
        sensitivity_curves(
            rows,
            all_layers=list(dict.fromkeys(view.frame["row"])),
            x_title=scale.axis,
            y_title=None,
            falling=scale.stronger_is_lower,
            height=150,
        ),
        alt_text=f"{view.metric.change_title} of {view.picked}: {words}",
        key=f"panel.curve.{view.run_id}",
        caveat=caveat_of(view.result),
        lines=(view.picked, *view.lines),
        level=3,
    )
    columns = {"level_text": st.column_config.TextColumn("Level", width=60), **top_columns(view.metric)}
    del columns["row"], columns["rank"]
    show_table(rows, columns, alt_text=f"{view.picked} at every level", key=f"panel.table.{view.run_id}")
