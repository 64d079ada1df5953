"""What benchmarks, soaks and scripts import from this repository is there, also inside functions that seldom run."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("senseapp", "benchmarks", "soak", "scripts", "tests")


def is_there(module: str, name: str) -> bool:
    """Return whether ``module`` has ``name``, as a submodule too; modules of extras that are missing have any name."""
    try:
        return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None
    except ModuleNotFoundError as error:
        return (error.name or "").partition(".")[0] not in OURS


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["benchmarks", "soak", "scripts"])
def test_what_programs_import_is_there(folder: str) -> None:
    imported = {
        (str(node.module), each.name): path.relative_to(ROOT)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in OURS
        for each in node.names
    }
    assert imported
    assert not [(found, *path.parts) for found, path in imported.items() if not is_there(*found)]
