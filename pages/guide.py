"""Guide: ten short answers and the words used here, from ``assets/guide.toml``."""

import tomllib

import streamlit as st

from senseapp.core.files import SITE
from senseapp.core.markdown import md

guide = tomllib.loads((SITE / "assets" / "guide.toml").read_text("utf-8"))
with st.container(horizontal_alignment="center"), st.container(width=1080):
    st.title("Guide", anchor=False)
    st.caption("Point at a picture to enlarge it.")
    for entry in guide["entries"]:
        st.header(entry["question"])
        text, picture = st.columns([3, 2], gap="large")
        text.markdown(entry["answer"])
        with picture.container(border=True):
            st.image(SITE / "assets" / "screenshots" / f"{entry['picture']}.png", caption=entry["caption"])
    st.header("Words")
    st.markdown(md("\n").join(md("- **{}**: {}", word, meaning) for word, meaning in guide["words"].items()))
