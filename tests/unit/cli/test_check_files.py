"""What is written of a check: every text of people is shown as it is, in HTML, Markdown and XML."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from senseapp.cli.check_files import json_of, junit_xml, markdown_summary
from senseapp.records.answers import ChangedAnswers, ChangedPicture, ClassDrop
from senseapp.records.check import (
    CheckedFile,
    CheckedLimit,
    CheckReport,
    CheckSpec,
    LossBound,
    TensorDifference,
    TensorDivergence,
)
from senseapp.records.spec import ModelSpec
from senseapp.views.report.document import build_check_page

HOSTILE = "a|b<script>alert(1)</script>\x00`*[x](http://x)@team"


@pytest.fixture
def report() -> CheckReport:
    """A failed check whose every text is hostile."""
    spec = CheckSpec(
        reference=ModelSpec(library="onnx", checkpoint="a.onnx", task="classification"),
        candidate=ModelSpec(library="onnx", checkpoint="b.onnx", task="classification"),
    )
    side = CheckedFile(name=HOSTILE, kind="ONNX file", file_bytes=10, takes=HOSTILE, returns=HOSTILE, notes=(HOSTILE,))
    tensors = tuple(
        TensorDifference(
            name=f"{place}{HOSTILE}", operator=HOSTILE, shape=(1, 2), difference=0.0 if place < 20 else 2.0
        )
        for place in range(24)
    )
    picture = ChangedPicture(
        name=HOSTILE, png=b"", label=HOSTILE, before=HOSTILE, after=HOSTILE, sure_before=0.9, sure_after=0.4
    )
    drop = ClassDrop(name=HOSTILE, num_images=3, drop=0.3, low=0.1, high=0.6, stands_out=True)
    answers = ChangedAnswers(
        subject=HOSTILE, num_changed=1, num_images=3, by_labels=True, drop=0.1, pictures=(picture,), classes=(drop,),
        num_classes=1,
    )  # fmt: skip
    return CheckReport(
        spec=spec,
        reference=side,
        candidate=side,
        images=3,
        labelled=True,
        preparation=HOSTILE,
        limits=(CheckedLimit(name="loss", holds=False, sentence=HOSTILE),),
        machine=HOSTILE,
        bound=LossBound(metric="top1", delta=0.1, upper=0.3, allowed=0.01, how="exact", guaranteed=True, images=3),
        findings=(HOSTILE,),
        answers=answers,
        divergence=TensorDivergence(tensors=tensors, matched_by="name", images=4),
        notes=(HOSTILE,),
    )


def test_nothing_on_the_page_acts_as_markup(report: CheckReport) -> None:
    page = build_check_page(report)
    assert "<script" not in page
    assert "alert(1)" in page
    assert "default-src 'none'" in page
    assert page.count('class="first"') == 1  # the tensor from which on they part


def test_a_table_of_the_summary_keeps_its_columns(report: CheckReport) -> None:
    summary = markdown_summary(report)
    rows = [line for line in summary.splitlines() if line.startswith("| ")]
    assert rows
    for row in rows:
        assert row.replace("\\|", "").count("|") in (4, 5, 6)
    assert "<script" not in summary.replace("\\<", "")
    assert "@team" not in summary


def test_the_xml_is_well_formed_whatever_a_file_is_called(report: CheckReport) -> None:
    suite = ElementTree.fromstring(junit_xml(report).encode()).find("testsuite")
    assert suite is not None
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "<script>" in (failure.get("message") or "")
    assert failure.get("type") == "failed"


def test_what_is_not_shown_is_neither_a_failure_nor_a_success(report: CheckReport) -> None:
    unsure = replace(report, limits=(CheckedLimit(name="time", holds=False, undecided=True, sentence="Close."),))
    assert unsure.verdict == "Not shown to hold"
    suite = ElementTree.fromstring(junit_xml(unsure).encode()).find("testsuite")
    assert suite is not None
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "undecided"
    assert json_of(unsure)["holds"] is False
