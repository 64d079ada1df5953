"""The check that text of others is never markup, and that all of Streamlit's texts are escaped."""

from __future__ import annotations

import inspect

import pytest
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from scripts.markup import markup_in
from senseapp.app.common.texts import FORBIDDEN, PLAIN, TEXTS, escape_texts
from senseapp.core.markdown import Markdown, md

PAGE = "pages/runs.py"


@pytest.mark.parametrize(
    "source",
    [
        "st.markdown(md(f'**{title}**'))",
        "st.markdown(md('**' + title))",
        "st.markdown(md(text))",
        "st.markdown(md('{}' if title else text, title))",
        "st.markdown(Markdown(title))",
        "st.markdown(md('{}{}', a, b))",
        "st.markdown(md('{a} {b}{c}', a=a, b=b, c=c))",
        "st.write(title)",
        "st.column_config.MarkdownColumn('x')",
        "row.markdown(title, unsafe_allow_html=True)",
        "st.html(title)",
        "st.markdown('## Runs')",
        "st.caption(f':material/info: {note}')",
        "HELP = '**Goal** chooses'",
        "st.markdown(f'{md(\"**x**\")} {title}')",
        "st.markdown(('##' if a else '') + title)",
    ],
)
def test_what_would_be_markup_is_found(source: str) -> None:
    assert [line for line, _ in markup_in(source, PAGE)] == [1]


@pytest.mark.parametrize(
    "source",
    [
        "st.markdown(md('**{}** of {}', title, md('*{}*', a)))",
        "st.markdown(md('# {}' if level == 1 else '## {}', title))",
        "st.markdown(f'{a} of {b}')",
        "st.button(label, icon=':material/info:' if a else f':material/{icon}:')",
        "file.write(text)\nx = '2 ** 3', 'a_b', 'a * b'",
        "def f():\n    '''Return **all**.'''",
    ],
)
def test_what_is_shown_as_it_is_written_is_left_alone(source: str) -> None:
    assert list(markup_in(source, PAGE)) == []


def test_every_function_of_streamlit_that_shows_text_escapes_it() -> None:
    """An upgrade that brings another one fails here or is escaped by the names of its parameters."""
    escape_texts()
    for name, function in inspect.getmembers(DeltaGenerator, inspect.isfunction):
        if name.startswith("_") or name in FORBIDDEN:
            continue
        shown = {each for each in inspect.signature(function).parameters if each in TEXTS}
        shown -= {"body"} if name in PLAIN else set()
        assert shown <= set(getattr(function, "escapes", ())), name
        if hasattr(st, name) and shown:
            assert getattr(st, name).__func__ is function, name
    assert "title" in st.dialog.escapes  # type: ignore[attr-defined]


def _a_page() -> None:
    import streamlit as st

    from senseapp.app.common import texts as texts  # as every page does
    from senseapp.core.markdown import md

    foreign = "**x** :material/home: [y](z)"
    st.title(foreign)
    st.markdown(md("**{}**", foreign), help=foreign)
    st.error(foreign)
    st.sidebar.caption(foreign)
    st.container().button(foreign, key="b")
    st.badge(foreign)
    st.radio(foreign, [foreign, "one"], captions=[foreign, ""], key="r")
    st.pills("p", [1, 2], format_func=lambda each: f"*{each}*", key="p")
    st.selectbox("s", [foreign], key="s")
    st.tabs([foreign])
    st.progress(0.5, text=foreign)
    st.text(foreign)


def test_a_page_escapes_whatever_it_is_given() -> None:
    from streamlit.testing.v1 import AppTest

    page = AppTest.from_function(_a_page).run()
    assert not page.exception
    shown = "\\*\\*x\\*\\* :\u2060material/home: &#91;y&#93;(z)"
    assert page.title[0].value == shown
    assert page.markdown[0].value == f"**{shown}**"
    assert page.markdown[0].help == shown
    assert page.error[0].value == shown
    assert page.sidebar.caption[0].value == shown
    assert page.button(key="b").label == shown
    assert page.markdown[1].value == f":blue-badge[{shown}]"
    assert (page.radio(key="r").label, page.radio(key="r").options) == (shown, [shown, "one"])
    assert page.radio(key="r").value == "**x** :material/home: [y](z)"
    assert page.selectbox(key="s").options == ["**x** :material/home: [y](z)"]
    assert page.tabs[0].label == shown
    assert page.text[0].value == "**x** :material/home: [y](z)"


def _a_field() -> None:
    import streamlit as st

    from senseapp.app.common import texts as texts  # as every page does

    st.caption(f"typed {len(st.text_input('Name', key='n'))}, {len(st.text_area('Notes', key='a', max_chars=7))}")


def test_a_field_takes_no_more_than_browsers_let_it_become() -> None:
    from streamlit.testing.v1 import AppTest

    page = AppTest.from_function(_a_field).run()
    page.text_input(key="n").set_value("x" * 300).run()
    assert page.caption[0].value == "typed 300, 0"
    page.text_input(key="n").set_value("x" * 2_000_000).run()
    page.text_area(key="a").set_value("x" * 8).run()
    assert page.caption[0].value == "typed 300, 7"


def test_markup_is_a_text_for_streamlit() -> None:
    assert isinstance(md("x"), str)
    assert type(str(md("x"))) is str
    assert Markdown("x") == "x"
