"""Guide: ten short answers and the words used here."""

import streamlit as st

from senseapp.ui.guide import ENTRIES, GLOSSARY

with st.container(horizontal_alignment="center"), st.container(width=820):
    st.title("Guide", anchor=False)
    for entry in ENTRIES:
        st.subheader(entry.question)
        st.markdown(entry.answer)
    st.subheader("Words")
    st.markdown("\n".join(f"- **{word}**: {meaning}" for word, meaning in GLOSSARY.items()))
