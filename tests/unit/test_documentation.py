"""The documents: links, the navigation of the site, lengths, examples, and notebooks on the demo network."""

from __future__ import annotations

import ast
import doctest
import json
import posixpath
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import senseapp
from benchmarks import page as results
from scripts.site_files import COMMANDS_PAGE, PAGES, site_links

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
MOST_LINES = {"README.md": 90, "CONTRIBUTING.md": 70, "CHANGELOG.md": 60, "benchmarks/RESULTS.md": 150}
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
QUOTED = re.compile(r"\[([^\]]+)\]\((?:\.\./)*benchmarks/RESULTS\.md#([\w-]+)\)")
CODE = re.compile(r"`([^`]+)`")
EXAMPLES = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    for target in LINK.findall(document.read_text("utf-8")):
        assert (document.parent / target).exists(), target


def place_of(name: str, package: Path) -> Path:
    """Return the one file or folder of the repository whose path ends as ``name``, first those of ``package``."""
    for folder in (package, ROOT, ROOT / "senseapp"):
        if (folder / name).exists():
            return folder / name
    found = [*package.rglob(name.rstrip("/"))] or [*(ROOT / "tests").rglob(name)]
    assert len(found) == 1, f"{name} is {found}"
    return found[0]


@cache
def defined_in(module: Path) -> frozenset[str]:
    """Return the names that a module defines, parameters among them; those of classes also as ``Class.name``."""

    def names(tree: ast.AST) -> Iterator[str]:
        for node in ast.iter_child_nodes(tree):
            match node:
                case ast.ClassDef():
                    inner = [*names(node)]
                    yield from (node.name, *inner, *(f"{node.name}.{name}" for name in inner))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield from (node.name, *names(node))
                case ast.Name(ctx=ast.Store()):
                    yield node.id
                case ast.arg():
                    yield node.arg
                case _:
                    yield from names(node)

    return frozenset(names(ast.parse(module.read_text("utf-8"))))


def test_what_the_architecture_names_is_there() -> None:
    engine, section = ROOT / "senseapp", ""
    texts = {path: path.read_text("utf-8") for path in engine.rglob("*.py")}
    modules = {name for path in texts for name in (path.parent.name, path.stem)}

    def is_anywhere(name: str) -> bool:
        first = name.partition(".")[0]
        ways = (f"class {first}", f"def {first}(", f"{first}: ")
        return any(name in defined_in(path) for path, text in texts.items() if any(way in text for way in ways))

    for line in (DOCS / "ARCHITECTURE.md").read_text("utf-8").splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        named = {name.removeprefix("@"): None for name in CODE.findall(line)}
        package = engine / next(iter(named)) if section == "Packages" and line.startswith("| `") else engine
        paths = [name for name in named if re.search(r"/|\.(py|toml)$", name) and not re.search("NAME|^__", name)]
        places = [place_of(name, package) for name in paths]
        names = {name for name in named if re.fullmatch(r"\w+(\.\w+)?", name)} - {*paths, "__init__.py"}
        if section == "Where to change":  # names are of the modules beside them
            known = frozenset[str]().union(*(defined_in(place) for place in places if place.suffix == ".py"))
            assert names <= known, f"{names - known} in {[*map(str, places)]}"
        else:
            assert not [name for name in names - modules if not is_anywhere(name)]


@pytest.mark.parametrize(("name", "most"), MOST_LINES.items())
def test_what_a_newcomer_reads_is_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text("utf-8").splitlines()) <= most


@pytest.mark.wide
def test_the_snippet_of_the_readme_runs_as_pasted() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "LayerSensitivity" in ran.stdout
    assert "layer1.0.conv1" in ran.stdout


def test_there_is_one_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == senseapp.__version__
    assert f"## {senseapp.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_guide_and_the_documents_have_the_same_words() -> None:
    words = tomllib.loads((ROOT / "assets" / "guide.toml").read_text("utf-8"))["words"]
    table = (DOCS / "words.md").read_text("utf-8").partition("## Compressions")[0]
    assert dict(re.findall(r"^\| (.+?) \| (.+?\.) \|$", table, re.MULTILINE)) == words


def test_the_readme_names_both_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert {"make run", "make test"} <= set(re.findall(r"^make \w+", text, re.MULTILINE))
    assert text.count("![") == 1


def test_the_page_of_results_is_that_of_the_tables() -> None:
    assert results.PAGE.read_text("utf-8") == results.page(), "run python -m benchmarks.page"


def test_quoted_figures_are_those_of_the_tables() -> None:
    lines, quoted = results.lines(), 0
    for document in DOCUMENTS:
        for figure, key in QUOTED.findall(document.read_text("utf-8")):
            assert figure == lines[key].figure(lines[key].rows()), f"{document.name}: {key}"
            quoted += 1
    assert quoted >= 5


def pages_of(nav: Any) -> list[str]:
    """Return the pages of a navigation of MkDocs."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(item)]


def test_every_document_is_in_the_navigation_once() -> None:
    pages = pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    here = {str(path.relative_to(DOCS)) for path in [*DOCS.rglob("*.md"), *NOTEBOOKS]}
    assert sorted(pages) == sorted(here | {*PAGES, COMMANDS_PAGE})


@pytest.mark.parametrize(
    ("page", "link", "in_site"),
    [
        ("start.md", "../assets/screenshots/run.png", "assets/screenshots/run.png"),
        ("how-to/command-line.md", "../deploy.md#settings", "../deploy.md#settings"),
        ("how-to/command-line.md", "../../SECURITY.md", "../SECURITY.md"),
        ("SECURITY.md", "docs/RELIABILITY.md", "RELIABILITY.md"),
        ("benchmarks/RESULTS.md", "../docs/adr/README.md", "../adr/README.md"),
        ("index.md", "https://docs.ray.io", "https://docs.ray.io"),
        ("index.md", "#words", "#words"),
    ],
)
def test_links_are_those_of_the_site(page: str, link: str, in_site: str) -> None:
    assert site_links(f"a [b]({link}) c", page) == f"a [b]({in_site}) c"
    if "#" not in link and ":" not in link:
        assert not posixpath.normpath(posixpath.join(posixpath.dirname(page), in_site)).startswith("..")


def test_the_examples_of_the_api_give_what_they_say() -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    examples = "\n".join(EXAMPLES.findall((DOCS / "api.md").read_text("utf-8")))
    outcome = runner.run(parser.get_doctest(examples, {}, "docs/api.md", "docs/api.md", 0))
    assert outcome.attempted > 10
    assert outcome.failed == 0


def code_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code"), "outputs are made by `make docs`"
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook: Path) -> None:
    """``make docs`` executes them before each merge."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, code in enumerate(code_of(notebook)):
        exec(compile(code, f"{notebook.name}[{number}]", "exec"), names)
    assert len(names) > 5
