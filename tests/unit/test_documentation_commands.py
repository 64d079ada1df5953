"""Every command of the documents and of --help: its options are known, and what needs only the demo runs, in order."""

import argparse
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from senseapp.cli.main import COMMANDS, build_parser, main, module_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in PAGES}
TEXTS |= {f"{each} --help": module_of(each).EPILOG for each in COMMANDS}
COMMAND = re.compile(r"^[ $]*(?:\S+/)?(?:python -m )?senseapp (?=[a-z]+ )(.*)$", re.MULTILINE)
LONG = ("recommend", "apply", "deploy")  # tests of their own run them
WRITTEN = ("--out", "-o")
TINY = {"analyze": ["--samples", "24"], "histogram": ["--samples", "24"]}


def commands_in(text: str) -> list[list[str]]:
    """Return the arguments of the commands that lines of a text begin with."""
    return [shlex.split(found[1], comments=True) for found in COMMAND.finditer(text.replace("\\\n", " "))]


ALL = {f"{place}: {shlex.join(words)}": words for place, text in TEXTS.items() for words in commands_in(text)}


@pytest.mark.parametrize("words", ALL.values(), ids=ALL)
def test_the_options_of_every_command_are_known(words: list[str]) -> None:
    assert build_parser().parse_args(words).run is not None


def test_every_command_is_in_the_documents_and_flags_are_few() -> None:
    page = TEXTS["docs/how-to/command-line.md"]
    assert not [each for each in COMMANDS if f"`{each}`" not in page]
    flags = set()
    for command in COMMANDS:
        parser = argparse.ArgumentParser()
        module_of(command).add_arguments(parser)
        assert not [action.dest for action in parser._actions if not action.help], command
        flags |= {flag for flag in parser._option_string_actions if flag.startswith("--")}
    assert len(flags - {"--help"}) <= 60, "a new flag takes the place of one that says the same"


def test_every_setting_and_every_page_is_in_the_documents() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "senseapp").rglob("*.py"))
    settings = set(re.findall(r"\bSENSEAPP_[A-Z_]*[A-Z]\b", code))
    assert len(settings) > 10
    assert settings <= set(re.findall(r"\bSENSEAPP_[A-Z_]+\b", TEXTS["docs/deploy.md"]))
    titles = re.findall(r'st.Page\("pages/\w+.py", title="([^"]+)"', (ROOT / "app.py").read_text("utf-8"))
    assert len(titles) == len(list((ROOT / "pages").glob("*.py")))
    assert not [title for title in titles if title not in "".join(TEXTS.values())]


def missing_files(words: list[str]) -> list[str]:
    """Return the files that a command reads and that are not there."""
    given = [word for option, word in pairwise(["", *words]) if option not in WRITTEN and not word.startswith("-")]
    return [word for word in given if re.search(r"\.[a-z]\w*$", word) and not Path(word).exists()]


@pytest.mark.wide
@pytest.mark.slow
def test_the_commands_that_need_only_the_demo_run(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    done = set()
    for words in commands_in(TEXTS["docs/how-to/command-line.md"]):
        if words[0] not in LONG and not missing_files(words):
            assert main([*words, *TINY.get(words[0], [])]) == 0, (words, capsys.readouterr().err)
            done.add(words[0])
    assert done == {"analyze", "schedule", "compare", "histogram", "report", "models"}
