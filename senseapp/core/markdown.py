r"""Markdown with our own markup, and escaping of all other text on pages.

Streamlit renders Markdown, and nearly every text may be untrusted: titles, layer names, class names, notes of an
imported run, keys of a checkpoint, names in an archive, messages that quote any of these. So every ``str`` is treated
as untrusted and shown literally (:func:`as_written`). Only a :class:`Markdown` acts as markup, and :func:`md` makes one
from a template in the code, with all inserted values escaped:

>>> md("**{}** of {}", "conv*1", 3)
'**conv\\*1** of 3'

``make check`` verifies that templates are literals (``scripts/markup.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import Formatter

from senseapp.core.texts import without_flags

_JOINER = "\u2060"  # zero width; neither letter, space nor punctuation
_BLANKS = re.compile("[\t-\r\x1c-\x1f \x85\u2028\u2029]+")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Emphasis, code, HTML, strikethrough, mathematics, tables, numbers of characters; brackets make links and pictures.
_MARKS = re.compile(r"[\\`*\[\]<~$|]|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])")
# Only at the start of a line: headings, lists, quotes, rules and underlines of headings.
_FIRST = re.compile(r"^( *)(?:([#>+=.)\-])|(\d{1,9})([.)])(?=\s|$))")
# Streamlit parses these in the text after Markdown has removed backslashes: directives, emoji, icons and addresses
# after a colon; addresses with www or @; arrows, dashes and signs of comparison.
_FOUND_LATER = re.compile(r":(?=\S|$)|@|(?<=[wW]{3})(?=\.)|(?<=[<>~\-])(?=[>=\-])")


class Markdown(str):
    """Text with our own markup; only :func:`md` and its own methods create one."""

    __slots__ = ()

    def __add__(self, other: str) -> Markdown:
        """Return both, ``other`` escaped unless it is of this type."""
        return Markdown(str(self) + as_written(other))

    def __radd__(self, other: str) -> Markdown:
        """Return both, ``other`` escaped unless it is of this type."""
        return Markdown(as_written(other) + str(self))

    def join(self, parts: Iterable[str]) -> Markdown:
        """Return the ``parts`` with this between them, each escaped unless it is of this type."""
        return Markdown(str(self).join(map(as_written, parts)))


class _Escaping(Formatter):
    """Formats values, then escapes them unless they are :class:`Markdown`."""

    def format_field(self, value: object, format_spec: str) -> str:
        return as_written(value if isinstance(value, Markdown) else format(value, format_spec))


def md(template: str, *values: object, **named: object) -> Markdown:
    """Return ``template``, a literal with our own markup, with its values escaped.

    It is a format string: ``md("## {} at {:.1f} %", name, 12.5)``.
    """
    return Markdown(_Escaping().vformat(template, values, named))


def code(text: str) -> Markdown:
    """Return ``text`` as inline code, which its own backticks cannot end.

    >>> code("a`b")
    '`` a`b ``'
    """
    shown = _seen(text)
    runs = {len(run) for run in re.findall("`+", shown)}
    fence = "`" * next(length for length in range(1, len(shown) + 2) if length not in runs)
    room = " " if runs or shown.strip(" ") != shown or not shown.strip() else ""
    return Markdown(f"{fence}{room}{shown}{room}{fence}")


def as_written(text: str) -> str:
    r"""Return Markdown that makes Streamlit show ``text`` literally; a :class:`Markdown` unchanged.

    Whitespace becomes one space, as browsers show it, and invisible characters (control characters, changes of the
    writing direction) become a visible replacement; of a message, options of the command line are left out.

    >>> as_written("# [free](http://x) :material/home:")
    '\\# &#91;free&#93;(http:\u2060//x) :\u2060material/home:\u2060'
    """
    if isinstance(text, Markdown):
        return str(text)
    plain = _seen(without_flags(text))
    plain = _FOUND_LATER.sub(lambda found: found[0] + _JOINER, plain)
    return _FIRST.sub(r"\1\3\\\2\4", _MARKS.sub(_without_meaning, plain))


def _without_meaning(mark: re.Match[str]) -> str:
    """Return a bracket as its character number, as Streamlit adds backslashes before brackets; else a backslash."""
    return f"&#{ord(mark[0])};" if mark[0] in "[]" else f"\\{mark[0]}"


def _seen(text: str) -> str:
    return _UNSEEN.sub("\ufffd", _BLANKS.sub(" ", text))
