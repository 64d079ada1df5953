"""An extension of Griffe, which reads docstrings for the site: doctests become blocks of code.

Markdown takes their prompts for quotations, and a list that they print for a link.
"""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)  # up to an empty line


class Doctests(griffe.Extension):  # type: ignore[misc, unused-ignore]  # it is not installed where types are checked
    """Fences the doctests of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence those of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
