"""Pictures that a compressed model answers differently, and the classes that pay for it."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from senseapp.records.changed_answers import ChangedAnswers, ChangedPicture
from senseapp.views.frames.answers import CLASS_COLUMNS, class_note, class_rows
from senseapp.views.words import format as fmt

_PICTURE_WIDTH = 110


def changed_answers(found: ChangedAnswers, *, key: str) -> None:
    """Show how many answers change, some of the pictures with both answers, and what each class loses."""
    st.markdown(found.sentence)
    changed_pictures(found, key=key)
    if found.classes:
        st.caption(class_note(found))
        rows = pd.DataFrame(class_rows(found), columns=list(CLASS_COLUMNS))
        st.dataframe(rows, hide_index=True, key=f"answers.classes.{key}", alt="What each class loses", width="stretch")


def changed_pictures(found: ChangedAnswers, *, key: str, width: int = _PICTURE_WIDTH) -> None:
    """Show some pictures with both answers, each ``width`` pixels wide; nothing of images that are no pictures."""
    shown = [picture for picture in found.pictures if picture.png]
    if shown:
        row = st.container(horizontal=True, gap="small", key=f"answers.pictures.{key}")
        for picture in shown:
            row.image(picture.png, caption=_caption(picture), width=width)


def _caption(picture: ChangedPicture) -> str:
    label = f"is {picture.label}: " if picture.label else ""
    before, after = (fmt.percent(sure) for sure in (picture.sure_before, picture.sure_after))
    return f"{label}{picture.before} ({before}) → {picture.after} ({after})"
