"""Undocumented names of Altair."""

from functools import partial

import altair as alt
from altair.utils.schemapi import disable_debug_mode


def build_unchecked() -> None:
    """Skip the schema check of every part of a chart while it is built, which takes most of the time."""
    disable_debug_mode()


def show_unchecked(chart: alt.Chart | alt.LayerChart) -> None:
    """Let Streamlit show a chart without the schema check of the whole, which takes most of that time too."""
    object.__setattr__(chart, "to_dict", partial(chart.to_dict, validate=False))
