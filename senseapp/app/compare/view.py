"""A comparison of runs: their files, the finding in one sentence, bars in pairs, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

import pandas as pd
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import choose
from senseapp.app.common.decided import decided
from senseapp.app.common.download import file_button
from senseapp.app.common.expert import metric_shown
from senseapp.app.common.figure import figure, rows_height
from senseapp.app.common.notices import complain
from senseapp.app.common.state import RUN_PARAMETER, drop_pick, picked_layer, session
from senseapp.app.common.tables import text_table
from senseapp.app.compare.pictures import KnownFiles, pictures_view, with_side
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.records.comparison import Comparison
from senseapp.records.jobs import RunRecord
from senseapp.views.charts.layers import pair_step, paired_bars
from senseapp.views.charts.savings import candidates_chart
from senseapp.views.frames.comparison import (
    caveat_of_sides,
    finding,
    letter,
    matching_text,
    pair_frame,
    side_labels,
    unmatched_frame,
)
from senseapp.views.frames.files import answers_axis, candidates_frame, original_row
from senseapp.views.palette import side_legend
from senseapp.views.words import format as fmt

_PICKS = "compare"
_SIZE, _TIME = "Size", "Time"


@st.fragment
def files_view(records: Sequence[RunRecord]) -> None:
    """Show the measured files of the runs as a choice: what each still answers against its size or its time."""
    parts, originals, known = [], [], []
    for place, record in enumerate(records):
        try:
            candidates = backend.service().work.candidates(record.run_id)
        except SenseError as error:
            complain(str(error))
            continue
        if candidates:
            side = letter(place) if len(records) > 1 else ""
            known.append((side, record, candidates))
            name = with_side(side, record.title)
            parts.append(candidates_frame(candidates, decided(record, candidates), run=name))
            originals.append(original_row(candidates, run=name))
    if not known:
        st.caption("None of these runs has a measured file yet. Results makes files, or offers to.")
        return
    metrics = {candidates[0].metric for _, _, candidates in known}
    if len(metrics) > 1:
        st.caption("These runs judge answers in different ways, so their files are not drawn on one axis.")
        _best_files(known)
        return
    shown = choose("Against", (_SIZE, _TIME), _SIZE, "compare", "against", label_visibility="collapsed")
    rows = pd.concat(parts, ignore_index=True)
    figure(
        "Which file to take?",
        candidates_chart(
            rows,
            against="megabytes" if shown == _SIZE else "milliseconds",
            y_title=answers_axis(known[0][2]),
            originals=pd.DataFrame(originals),
        ).properties(height=300 + 24 * len(known)),  # pixels; a line of the legend for each run
        alt_text="; ".join(rows["run"] + ": " + rows["description"]),
        key="compare.files",
        reading="Each dot is a measured file with its 95 % interval; pale: not worth taking; crosses: the originals.",
        data=rows,
    )
    _best_files(known)
    pictures_view(known)


def _best_files(known: KnownFiles) -> None:
    """Show the file to take of each run, with its button."""
    for side, record, candidates in known:
        answer = decided(record, candidates)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(md("**{}**: {}. {}", with_side(side, record.title), answer.headline, answer.reason))
            if answer.choice is not None and answer.goal != "targets":  # Results hands out targets
                file_button(record.run_id, answer.choice, key="compare.get")


@st.fragment
def comparison_view(comparison: Comparison) -> None:
    """Show what each layer loses in each run; a click answers without running the rest of the page again."""
    st.markdown(md("## {}", finding(comparison)))
    st.caption(
        matching_text(comparison),
        help="1 is the same order, 0 no relation, −1 the opposite order (Spearman). Layers are matched by name; "
        "those that are compressed together in every run count once.",
    )
    if comparison.layers:
        _bars(comparison)
        if picked := _picked(comparison):
            _picked_line(comparison, picked)
    _unmatched(comparison)


def _picked(comparison: Comparison) -> str:
    layer = picked_layer(_PICKS)
    return layer if any(layer == known.layer for known in comparison.layers) else ""


def _bars(comparison: Comparison) -> None:
    rows, labels = pair_frame(comparison), side_labels(comparison.sides)
    metric = metric_shown(comparison.metric)
    figure(
        "What does each layer lose in each run?",
        paired_bars(rows, metric, labels=labels, picked=_picked(comparison)),
        alt_text=f"{metric.change_title} of {fmt.plural(len(comparison.layers), 'layer')} in {' and '.join(labels)}. "
        + finding(comparison),
        key=f"compare.bars.{session().pick_round}",
        run_id=_PICKS,
        reading="One bar per run, layer by layer; the line through it is its 95 % interval. Pale bars are estimates.",
        caveat=caveat_of_sides(comparison.sides),
        legend=side_legend(labels),
        frame_height=rows_height(len(comparison.layers), step=pair_step(len(labels))),
    )


def _picked_line(comparison: Comparison, picked: str) -> None:
    """Show the loss of the picked layer on each side."""
    rows = pair_frame(comparison)
    with st.container(border=True, key="compare_picked"):
        head = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center")
        head.markdown(md("**{}**", picked))
        head.button("Close", key="compare.close", type="tertiary", on_click=drop_pick, args=(_PICKS,))
        lines = (
            md(
                "{}: **{}** ({}), rank {}, {}",
                row.side,
                row.change_text,
                row.interval_text,
                row.rank_text,
                row.source,
            )
            for row in rows[rows["layer"] == picked].itertuples()
        )
        st.markdown(md("  \n").join(md(":small[{}]", line) for line in lines))


def _unmatched(comparison: Comparison) -> None:
    rows = unmatched_frame(comparison)
    if rows.empty:
        return
    heads = ["Layer", *(f"In {letter(side)}" for side in range(len(comparison.sides)))]
    with st.expander(f"{fmt.plural(len(rows), 'layer')} without a value in every run", expanded=not comparison.layers):
        alt_text = "Layers that lack a value in a run, with the reason"
        text_table(heads, rows.to_numpy(), alt_text=alt_text, key="compare.unmatched")


MOST_RUNS = 4  # columns beside each other that still hold a name; the letters and colours are distinct up to eight
_RUNS = "compare.runs"


def choose_runs() -> list[RunRecord]:
    """Show the picker of runs, filled in from the URL, and return those chosen; a link may name shared ones."""
    linked = _linked_runs()
    known = {record.run_id: record for record in (*backend.service().runs(), *linked)}
    labels = _labels(known.values())
    st.session_state[_RUNS] = [record.run_id for record in linked]
    st.multiselect(
        "Runs",
        list(known),
        format_func=labels.__getitem__,
        key=_RUNS,
        max_selections=MOST_RUNS,
        placeholder="Choose one run, or up to four",
        help="Two runs or more are compared with each other. One run alone: its estimate with its measurement.",
        on_change=_keep_runs,
    )
    return linked


def _labels(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return a distinct, constant label for each run: the browser identifies options by their label."""
    labels = {}
    for record in records:
        settings, begun = record.spec.sensitivity, datetime.fromtimestamp(record.created_seconds)
        labels[record.run_id] = f"{record.title} · {settings.compression.scale.texts(settings.levels)}", begun
    count = Counter(label for label, _ in labels.values())
    return {
        run_id: label if count[label] == 1 else f"{label} · {begun:%-d %b, %H:%M:%S}"
        for run_id, (label, begun) in labels.items()
    }


def _linked_runs() -> list[RunRecord]:
    """Return the runs that the URL names, else those compared last; one that cannot be seen is said and left out."""
    ids = tuple(dict.fromkeys(st.query_params.get_all(RUN_PARAMETER))) or session().compared
    found = []
    for run_id in ids[:MOST_RUNS]:
        try:
            found.append(backend.service().run(run_id))
        except SenseError as error:
            complain(str(error))
    session().compared = tuple(record.run_id for record in found)
    return found


def _keep_runs() -> None:
    chosen = st.session_state[_RUNS]
    session().compared = tuple(chosen)
    st.query_params[RUN_PARAMETER] = chosen
