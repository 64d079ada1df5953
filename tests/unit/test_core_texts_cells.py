"""No CSV that senseapp writes holds a formula, and what it reads back is what there was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from senseapp.core.texts import csv_text, plain_cell, safe_cell
from senseapp.formats.plain import CSV, read_schedule
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.server.leaderboard import leaderboard_csv, leaderboard_row
from senseapp.server.outputs import sensitivity_csv
from senseapp.store.distiller import read_distiller_csv
from tests.pages.records import NAMES, result

FORMULA = "=cmd|'/C'!A0"


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    assert plain_cell(safe_cell(text)) == text


@given(st.text(alphabet="=+-@\t\r'a1. ", min_size=1))
def test_what_is_no_number_begins_harmlessly(text: str) -> None:
    written = safe_cell(text)
    if written[0] in "=+-@\t\r":
        float(written)


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
