"""Rows of labelled figures; tables of results, of classes that lose, and of the settings in which runs differ."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from senseapp.core.markdown import md
from senseapp.records.answers import ChangedAnswers, ChangedPicture
from senseapp.records.comparison import Side
from senseapp.views.frames.comparison import letter
from senseapp.views.frames.files import class_note, class_table
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import differing_settings


def text_table(columns: Sequence[str], rows: Any, *, alt_text: str, key: str) -> None:
    """Show rows of texts under these heads, without an index."""
    st.dataframe(pd.DataFrame(rows, columns=list(columns)), hide_index=True, alt=alt_text, key=key, width="stretch")


def figures_row(figures: Mapping[str, str], *, helps: Mapping[str, str] | None = None, key: str) -> None:
    """Show each value in bold under its label; a label with an entry in ``helps`` gets a tooltip."""
    row = st.container(horizontal=True, gap="medium", key=key)
    for label, value in figures.items():
        with row.container(width="content", gap=None):
            st.caption(label, help=(helps or {}).get(label))
            st.markdown(md("**{}**", value))


def settings_table(sides: Sequence[Side]) -> None:
    """Show the settings that differ; nothing for the two parts of one run."""
    differing = differing_settings(sides)
    if not differing:
        return
    heads = ["Setting", *(f"In {letter(index)}" for index in range(len(sides)))]
    rows = [(label, *values) for label, values in differing.items()]
    with st.expander("In what else do the runs differ?"):
        text_table(heads, rows, alt_text="Settings in which the runs differ", key="compare.settings")


_PICTURE_WIDTH = 110  # pixels: captions of two lines fit below
_MOST_DRAWN, _GAP = 6, 8  # pictures, each drawn two or three times; pixels between them
_DRAWN = {"original": "Original", "compressed": "Compressed", "label": "As labelled"}
"""Titles of the pictures with an answer drawn in them."""


def changed_answers(found: ChangedAnswers, *, key: str) -> None:
    """Show how many answers change, some of the pictures with both answers, and what each class loses."""
    st.markdown(found.sentence)
    changed_pictures(found, key=key)
    if found.classes:
        st.caption(class_note(found))
    columns, rows = class_table(found)
    if rows:
        text_table(columns, rows, alt_text="What each class loses", key=f"answers.classes.{key}")


def changed_pictures(found: ChangedAnswers, *, key: str, width: int = _PICTURE_WIDTH) -> None:
    """Show some pictures with both answers, each ``width`` pixels wide; nothing of images that are no pictures."""
    shown = [picture for picture in found.pictures if picture.png]
    if any(picture.drawn for picture in shown):
        _drawn_pictures(found, key=key, width=width)
    elif shown:
        row = st.container(horizontal=True, gap="small", key=f"answers.pictures.{key}")
        for picture in shown:
            row.image(picture.png, caption=_caption(picture), width=width)


def _drawn_pictures(found: ChangedAnswers, *, key: str, width: int) -> None:
    """Show the answers of both models drawn into each picture, side by side, the worst first."""
    if found.legend:
        st.image(found.legend, width="content", alt="The colours of the classes")
    width = 92 if width == _PICTURE_WIDTH else width  # three beside each other in the panel of a layer
    rows = st.container(horizontal=True, gap="medium", key=f"answers.pictures.{key}")
    for picture in found.pictures[:_MOST_DRAWN]:
        block = rows.container(gap="xsmall", width=len(picture.drawn) * (width + _GAP))
        row = block.container(horizontal=True, gap="xsmall")
        for title, png in picture.drawn:
            words, text = _DRAWN[title], picture.label if title == "label" else ""
            told = {"original": picture.before, "compressed": picture.after}.get(title, text)
            row.image(png, caption=words, width=width, alt=f"{picture.name}, {words.lower()}: {told}")
        block.caption(md("{}: {}", picture.name, picture.caption))


def _caption(picture: ChangedPicture) -> str:
    if picture.caption:
        return picture.caption
    label = f"Is {picture.label}. " if picture.label else ""
    before, after = (fmt.percent(sure) for sure in (picture.sure_before, picture.sure_after))
    return f"{label}Before: {picture.before} ({before}), now: {picture.after} ({after})"
