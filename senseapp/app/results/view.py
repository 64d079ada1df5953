"""Arguments of every view of a run: result, metric, level, and the frame of its numbers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import streamlit as st

from senseapp.app.common.account import share_run
from senseapp.app.common.address import SWITCH, WORDS, address_of, bound, named, one_of, setting
from senseapp.app.common.expert import expert, metric_help, metric_shown, metrics_offered
from senseapp.app.common.run_guard import report_button
from senseapp.app.common.state import pick, pick_key, picked_layer
from senseapp.descriptions import CompressionDescription
from senseapp.metrics import Metric
from senseapp.records.headline import headline_level, shown_metric
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import RunResult
from senseapp.views.frames.results import at_level, measurement_frame, metrics_of, ordered_levels
from senseapp.views.words.wording import compression_text, provenance_text


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run seen through one metric at one level (in engine units), for one pass over the page.

    ``frame`` has all rows of the metric, from :func:`senseapp.views.frames.results.measurement_frame`.
    """

    run_id: str
    result: RunResult
    metric: Metric
    level: float
    frame: pd.DataFrame

    @property
    def compression(self) -> CompressionDescription:
        """Description of the run's compression."""
        return self.result.compression.description

    @property
    def target_noun(self) -> str:
        """Noun of a compressed unit: ``layer``, or ``group`` for layers pruned together."""
        return "group" if self.frame["group"].astype(bool).any() else "layer"

    @property
    def level_text(self) -> str:
        """The level in display units."""
        return self.compression.scale.text(self.level)

    @cached_property
    def level_texts(self) -> list[str]:
        """All levels in display units, from the mildest to the strongest."""
        return [self.compression.scale.text(level) for level in ordered_levels(self.result)]

    @property
    def about(self) -> str:
        """The metric and the level, each in a sentence."""
        return f"{self.metric.label}: {self.metric.help} {self.at[0].upper()}{self.at[1:]}: {self.compression.line}."

    @property
    def at(self) -> str:
        """The level as part of a sentence: ``with 50 % of its weights at zero``."""
        return self.compression.at.format(level=self.level_text)

    @cached_property
    def picked(self) -> str:
        """The layer picked in any view, if the run's model has it; else ``""``."""
        layer = picked_layer(self.run_id)
        return layer if any(layer == known.name for known in self.result.profile.layers) else ""

    @cached_property
    def picked_row(self) -> str:
        """The ``layer`` of the rows that hold the picked one, alone or in a coupled group; ``""`` without a value."""
        if not (picked := self.picked):
            return ""
        groups = self.frame[["layer", "members"]].drop_duplicates().itertuples(index=False)
        return next((str(layer) for layer, members in groups if picked in str(members).split(", ")), "")

    @cached_property
    def lines(self) -> tuple[str, str]:
        """Lines below the title of a saved picture: model, compression and provenance."""
        compressed = compression_text(self.result.spec.sensitivity, terms=expert())
        return f"{self.result.profile.title} · {compressed}", provenance_text(self.result)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows of the level, in network order."""
        return at_level(self.frame, self.level)

    @cached_property
    def ranked(self) -> pd.DataFrame:
        """The rows of the level, the most fragile first."""
        return at_level(self.frame, self.level, by_sensitivity=True)


def asks_for_layers(run_id: str) -> bool:
    """Return whether the address of a run has a setting of its layers; level and metric are also those of its work."""
    return any(setting(run_id, name, WORDS, "") for name in ("tab", "layer"))


def layers_key(run_id: str) -> str:
    """Return the key of the section of the layers, which is open or folded."""
    return f"results.show.layers.{run_id}"


def layers_are_open(run_id: str) -> bool:
    """Return whether the section of the layers is, or is about to be, unfolded."""
    usual = setting(run_id, "show-layers", SWITCH, asks_for_layers(run_id))
    return bool(st.session_state.get(layers_key(run_id), usual))


def choose_view(run_id: str, result: RunResult, *, page: str, layers: bool = False) -> RunView | None:
    """Show the pickers of level, metric and on request layer; None (with a sentence) while nothing has a value."""
    metrics = metrics_of(result)
    if not metrics:
        st.info("No layer has a value yet.", icon=":material/hourglass_empty:")
        return None
    row = st.container(horizontal=True, vertical_alignment="top", gap="medium")
    usual, key = _usual_metric(result, metrics), f"{page}.metric.{run_id}"
    level = _choose_level(row, run_id, result, page, headline_level(result))
    setting = bound(run_id, "metric", one_of(metrics), usual, key=key)
    offered = metrics_offered(metrics, str(st.session_state[key]))
    name = row.selectbox(
        "Metric",
        offered,
        format_func=lambda metric: metric_shown(metric, result).label,
        **setting,
        help=metric_help([metric_shown(each, result) for each in offered]),
        label_visibility="collapsed",
        width=264,
    )
    if layers:
        _choose_layer(row, run_id, result)
    return _view(run_id, result, name if name in metrics else metrics[0], level)


def usual_view(run_id: str, result: RunResult) -> RunView | None:
    """Return the run as its pages show it first; None while nothing has a value."""
    metrics = metrics_of(result)
    return _view(run_id, result, _usual_metric(result, metrics), headline_level(result)) if metrics else None


def _view(run_id: str, result: RunResult, metric: str, level: float) -> RunView:
    """Return a view of a run; its frame is made once per state of the run: read only."""
    # What changes with every measurement that a run adds.
    state = (len(result.measurements), len(result.estimates), result.num_samples, result.seconds)
    shown = metric_shown(metric, result)
    frame = _made_frame(run_id, metric, (*state, expert()), result, shown)
    return RunView(run_id=run_id, result=result, metric=shown, level=level, frame=frame)


@st.cache_resource(show_spinner=False, max_entries=32)  # tables of runs and metrics, of all sessions
def _made_frame(run_id: str, metric: str, state: tuple[float, ...], _result: RunResult, _shown: Metric) -> pd.DataFrame:
    return measurement_frame(_result, metric, view=_shown)


def _choose_layer(row: st.delta_generator.DeltaGenerator, run_id: str, result: RunResult) -> None:
    """Show the picked layer, and let the keyboard pick one; a click in a chart does the same."""
    names = [layer.name for layer in result.profile.layers]
    key = f"results.layer.{run_id}"
    bound(run_id, "layer", named({name: name for name in ("", *names)}), "", key=pick_key(run_id))
    st.session_state[key] = picked_layer(run_id) or None
    row.selectbox(
        "Layer",
        names,
        key=key,
        placeholder="Layer: click or type one",
        label_visibility="collapsed",
        on_change=lambda: pick(run_id, st.session_state[key] or ""),
        help="The layer that every view shows. A click in any chart picks one too.",
        width=250,
    )


def _usual_metric(result: RunResult, metrics: tuple[str, ...]) -> str:
    """Return the metric of charts, where it has values."""
    found = shown_metric(result)
    return found if found in metrics else metrics[0]


def _choose_level(
    row: st.delta_generator.DeltaGenerator, run_id: str, result: RunResult, page: str, usual: float
) -> float:
    """Let a level be chosen: pressed, or slid to where there are many."""
    compression = result.compression
    options, scale = ordered_levels(result), compression.scale
    key, about = f"{page}.level.{run_id}", compression.description.levels_help
    look: dict[str, Any] = {"format_func": scale.text, "help": about, "label_visibility": "collapsed"}
    look |= bound(run_id, "level", named({f"{level:g}": level for level in options}), usual, key=key)
    if len(options) > 7:  # more levels are slid through
        chosen = row.select_slider("Level", options, width=230, **look)
    else:
        chosen = row.segmented_control("Level", options, required=True, **look)
    return chosen if chosen in options else usual


def result_actions(record: RunRecord, result: RunResult) -> None:
    """Show the menu that presents, shares and saves the results of a run."""
    with st.popover("Share or save", icon=":material/ios_share:", type="tertiary"):
        st.page_link(
            "pages/present.py",
            label="Present",
            icon=":material/slideshow:",
            query_params=address_of(record.run_id),
            help="Five screens for a room; the arrow keys turn them.",
        )
        report_button(record, result, key=f"results.report.{record.run_id}")
        if not record.read_only:
            share_run(record)
