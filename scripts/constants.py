"""Find numbers without a reason: ``python -m scripts.constants`` exits with 1 and a line for each constant.

A module-level constant of ``senseapp/`` that is made of literal numbers says in a comment, or in a string after it,
where its value comes from: a specification, a measurement, or what a larger and a smaller one would do. A constant that
is derived from another one needs no comment.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*")
_UNITS = frozenset({"MB"})  # a multiple of a unit is as literal as a number
_OF_NUMBERS = frozenset({"frozenset", "range", "set", "slice", "tuple"})
_PRAGMA = re.compile(r"#\s*(?:fmt|noqa|type|pragma|nosec)\b")


def unexplained(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each module-level constant of ``source`` that is a number without a reason."""
    lines = source.splitlines()
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not _PRAGMA.match(token.string)
    }
    body = ast.parse(source).body
    for node, after in pairwise([*body, ast.Pass()]):
        names, value = _assigned(node)
        if value is None or not names or not _is_literal(value) or _is_text(after):
            continue
        assert isinstance(node, ast.stmt)
        above = node.lineno - 1
        is_comment = above > 0 and lines[above - 1].startswith("#")
        if not (
            comments & {*range(node.lineno, (node.end_lineno or node.lineno) + 1), *([above] if is_comment else [])}
        ):
            yield node.lineno, ", ".join(names)


def _assigned(node: ast.AST) -> tuple[list[str], ast.expr | None]:
    """Return the names and the value of an assignment to upper-case names, or no names."""
    if isinstance(node, ast.Assign):
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target, value = node.target, node.value
    else:
        return [], None
    names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
    return (names, value) if all(map(_CONSTANT.fullmatch, names)) else ([], None)


def _is_literal(value: ast.expr) -> bool:
    """Return whether ``value`` is a number, or numbers put together, that name no other constant."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.Name):
        return value.id in _UNITS
    if isinstance(value, ast.UnaryOp):
        return _is_literal(value.operand)
    if isinstance(value, ast.BinOp):
        return _is_literal(value.left) and _is_literal(value.right)
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        return bool(value.elts) and all(map(_is_literal, value.elts))
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(map(_is_literal, value.values))
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _OF_NUMBERS:
        return bool(value.args) and all(map(_is_literal, value.args))
    return False


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def main() -> int:
    """Print what is found, and return the exit status."""
    found = [
        f"{path.relative_to(_ROOT)}:{line}: say in a comment where the value of {name} comes from, or derive it"
        for path in sorted((_ROOT / "senseapp").rglob("*.py"))
        for line, name in unexplained(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(found) or "Every number of a module is derived or has its reason beside it.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
