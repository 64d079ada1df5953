"""The documents: links, the navigation of the site, lengths and examples."""

import ast
import doctest
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import senseapp
from benchmarks import page as results

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
MOST_LINES = {"README.md": 90, "CONTRIBUTING.md": 70, "CHANGELOG.md": 60, "benchmarks/RESULTS.md": 150}
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
QUOTED = re.compile(r"\[([^\]]+)\]\((?:\.\./)*benchmarks/RESULTS\.md#([\w-]+)\)")
EXAMPLES = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    for target in LINK.findall(document.read_text("utf-8")):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize(("name", "most"), MOST_LINES.items())
def test_what_a_newcomer_reads_is_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text("utf-8").splitlines()) <= most


@pytest.mark.wide
def test_the_snippet_of_the_readme_runs_as_pasted() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "LayerSensitivity" in ran.stdout
    assert "layer1.0.conv1" in ran.stdout


def test_public_functions_and_methods_of_the_app_have_docstrings() -> None:
    for file in (ROOT / "senseapp" / "app").rglob("*.py"):
        scopes = [
            each for each in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(each, ast.Module | ast.ClassDef)
        ]
        known = [each for scope in scopes for each in scope.body if isinstance(each, ast.FunctionDef)]
        assert not [each.name for each in known if not (each.name.startswith("_") or ast.get_docstring(each))], file


def test_the_files_that_the_architecture_names_are_there() -> None:
    folders = [path for name in ("senseapp", "tests", "scripts") for path in (ROOT / name).rglob("*.py")]
    files = [path.as_posix() for path in (*ROOT.glob("*.*"), *folders)]
    named = set(re.findall(r"`([\w/]+\.(?:py|toml))`", (DOCS / "ARCHITECTURE.md").read_text("utf-8")))
    assert len(named) > 50
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in files) and "NAME" not in name]


def test_there_is_one_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == senseapp.__version__
    assert f"## {senseapp.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_guide_and_the_documents_have_the_same_words() -> None:
    words = tomllib.loads((ROOT / "assets" / "guide.toml").read_text("utf-8"))["words"]
    table = (DOCS / "words.md").read_text("utf-8").partition("## Compressions")[0]
    assert dict(re.findall(r"^\| (.+?) \| (.+?\.) \|$", table, re.MULTILINE)) == words


def test_the_page_of_results_is_that_of_the_tables() -> None:
    assert results.PAGE.read_text("utf-8") == results.page(), "run python -m benchmarks.page"


def test_quoted_figures_are_those_of_the_tables() -> None:
    lines, quoted = results.lines(), 0
    for document in DOCUMENTS:
        for figure, key in QUOTED.findall(document.read_text("utf-8")):
            assert figure == lines[key].figure(lines[key].rows()), f"{document.name}: {key}"
            quoted += 1
    assert quoted >= 5


def test_the_examples_of_the_api_give_what_they_say() -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    examples = "\n".join(EXAMPLES.findall((DOCS / "api.md").read_text("utf-8")))
    outcome = runner.run(parser.get_doctest(examples, {}, "docs/api.md", "docs/api.md", 0))
    assert outcome.attempted > 10
    assert outcome.failed == 0
