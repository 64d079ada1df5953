"""Cells of CSV files hold no formula and read back as they were; patterns of names are bounded."""

import ast
import csv
import io
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from senseapp.cli.leaderboard import leaderboard_csv, leaderboard_row
from senseapp.core.errors import InvalidSpec
from senseapp.core.texts import csv_text, matcher, part_of_name, plain_cell, safe_cell, without_flags
from senseapp.formats.plain import CSV, read_schedule
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.server.outputs import sensitivity_csv
from senseapp.store.distiller import read_distiller_csv
from tests.cases import examples
from tests.pages.records import NAMES, result

FORMULA = "=cmd|'/C'!A0"


CELLS = st.text(alphabet="=+-@＝＋\t\r\n'\"a1. ;,|:\u3000", max_size=9)


@given(CELLS)
def test_every_hostile_text_comes_back(text: str) -> None:
    assert plain_cell(safe_cell(text)) == text


@settings(max_examples=examples(400))
@given(CELLS, st.sampled_from([",", ";", "\t", "|", " ", ":"]), st.booleans())
def test_no_spreadsheet_finds_a_formula_at_any_separator(text: str, mark: str, knows_quotes: bool) -> None:
    written = csv_text(["name", "note"], [["conv1", text], [text, 1.5]])
    if knows_quotes:
        cells = [cell for row in csv.reader(io.StringIO(written, newline=""), delimiter=mark) for cell in row]
    else:
        cells = [cell for line in re.split(r"[\r\n]", written) for cell in line.split(mark)]
    for cell in cells:
        first = re.split(r"[\s,;:|\"]", cell.strip().lstrip('"').strip())[0]
        if first[:1] and first[0] in "=+-@＝＋－＠" and first not in ("+", "-"):
            float(first)


@given(CELLS)
def test_a_table_comes_back(text: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_text(["name", "level"], [[text, 5]]), newline="")))
    assert [[plain_cell(cell) for cell in row] for row in rows] == [["name", "level"], [text, "5"]]


def test_formulas_behind_separators_are_defused() -> None:
    written = [safe_cell(f"x{mark}=HYPERLINK(1)") for mark in (";", "\t", "|", " ", ",", "\n", ":", "\u3000", '"')]
    assert all("'=HYPERLINK" in each for each in written)
    assert safe_cell("＝HYPERLINK(1)") == "'＝HYPERLINK(1)"
    assert csv_text(["a"], [["x;=1+1"], ["y z"], [None]]) == 'a\n"x;\'=1+1"\n"y z"\n\n'


def test_numbers_and_names_stay() -> None:
    assert csv_text(["layer", "delta"], [["layer1.0.conv", -0.25], ["-1.5e-3", None]]) == (
        "layer,delta\nlayer1.0.conv,-0.25\n-1.5e-3,\n"
    )


HOSTILE = result(names=(FORMULA, *NAMES[1:]))


def begins_safely(text: str) -> bool:
    return f"'{FORMULA}" in text and not any(line.startswith(("=", '"=')) for line in text.splitlines())


def test_no_table_holds_a_formula() -> None:
    assert begins_safely(sensitivity_csv(HOSTILE))
    assert begins_safely(leaderboard_csv([leaderboard_row(HOSTILE, run=FORMULA)]))


def test_a_schedule_comes_back() -> None:
    entries = tuple(
        ScheduleEntry(layer=layer.name, members=(layer.name,), compression="sparsity", level=0.5)
        for layer in HOSTILE.profile.layers
    )
    text = CSV.write(Schedule(model=FORMULA, method="manual", entries=entries), HOSTILE.profile)
    assert begins_safely(text)
    assert read_schedule(text, HOSTILE.profile).entries == entries


def test_a_distiller_table_comes_back() -> None:
    rows = [[f"{FORMULA}.weight", level, 90, 99, 0.1] for level in (0, 0.5)]
    text = csv_text(["parameter", "sparsity", "top1", "top5", "loss"], rows)
    assert begins_safely(text.replace(".weight", ""))
    read = read_distiller_csv(text, title="table", granularity="weight", profile=None)
    assert [layer.name for layer in read.profile.layers] == [FORMULA]


NAMES = st.text(alphabet="ab.1*?[]-!", max_size=8)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(patterns=st.lists(NAMES, max_size=5), names=st.lists(NAMES, max_size=5))
def test_names_fit_as_they_do_one_by_one(patterns: list[str], names: list[str]) -> None:
    fits = matcher(patterns)
    for name in names:
        assert fits(name) == any(fnmatchcase(name, pattern) for pattern in patterns)


@pytest.mark.parametrize("number", [200_000, 10_001])
def test_too_many_names_are_refused(number: int) -> None:
    with pytest.raises(InvalidSpec, match="Up to 10,000 names and 500 patterns"):
        matcher(f"layer{index}" for index in range(number))


def test_too_many_or_too_long_patterns_are_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"got 501, 501 of them with \*"):
        matcher(f"{index}*" for index in range(501))
    with pytest.raises(InvalidSpec, match="up to 400 characters"):
        matcher(["a" * 401])
    assert matcher(["*a"] * 200_000)("ba")  # one pattern, many times


def test_what_somebody_types_is_a_part_of_a_name() -> None:
    assert matcher([part_of_name(" Conv2 ")])("layer1.0.conv2")
    assert not matcher([part_of_name("conv*")])("layer1.0.conv2")
    assert matcher([part_of_name("")])("anything")


OPTION = re.compile(r"[ (]--[a-z]")
NOT_ON_PAGES = (
    "cli",
    "formats",
    "store/device_times",
    "runtimes/litert/__init__",
    "runtimes/onnxruntime/operations",
    "app/server",
    "app/schedule/files",
)
"""Texts of the command line, and commands to copy."""


def messages() -> Iterator[str]:
    """Yield the texts in files behind pages that name an option, with ``X`` for each value, without docstrings."""
    for path in Path("senseapp").rglob("*.py"):
        if path.relative_to("senseapp").as_posix().startswith(NOT_ON_PAGES):
            continue
        text = path.read_text("utf-8")
        if not OPTION.search(text):  # to parse all files takes seconds
            continue
        tree = ast.parse(text)
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.Expr) for part in
                  ast.walk(node) if part is not node}  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                yield node.value


def test_options_of_the_command_line_stand_in_parentheses_which_pages_leave_out() -> None:
    found = [text for text in messages() if OPTION.search(text)]
    assert any("--class-map" in text for text in found)
    assert [text for text in found if OPTION.search(without_flags(text))] == []
