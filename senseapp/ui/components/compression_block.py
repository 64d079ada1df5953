"""Block 3 of the Analyze page: what to do to a layer, how strongly, and how to measure it."""

from __future__ import annotations

import streamlit as st

from senseapp.errors import InvalidSpec
from senseapp.results import ModelProfile
from senseapp.spec import CompressionConfig, SensitivitySpec, fractions_from_percent, parse_numbers
from senseapp.spec.run import Mode
from senseapp.tasks import Task
from senseapp.ui import format as fmt
from senseapp.ui.components.compression_options import choose_config
from senseapp.ui.components.measure_options import choose_measuring
from senseapp.ui.components.notices import complain
from senseapp.ui.vocabulary import COMPRESSIONS, CompressionView

_AUTOMATIC_LABEL = "Automatic: top-1 with many labelled images, else KL"
_AUTOMATIC = "automatic"


def choose_sensitivity(draft: SensitivitySpec, profile: ModelProfile | None, task: Task) -> SensitivitySpec | None:
    """Show everything that is measured and how, prefilled with ``draft``; None while a field is wrong."""
    kinds = list(COMPRESSIONS)
    kind = st.radio(
        "What is done to a layer",
        kinds,
        index=kinds.index(draft.compression.kind),
        format_func=lambda name: f"**{COMPRESSIONS[name].label}**",
        captions=[COMPRESSIONS[name].line for name in kinds],
        horizontal=True,
        key="analyze.compression.kind",
        help="One layer at a time is compressed and the damage measured; the others stay as they are.",
        persist_state="session",
    )
    compression = COMPRESSIONS[kind if kind in kinds else kinds[0]]
    levels_place, metric_place = st.container(), st.container()
    with st.expander("More options"):
        other_levels = _other_levels(compression)
        config = choose_config(draft.compression, kind=compression.kind)
        measuring = choose_measuring(draft, profile)
    with levels_place:
        levels = _choose_levels(draft, compression, config, other_levels)
    with metric_place:
        metric = _choose_metric(draft, task)
    quick = st.toggle(
        "Quick estimate only",
        value=draft.mode == "quick",
        key="analyze.quick",
        help="Estimate all layers at once from one backward pass, in seconds. Exact runs show the estimate first and "
        "then measure every layer.",
        persist_state="session",
    )
    if levels is None or config is None or measuring is None:
        return None
    mode: Mode = "quick" if quick else "exact"
    return SensitivitySpec(compression=config, levels=levels, metric=metric, mode=mode, **measuring)


def _other_levels(view: CompressionView) -> str:
    unit = "bits" if view.kind == "quantization" else "percent"
    return st.text_input(
        f"Other levels ({unit}, separated by commas)",
        placeholder="6, 5" if view.kind == "quantization" else "35, 85",
        key=f"analyze.levels.other.{view.kind}",
        help="Added to the levels chosen above.",
        persist_state="session",
    ) or ""  # fmt: skip


def _choose_levels(
    draft: SensitivitySpec, view: CompressionView, config: CompressionConfig | None, other: str
) -> tuple[float, ...] | None:
    held = draft.levels if draft.compression.kind == view.kind else view.default
    chosen = st.pills(
        "Levels",
        sorted({*view.choices, *held}, reverse=view.kind == "quantization"),
        selection_mode="multi",
        default=list(held),
        format_func=lambda level: fmt.level(view.kind, level),
        key=f"analyze.levels.{view.kind}",
        help=view.levels_help,
        persist_state="session",
    )
    try:
        typed = parse_numbers(other, what="Other levels") if other.strip() else ()
        added = typed if view.kind == "quantization" else fractions_from_percent(typed)
        levels = tuple(sorted({*chosen, *added}))
        return SensitivitySpec(compression=config, levels=levels).levels if config else None
    except InvalidSpec as error:
        complain(str(error))
        return None


def _choose_metric(draft: SensitivitySpec, task: Task) -> str | None:
    offered = {metric.name: metric for metric in task.own_metrics}
    chosen = st.selectbox(
        "Metric that ranks the layers",
        [_AUTOMATIC, *offered],
        index=0 if draft.metric not in offered else 1 + list(offered).index(draft.metric),
        format_func=lambda name: offered[name].label if name in offered else _AUTOMATIC_LABEL,
        key="analyze.metric",
        help="Every metric that the images allow is measured; this one decides the order.\n\n"
        + "\n".join(f"- **{view.label}**: {view.help}" for view in offered.values()),
        persist_state="session",
        width=420,
    )
    return chosen if chosen in offered else None
