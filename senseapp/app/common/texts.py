"""Wrappers of Streamlit's text functions that escape and limit every text, and limits on text from browsers.

A page calls them as usual. A ``str`` is shown as it is written, whoever wrote it; what is to be bold, a heading, a list
or an icon is said with :func:`senseapp.core.markdown.md`. The functions are changed when this package is imported.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from senseapp.core.markdown import as_written

TEXTS = frozenset({"body", "label", "text", "title", "caption", "captions", "help", "tabs", "delta_description"})
"""Parameters that Streamlit's functions read as Markdown, in each of them."""

TEXTS_OF = {"metric": ("value", "delta")}
"""Further such parameters of single functions."""

OPTIONS = frozenset({"radio", "pills", "segmented_control", "menu_button"})
"""Functions that read their options as Markdown; others show them as plain text."""

PLAIN = frozenset({"text", "code", "json", "html", "help"})
"""Functions that show the content they get as it is; how :func:`st.html` is used, ``scripts/markup.py`` checks."""

FORBIDDEN = frozenset({"write", "write_stream", "latex", "table", "exception", "mermaid_chart", "MarkdownColumn"})
"""Functions whose texts are not escaped here; no page calls them, as ``scripts/markup.py`` checks."""

LONGEST_TEXT = 50_000
"""Characters that any field takes at most: some hundred names of layers. The server takes no more from a page."""

TYPED = {"text_input": 300, "text_area": 20_000}
"""Fields that people type into, with the most characters that one takes, where the page does not say another number:
Streamlit cuts off what a browser sends beyond."""


def escape_texts() -> None:
    """Wrap all of Streamlit's functions that show text so that they escape it; a second call does nothing."""
    if hasattr(DeltaGenerator.markdown, "escapes"):
        return
    for name, function in inspect.getmembers(DeltaGenerator, inspect.isfunction):
        texts = _texts_of(name, function)
        if texts:
            setattr(DeltaGenerator, name, _escaping(function, texts, options=name in OPTIONS))
            if owner := getattr(getattr(st, name, None), "__self__", None):  # a method of the page's main container
                setattr(st, name, getattr(owner, name))
    st.dialog = _escaping(st.dialog, _texts_of("dialog", st.dialog))
    for name, column in inspect.getmembers(st.column_config, inspect.isfunction):
        if texts := tuple(TEXTS & inspect.signature(column).parameters.keys()):
            setattr(st.column_config, name, _escaping(column, texts))


def _texts_of(name: str, function: Callable[..., Any]) -> tuple[str, ...]:
    if name.startswith("_") or name in FORBIDDEN:
        return ()
    known = inspect.signature(function).parameters
    return tuple(each for each in known if each in TEXTS and not (name in PLAIN and each == "body")) + TEXTS_OF.get(
        name, ()
    )


def _escaping(function: Callable[..., Any], texts: tuple[str, ...], *, options: bool = False) -> Callable[..., Any]:
    signature, most = inspect.signature(function), TYPED.get(function.__name__, 0)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if most:
            bound.arguments["max_chars"] = min(bound.arguments.get("max_chars") or most, LONGEST_TEXT)
        for name in texts:
            if name in bound.arguments:
                bound.arguments[name] = _escaped(bound.arguments[name])
        if options:
            written: Callable[[Any], Any] = bound.arguments.get("format_func") or str
            bound.arguments["format_func"] = lambda option: as_written(written(option))
        return function(*bound.args, **bound.kwargs)

    call.escapes = texts  # type: ignore[attr-defined]
    return call


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return as_written(value)
    return [_escaped(each) for each in value] if isinstance(value, list | tuple) else value
