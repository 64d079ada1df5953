"""Find code of pages through which foreign text could act as markup, or our markup would be shown letter by letter.

``python -m scripts.markup`` exits with 1 and one line per place where a page

- makes markup of something that is no literal: ``md(f"**{title}**")`` is ``md("**{}**", title)``, and so is
  ``Markdown(text)`` outside of ``senseapp/core/markdown.py``;
- passes two values to a template with nothing between them, which could be markup together and not alone;
- calls a function of Streamlit whose texts are not escaped, or shows HTML that is not of :data:`HTML`;
- writes markup in a literal that is not given to ``md``: it would be shown letter by letter.

That Streamlit escapes all other texts is ``senseapp/app/common/texts.py``, which is imported first.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from string import Formatter

from senseapp.app.common.texts import FORBIDDEN

_ROOT = Path(__file__).resolve().parent.parent
_SEARCHED = ("senseapp", "pages", "app.py")
_OWN = "senseapp/core/markdown.py"
HTML = {"app.py", "senseapp/app/common/notices.py", "senseapp/app/common/figure.py"}
"""Files that call ``st.html``: with a style sheet, scripts that the security policy names, a legend of our words."""
_MARKUP = re.compile(r"\*\*\S|^#{1,6}( |$)|`\S|(?<!\w):material/\w+:.|:(small|gray|red|green|blue|orange)\[|^[-*] \S")
_PAGES = ("senseapp/app/", "senseapp/views/", "pages/", "app.py")


def markup_in(source: str, file: str) -> Iterator[tuple[int, str]]:
    """Yield line and reason of each such place in ``source``, the text of ``file`` (relative to the repository)."""
    tree = ast.parse(source)
    given = {id(part) for node in ast.walk(tree) if _is(node, "md") for part in ast.walk(node)}
    for node in ast.walk(tree):
        if _is(node, "md"):
            yield from _templates(node)
        elif _is(node, "Markdown") and file != _OWN:
            yield getattr(node, "lineno", 0), "makes markup of a text; use md with a literal"
        elif isinstance(node, ast.Attribute) and file.startswith(_PAGES):
            if node.attr in FORBIDDEN and _is_streamlit(node.value):
                yield node.lineno, f"st.{node.attr} escapes nothing; show the text another way"
            elif node.attr == "html" and _is_streamlit(node.value) and file not in HTML:
                yield node.lineno, "shows HTML; only the files in scripts/markup.py may"
        elif isinstance(node, ast.JoinedStr) and any(_is(part, "md") for part in ast.walk(node)):
            yield (
                node.lineno,
                "is a plain text with markup in it, which is shown letter by letter; give the whole to md",
            )
        elif isinstance(node, ast.keyword) and node.arg == "unsafe_allow_html":
            yield node.lineno, "lets HTML through"
    if file.startswith(_PAGES):
        for line, text in _texts(tree, given):
            if found := _MARKUP.search(text):
                yield line, f"shows {found[0]!r} letter by letter; give the literal to md"


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _is_streamlit(node: ast.AST) -> bool:
    """Return whether it is ``st``, or one of its modules."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "st"


def _templates(call: ast.AST) -> Iterator[tuple[int, str]]:
    assert isinstance(call, ast.Call)
    choices = [call.args[0]] if call.args else []
    while choices:
        template = choices.pop()
        if isinstance(template, ast.IfExp):
            choices += [template.body, template.orelse]
        elif not (isinstance(template, ast.Constant) and isinstance(template.value, str)):
            yield call.lineno, "makes markup of something that is no literal; give md the values apart"
        elif any(not before and index for index, (before, field, _, _) in _fields(template.value) if field is not None):
            yield call.lineno, "has two values with nothing between them"


def _fields(template: str) -> Iterator[tuple[int, tuple[str, str | None, str | None, str | None]]]:
    return enumerate(Formatter().parse(template))


def _texts(tree: ast.AST, given: set[int]) -> Iterator[tuple[int, str]]:
    """Yield the literals that are neither docstrings, nor icons, nor given to ``md``."""
    apart = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    apart |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "icon"
              for part in ast.walk(node)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart | given:
            yield node.lineno, node.value


def searched() -> Iterator[Path]:
    """Yield the modules of the package and the pages, relative to the repository."""
    for name in _SEARCHED:
        path = _ROOT / name
        yield from (each.relative_to(_ROOT) for each in (sorted(path.rglob("*.py")) if path.is_dir() else [path]))


def report(find: Callable[[str, str], Iterable[tuple[int, str]]], files: Iterable[Path], sound: str) -> int:
    """Print the lines that ``find`` yields of the text and name of each file, or ``sound``; return the exit status."""
    found = [
        f"{file}:{line}: {reason}"
        for file in files
        for line, reason in find((_ROOT / file).read_text("utf-8"), file.as_posix())
    ]
    print("\n".join(found) or sound)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(report(markup_in, searched(), "Every text on a page is shown as it is written, but for markup of ours."))
