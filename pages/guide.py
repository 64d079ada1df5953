"""Guide: ten short answers and the words used here."""

import streamlit as st

from senseapp.app.guide import ENTRIES, GLOSSARY, PICTURES
from senseapp.core.markdown import md

with st.container(horizontal_alignment="center"), st.container(width=1080):
    st.title("Guide", anchor=False)
    st.caption("Point at a picture to enlarge it.")
    for entry in ENTRIES:
        st.header(entry.question)
        text, picture = st.columns([3, 2], gap="large")
        text.markdown(entry.answer)
        with picture.container(border=True):
            st.image(PICTURES / f"{entry.picture}.png", caption=entry.caption)
    st.header("Words")
    st.markdown(md("\n").join(md("- **{}**: {}", word, meaning) for word, meaning in GLOSSARY.items()))
