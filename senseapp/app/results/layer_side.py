"""The column beside a chart: choice of the layers with curves, and the panel of the picked layer."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from senseapp.app.common.address import WORDS, bound, choose, some_of, whole
from senseapp.app.common.figure import figure
from senseapp.app.common.notices import errors_here
from senseapp.app.common.run_guard import outcome_or_offer
from senseapp.app.common.state import drop_pick
from senseapp.app.common.tables import changed_answers, text_table
from senseapp.app.results.view import RunView
from senseapp.core.markdown import md
from senseapp.core.texts import matcher, part_of_name
from senseapp.metrics import METRICS
from senseapp.records.layer_findings import shares_of_damage
from senseapp.records.measurement import RunResult
from senseapp.records.profile import LayerProfile
from senseapp.server.run_tasks import DiagnosisTask, LayerAnswers
from senseapp.solve.curve_set import damage_metric
from senseapp.views.charts.levels import curve_rows, sensitivity_curves
from senseapp.views.frames.network import blocks_of
from senseapp.views.frames.results import apart_frame, at_level
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import caveat_of, remedies_text, remedy_text


def fitting_rows(
    frame: pd.DataFrame, *, name: str = "", blocks: Sequence[str] = (), types: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the rows of layers, or of groups with a member, that fit a part of a name or a pattern, blocks and types.

    An empty condition fits all; one of several blocks or types is enough.
    """
    named = matcher([part_of_name(name)])

    def fits(layer: str) -> bool:
        return named(layer.lower()) and (not blocks or any(layer.startswith(f"{block}.") for block in blocks))

    known = {members: any(map(fits, members.split(", "))) for members in set(frame["members"])}
    chosen = frame["members"].map(known).astype(bool)
    return frame[chosen & frame["layer_type"].isin(types)] if types else frame[chosen]


def most_fragile(frame: pd.DataFrame, level: float, number: int) -> list[str]:
    """Return ``row`` of the ``number`` most fragile layers of ``frame`` at ``level``, in network order."""
    worst = set(at_level(frame, level, by_sensitivity=True)["row"].head(number))
    return [row for row in dict.fromkeys(frame["row"]) if row in worst]


_FRAGILE, _ALL, _NAMED = "Fragile", "All", "By name"


def choose_layers(view: RunView) -> list[str]:
    """Return ``row`` of the chosen layers, in network order; the picked layer is always among them."""
    run_id, blocks = view.run_id, blocks_of(view.result.profile)
    types = [name for name in dict.fromkeys(view.frame["layer_type"]) if name]  # unknown ones have none
    name = st.text_input(
        "Search",
        **bound(run_id, "search", WORDS, "", key=f"curves.search.{run_id}"),
        placeholder="Part of a name, or layer1.*.conv2",
    )
    chosen_blocks = st.multiselect(
        "Blocks",
        blocks,
        **bound(run_id, "blocks", some_of(blocks), [], key=f"curves.blocks.{run_id}"),
        placeholder="All blocks",
    )
    chosen_types: list[str] = []
    if len(types) > 1:
        setting = bound(run_id, "types", some_of(types), [], key=f"curves.types.{run_id}")
        chosen_types = st.pills("Types", types, selection_mode="multi", **setting)
    frame = fitting_rows(view.frame, name=name, blocks=chosen_blocks, types=chosen_types)
    chosen = _chosen(view, list(dict.fromkeys(frame["row"])))
    named = set(most_fragile(frame, view.level, chosen) if isinstance(chosen, int) else chosen)
    named |= set(view.frame["row"][view.frame["layer"] == view.picked_row])
    rows = list(dict.fromkeys(view.frame["row"]))
    shown = [row for row in rows if row in named]
    st.caption(f"{len(shown)} of {len(rows)} curves are drawn.")
    return shown


def _chosen(view: RunView, fitting: list[str]) -> int | list[str]:
    """Return how many of the most fragile layers to draw, or which layers."""
    mode = choose(
        "Draw",
        (_FRAGILE, _ALL, _NAMED),
        _FRAGILE,
        view.run_id,
        "curves",
        help="The most fragile ones, all, or those you name, of the layers that pass the filters.",
    )
    if mode == _ALL:
        return fitting
    if mode == _NAMED:
        return st.multiselect(
            "Layers",
            fitting,
            **bound(view.run_id, "layers", some_of(fitting), [], key=f"curves.layers.{view.run_id}"),
            placeholder="Type a part of a name",
        )
    most = max(1, view.frame["row"].nunique())
    number = st.number_input(
        "How many",
        1,
        most,
        **bound(view.run_id, "number", whole(1, most), min(5, most), key=f"curves.number.{view.run_id}"),
        help=f"The most fragile layers at {view.level_text}.",
    )
    return int(number)


def layer_side(view: RunView) -> None:
    """Show the picked layer, or how to pick one."""
    if view.picked:
        layer_panel(view)
    else:
        st.info("Click a layer in the chart to see it here.", icon=":material/touch_app:")


def layer_panel(view: RunView) -> None:
    """Show the picked layer."""
    layer = view.result.profile.layer(view.picked)
    with st.container(border=True, key="layer_panel"):
        head = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center")
        head.markdown(md("## {}", layer.name))
        head.button("Close", key=f"panel.close.{view.run_id}", type="tertiary", on_click=drop_pick, args=(view.run_id,))
        facts = _facts(layer, view.result)
        st.markdown(md("  \n").join(md(":small[{}: **{}**]", label, value) for label, value in facts.items()))
        if view.picked_row:
            _curve(view)
            _measured(view)
        else:
            reasons = apart_frame(view.result)
            found = reasons[reasons["layer"] == view.picked]
            why = found["reason"].iloc[0] if len(found) else f"There is no {view.metric.label} of it in this run."
            st.caption(md(":material/block: No value. {}", why))


def _facts(layer: LayerProfile, result: RunResult) -> dict[str, str]:
    facts = {"Type and size": "unknown (imported figures)"}
    if result.profile.sizes_known:
        facts = {
            "Type": layer.layer_type,
            "Weight": fmt.shape(layer.weight_shape),
            "Input → output": f"{fmt.shape(layer.input_shape)} → {fmt.shape(layer.output_shape)}",
            "Parameters": f"{fmt.count(layer.num_params)} ({_share(layer.num_params, result.profile.num_params)})",
            "Multiplications": f"{fmt.count(layer.macs)} ({_share(layer.macs, result.profile.macs)})",
        }
    group = next((item.members for item in result.shown if layer.name in item.members), ())
    others = ", ".join(name for name in group if name != layer.name)
    return facts | ({"Compressed together with": others} if others else {})


def _share(part: int, whole: int) -> str:
    return f"{fmt.percent(part / whole, digits=1)} of the model" if whole else "–"


def _curve(view: RunView) -> None:
    scale = view.compression.scale
    rows = curve_rows(view.frame[view.frame["layer"] == view.picked_row], scale)
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
    text_table(
        ("Level", "Drop", "95 % interval"),
        rows[["level_text", "change_text", "interval_text"]].to_numpy(),
        alt_text=f"{view.picked} at every level",
        key=f"panel.table.{view.run_id}",
    )


def _measured(view: RunView) -> None:
    """Show why the layer is fragile, what helps, and which answers change with it alone; or the buttons to find out."""
    metric = damage_metric(view.result)
    shares = shares_of_damage(view.result, view.picked_row, metric)
    if shares:
        scale = view.compression.scale
        parts = ", ".join(f"{fmt.percent(share)} at {scale.text(level)}" for level, share in shares.items())
        st.caption(f"Its share of what all layers lose alone: {parts}.", help=METRICS[metric].label)
    if view.result.spec.data.kind == "imported":
        return
    why = DiagnosisTask(run_id=view.run_id, layer=view.picked_row, level=view.level)
    about = "Looks at its weights, its input and its normalisation, and measures what would help."
    with errors_here():
        found = outcome_or_offer(
            why, "Why this layer?", "a look at this layer", key="panel.why", icon="help", about=about
        )
        if found is not None:
            st.markdown(md("### Why this layer at {}?", view.level_text))
            reasons = [each.sentence for each in found.findings] or ["Nothing stands out in its weights and its input."]
            st.markdown(md("\n").join(md("- {}", reason) for reason in reasons))
            st.markdown(md(":material/healing: {}", remedy_text(found)), help=remedies_text(found))
    answers = LayerAnswers(run_id=view.run_id, layer=view.picked_row, level=view.level)
    about = f"Runs the images of the run once more, with this layer alone at {view.level_text}."
    with errors_here():
        changed = outcome_or_offer(
            answers, "Which answers change?", "these pictures", key="panel.answers", icon="compare", about=about
        )
        if changed is not None:
            changed_answers(changed, key=f"layer.{view.run_id}")
