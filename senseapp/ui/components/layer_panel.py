"""The side panel of one picked layer: its shape, cost, group and curve over the levels."""

from __future__ import annotations

import streamlit as st

from senseapp.results import LayerProfile, SensitivityResult
from senseapp.ui import format as fmt
from senseapp.ui.charts import sensitivity_curves
from senseapp.ui.components.figure import caveat_of, show_caveat
from senseapp.ui.components.run_view import RunView
from senseapp.ui.state import drop_pick
from senseapp.ui.tables import show_table, top_columns

__all__ = ["layer_panel"]


def layer_panel(view: RunView) -> None:
    """Show the picked layer."""
    layer = view.result.profile.layer(view.picked)
    with st.container(border=True, key="layer_panel"):
        head = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center")
        head.markdown(f"**{layer.name}**")
        head.button("Close", key=f"panel.close.{view.run_id}", type="tertiary", on_click=drop_pick, args=(view.run_id,))
        _facts(layer, view.result)
        _curve(view, layer)


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
    return next((item.members for item in result.shown if item.layer == name and item.members), ())


def _curve(view: RunView, layer: LayerProfile) -> None:
    rows = view.frame[view.frame["layer"] == layer.name]
    chart = sensitivity_curves(
        rows, view.metric, all_layers=list(rows["row"].unique()), level_texts=view.level_texts, height=170, y_title=None
    )
    words = ", ".join(f"{row.change_text} at {row.level_text}" for row in rows.itertuples())
    show_caveat(caveat_of(view.result))
    st.altair_chart(chart, alt=f"{view.metric.label} of {layer.name}: {words}", key=f"panel.curve.{view.run_id}")
    columns = {"level_text": st.column_config.TextColumn("Level", width=70), **top_columns(view.metric)}
    del columns["row"]
    show_table(rows, columns, alt_text=f"{layer.name} at every level", key=f"panel.table.{view.run_id}")
