"""Sensitivity tables, schedules and layer times in the forms that languages and spreadsheets give them.

Each form is written from a grid of cells by plain string operations; what is read must equal what the unchanged text
gives, or be refused with the reason.
"""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.core import tables
from senseapp.core.errors import InvalidFile, InvalidInput, InvalidSchedule
from senseapp.core.foreign_values import BadValue
from senseapp.core.tables import TableError, TableRecord, read_table
from senseapp.descriptions import get
from senseapp.formats.plain import read_schedule
from senseapp.formats.registry import FORMATS
from senseapp.store.distiller import read_distiller_csv
from senseapp.store.layer_times import read_layer_times
from tests.cases import examples
from tests.distiller_tables import TABLE
from tests.schedule_cases import profile_of
from tests.unit.formats.test_reading import MIXED, PROFILE

NETWORK = profile_of({"conv1": 10, "conv2": 10})
TIMES = "layer,level,ms\nconv1,0,12.25\nconv1,37.5,150.125\nconv2,0,0.5\nconv2,37.5,0.25\n"
SCHEDULE = str(FORMATS["csv"].write(MIXED, PROFILE))


def sensitivities(content: str | bytes) -> object:
    found = read_distiller_csv(content)
    return found.baseline, found.measurements


def times(content: str | bytes) -> object:
    raw = content.encode() if isinstance(content, str) else content
    return read_layer_times(raw, NETWORK, get("sparsity").scale, name="t.csv").times


def schedule(content: str | bytes) -> object:
    return read_schedule(content, PROFILE).entries


READERS: dict[str, tuple[Callable[[str | bytes], object], str]] = {
    "sensitivities": (sensitivities, TABLE),
    "times": (times, TIMES),
    "schedule": (schedule, SCHEDULE),
}


def rows_of(text: str) -> list[list[str]]:
    return [line.split(",") for line in text.splitlines()]


def text_of(rows: list[list[str]], mark: str = ",", quote: str = "", end: str = "\n") -> str:
    return "".join(mark.join(f"{quote}{cell}{quote}" for cell in row) + end for row in rows)


def turned(rows: list[list[str]]) -> list[list[str]]:
    return [row[::-1] for row in rows]


FORMS: dict[str, Callable[[list[list[str]]], str | bytes]] = {
    "semicolons": lambda rows: text_of(rows, ";"),
    "tabs": lambda rows: text_of(rows, "\t"),
    "quotes": lambda rows: text_of(rows, quote='"'),
    "semicolons in quotes": lambda rows: text_of(rows, ";", '"', "\r\n"),
    "space after the comma": lambda rows: text_of(rows, ", ", '"'),
    "separator line": lambda rows: "sep=;\n" + text_of(rows, ";"),
    "byte-order mark": lambda rows: b"\xef\xbb\xbf" + text_of(rows).encode(),
    "UTF-16": lambda rows: text_of(rows, "\t").encode("utf-16"),
    "columns the other way round": lambda rows: text_of(turned(rows)),
    "index of pandas": lambda rows: text_of([[str(i - 1) if i else "", *row] for i, row in enumerate(rows)]),
    "another column": lambda rows: text_of([[*row, "when" if not i else "today"] for i, row in enumerate(rows)]),
    "capitals and spaces": lambda rows: text_of([[f" {cell.upper()} " for cell in rows[0]], *rows[1:]]),
    "comments": lambda rows: "# from a meeting\n" + text_of(rows) + "# the end\n",
    "blank lines": lambda rows: "\n\n" + text_of(rows, end="\n\n") + ",,\n",
    "commas at the ends": lambda rows: text_of([[*row, "", ""] for row in rows]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", READERS)
def test_every_form_of_a_table_gives_the_same_values(kind, form):
    read, text = READERS[kind]
    assert read(FORMS[form](rows_of(text))) == read(text)


def test_commas_are_decimal_marks_between_semicolons():
    found = read_distiller_csv(re.sub(r";(\d+)\.", r";\1,", TABLE.replace(",", ";")))
    assert "Commas in its numbers are decimal marks." in found.notes
    assert found.measurements == read_distiller_csv(TABLE).measurements


def test_what_is_not_usual_is_said():
    semicolons = read_distiller_csv(text_of(rows_of(TABLE), ";"))
    assert semicolons.notes[0] == "Its columns are separated by semicolons."
    other = read_schedule(FORMS["another column"](rows_of(SCHEDULE)), PROFILE)
    assert other.notes == ("1 column of it not read: when.",)


REFUSED = {
    "decimal commas between commas": ("times", TIMES.replace("12.25", "12,25"), "has 4 cells .* 'conv1,0,12,25'"),
    "a cell too many": ("sensitivities", TABLE.replace("3.125", "3.125,9"), "Line 4 has 6 cells where .* has 5"),
    "a cell too many in a schedule": ("schedule", SCHEDULE.replace(",false\n", ",false,x\n", 1), "has 8 cells"),
    "header of R": ("times", TIMES.replace("layer,", "", 1), "Line 2 has 3 cells where the first line has 2"),
    "a column twice": ("times", "layer,level,ms,ms\nconv1,0,1,2\n", "names the column ms more than once"),
    "a column missing": ("times", "layer,level,seconds\nconv1,0,1\n", "lacks ms"),
    "no header": ("sensitivities", text_of(rows_of(TABLE)[1:]), "first line must name the columns parameter"),
    "a title above": ("sensitivities", "My results\n" + TABLE, "the first line is 'My results'"),
    "a workbook": ("schedule", b"PK\x03\x04" + b"\0" * 40, "a workbook or zip, not text"),
    "a workbook of times": ("times", b"\xd0\xcf\x11\xe0" + b"\0" * 40, "a workbook, not text"),
    "an open quote": ("sensitivities", TABLE.replace("module.fc", '"module.fc', 1), "is not CSV"),
    "dates of a spreadsheet": (
        "sensitivities",
        TABLE.replace("41.25", "25.Jan"),
        "must be a finite number from 0 to 100, got '25.Jan'",
    ),
    "underscores": ("times", TIMES.replace("12.25", "1_2"), "is not a layer, a level and milliseconds"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_read_in_two_ways_or_in_none_is_refused_with_the_reason(name):
    kind, content, reason = REFUSED[name]
    with pytest.raises((InvalidFile, InvalidSchedule), match=reason) as refused:
        READERS[kind][0](content)
    assert "\n" not in str(refused.value)


def test_numbers_are_what_python_reads_and_nothing_more():
    def number(text: str) -> float:
        return TableRecord(line=1, cells={"level": text}).number("level")

    for text in ("1", "-1.5", ".5", "1.", "1e-05", "+2E3"):
        assert number(text) == float(text)
    for text in ("", "1_000", "١", "0x10", "1,5", "1.5.2", "5 %", "1 000", "inf", "nan", "1e999", "9" * 5000):
        with pytest.raises(BadValue, match="level must be a finite number, got"):
            number(text)


def test_hostile_tables_are_bounded(monkeypatch):
    monkeypatch.setattr(tables, "_MOST_CELLS", 1000)
    monkeypatch.setattr(tables, "_MOST_COLUMNS", 5)
    for content, reason in (
        (b"a,b\n" * 10, None),
        (b"a," * 600_000, "letters"),
        (b"a,b\n" + b"1,2\n" * 500, "5 columns or 1,000 cells"),
        (b'"' + b"x" * 200_000 + b'",b\n', "field"),
        (b"a,b\n" * 10 + b"\0", "zero bytes"),
    ):
        if reason is None:
            assert len(read_table(content).rows) == 10
            continue
        with pytest.raises(TableError, match=reason):
            read_table(content)
    with pytest.raises(TableError, match="more than 1 MB"):
        read_table(b"a,b\n" * 300_000, most_bytes=1_000_000)


@settings(max_examples=examples(150), deadline=None)
@given(
    kind=st.sampled_from(sorted(READERS)),
    at=st.floats(0, 1),
    cut=st.integers(0, 30),
    put=st.one_of(st.binary(max_size=8), st.sampled_from([b"\xff\xfe", b'"', b";", b",,", b"sep=|\n", b"#", b"0,5"])),
)
def test_a_damaged_table_gives_values_of_the_table_or_one_sentence(kind, at, cut, put):
    read, text = READERS[kind]
    content = text.encode()
    start = int(at * len(content))
    sentence = ""
    try:
        read(content[:start] + put + content[start + cut :])
    except InvalidInput as refused:
        sentence = str(refused)
    assert "\n" not in sentence
