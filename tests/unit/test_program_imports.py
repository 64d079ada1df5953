"""What benchmarks, soaks, scripts and tests import from this repository is there, also where few runs come."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("senseapp", "benchmarks", "soak", "scripts", "tests")


@cache
def path_of(module: str) -> Path | None:
    """Return the file of a module, or the folder of a package without one; None where there is none."""
    place = ROOT.joinpath(*module.split("."))
    return next((each for each in (place.with_suffix(".py"), place / "__init__.py", place) if each.exists()), None)


@cache
def names_in(module: str) -> frozenset[str] | None:
    """Return what a module defines when it is imported; None where it computes its names."""
    path = path_of(module)
    assert path is not None
    found, pending = set[str](), list[ast.AST]()
    if path.is_file():
        pending = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {each.asname or each.name.partition(".")[0] for each in node.names}
        pending.extend(ast.iter_child_nodes(node))
    return None if "__getattr__" in found else frozenset(found)


def has(module: str, name: str) -> bool:
    """Return whether ``module`` has ``name``, as a submodule too."""
    names = names_in(module)
    return names is None or name in names or path_of(f"{module}.{name}") is not None or name.startswith("__")


def missing(tree: ast.AST) -> Iterator[str]:
    """Yield what a program imports, or reads of a module that it imports, that is not there."""
    modules = dict[str, str]()
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            named = [each.name for each in node.names if each.name.partition(".")[0] in OURS]
            yield from (name for name in named if path_of(name) is None)
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in OURS:
            continue
        module = str(node.module)
        if path_of(module) is None:
            yield module
            continue
        for each in node.names:
            if not has(module, each.name):
                yield f"{module}.{each.name}"
            elif path_of(f"{module}.{each.name}") is not None:
                modules[each.asname or each.name] = f"{module}.{each.name}"
    variables = {node.arg for node in nodes if isinstance(node, ast.arg)} | {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id, "")
            if module and node.value.id not in variables and not has(module, node.attr):
                yield f"{module}.{node.attr}"


@pytest.mark.parametrize("folder", [*OURS[1:-1], pytest.param("tests", marks=pytest.mark.slow)])
def test_what_programs_import_is_there(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    absent = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in missing(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not absent


def test_what_is_not_there_is_found() -> None:
    program = """
    from senseapp.core import texts
    from senseapp.core.texts import plural, gone
    from senseapp.nowhere import anything
    def late():
        import soak.nowhere
        from tests import cases as others
        texts.vanished = others.first_of, others.last_of
    """
    found = missing(ast.parse(textwrap.dedent(program)))
    assert set(found) == {
        *("senseapp.core.texts.gone", "senseapp.nowhere", "soak.nowhere"),
        *("senseapp.core.texts.vanished", "tests.cases.last_of"),
    }
