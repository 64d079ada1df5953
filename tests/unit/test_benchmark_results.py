"""Benchmarks share one file of results: each replaces its own section only."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks import results
from benchmarks.results import RESULTS, machine, with_section, write_row

titles = st.sampled_from(["Speed", "Growth", "Schedules (`make bench-schedule`)", "Quick scan"])
bodies = st.lists(st.sampled_from(["| a | b |", "", "One sentence.", "### smaller heading", "1 < 2 # no heading"]))


@given(st.lists(st.tuples(titles, bodies), min_size=1))
def test_each_section_holds_what_was_written_last_and_only_once(writes):
    text = ""
    for title, lines in writes:
        text = with_section(text, title, lines)
    last = dict(writes)
    assert text.startswith("# Results\n")
    assert sorted(line for line in text.splitlines() if line.startswith("## ")) == sorted(f"## {t}" for t in last)
    for title, lines in last.items():
        section = text.split(f"## {title}\n")[1].split("\n## ")[0]
        assert section.strip() == "\n".join(lines).strip()


@given(titles, bodies)
def test_writing_a_section_again_changes_nothing(title, lines):
    once = with_section("# Results\n\nOn the whole.\n\n## Other\n\ntext\n", title, lines)
    assert with_section(once, title, lines) == once
    assert once.startswith("# Results\n\nOn the whole.\n\n## Other\n\ntext\n")


def test_the_file_of_this_project_survives_a_rewrite_of_one_section():
    before = RESULTS.read_text(encoding="utf-8")
    after = with_section(before, "A new one", ["figures"])
    assert after.split() == [*before.split(), *["##", "A", "new", "one", "figures"]]


def test_the_machine_is_described_with_versions():
    assert "torch" in machine()
    assert "cores" in machine()


def test_a_row_takes_the_place_of_the_one_of_its_name_and_leaves_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "RESULTS.md")
    head = ("Figures.", "", "| network | kind | found |", "|---|---|---|")
    for row in ("| a | bits | 1 |", "| a | zeros | 2 |", "| a | bits | 3 |"):
        write_row("Pairs", head, row, named_by=2)
    write_row("Other", head, "| b | bits | 4 |")
    text = results.RESULTS.read_text()
    assert [line for line in text.splitlines() if line.startswith(("| a", "| b"))] == [
        *("| a | bits | 3 |", "| a | zeros | 2 |", "| b | bits | 4 |")
    ]
    assert text.count("Figures.") == 2
