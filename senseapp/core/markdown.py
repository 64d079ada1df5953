r"""Markup of ours, and every other text as it is written: what pages show is one of the two.

Streamlit shows Markdown, and nearly every text may come from somebody else: titles, layer names, class names, notes of
an imported run, keys of a checkpoint, names in an archive, messages that quote any of these. So every ``str`` counts as
foreign and is shown letter by letter (:func:`as_written`). Only a :class:`Markdown` acts as markup, and :func:`md`
makes one from a template in the code, with everything that is put into it escaped:

>>> md("**{}** of {}", "conv*1", 3)
Markdown('**conv\\*1** of 3')

``make check`` holds that templates are literals (``scripts/markup.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import Formatter

_JOINER = "\u2060"  # has no width, and is no letter, no space and no punctuation
_BLANKS = re.compile("[\t-\r\x1c-\x1f \x85\u2028\u2029]+")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Emphasis, code, HTML, strikethrough, mathematics, tables, numbers of characters; brackets make links and pictures.
_MARKS = re.compile(r"[\\`*\[\]<~$|]|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])")
# Only at the start of a line: headings, lists, quotes, rules and underlines of headings.
_FIRST = re.compile(r"^( *)(?:([#>+=.)\-])|(\d{1,9})([.)])(?=\s|$))")
# These are looked for again in the text that Markdown leaves, after its backslashes have gone: directives, emoji, icons
# and addresses after a colon; addresses with www or @; arrows, dashes and signs of comparison.
_FOUND_LATER = re.compile(r":(?=\S|$)|@|(?<=[wW]{3})(?=\.)|(?<=[<>~\-])(?=[>=\-])")


class Markdown(str):
    """Text with markup of ours; only :func:`md` and its own methods make one."""

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

    def __repr__(self) -> str:
        """Return how it looks in a test that fails."""
        return f"Markdown({str(self)!r})"


class _Escaping(Formatter):
    """Formats values, then escapes them unless they are of the type above."""

    def format_field(self, value: object, format_spec: str) -> str:
        return as_written(value if isinstance(value, Markdown) else format(value, format_spec))


def md(template: str, *values: object, **named: object) -> Markdown:
    """Return ``template``, a literal with markup of ours, with the values in it as they are written.

    It is a format string: ``md("## {} at {:.1f} %", name, 12.5)``.
    """
    return Markdown(_Escaping().vformat(template, values, named))


def code(text: str) -> Markdown:
    """Return ``text`` as code in a line; its backticks end none.

    >>> code("a`b")
    Markdown('`` a`b ``')
    """
    shown = _seen(text)
    runs = [len(run) for run in re.findall("`+", shown)]
    fence = "`" * next(length for length in range(1, len(shown) + 2) if length not in runs)
    room = " " if runs or shown.strip(" ") != shown or not shown.strip() else ""
    return Markdown(f"{fence}{room}{shown}{room}{fence}")


def as_written(text: str) -> str:
    r"""Return what makes Streamlit's Markdown show ``text`` letter by letter; a :class:`Markdown` as it is.

    Blanks become one space, as browsers show them, and what has no look of its own (control characters, those that turn
    the direction of writing) becomes the sign for that.

    >>> as_written("# [free](http://x) :material/home:")
    '\\# &#91;free&#93;(http:\u2060//x) :\u2060material/home:\u2060'
    """
    if isinstance(text, Markdown):
        return str(text)
    plain = _seen(text)
    plain = _FOUND_LATER.sub(lambda found: found[0] + _JOINER, plain)
    return _FIRST.sub(r"\1\3\\\2\4", _MARKS.sub(_without_meaning, plain))


def _without_meaning(mark: re.Match[str]) -> str:
    """Return a bracket as its number, as Streamlit puts backslashes of its own before brackets; else a backslash."""
    return f"&#{ord(mark[0])};" if mark[0] in "[]" else f"\\{mark[0]}"


def _seen(text: str) -> str:
    return _UNSEEN.sub("\ufffd", _BLANKS.sub(" ", text))
