"""Records of checks: where tensors part, verdicts, and what is left of paths."""

import math
from dataclasses import replace

import pytest

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidSpec
from senseapp.records.check import (
    BUSY,
    CheckedFile,
    CheckedLimit,
    CheckReport,
    CheckSpec,
    TensorDifference,
    TensorDivergence,
)
from senseapp.records.deployment import Median
from senseapp.records.spec import DataSpec, ModelSpec, without_folders
from senseapp.views.words.check import divergence_sentence

SPEC = CheckSpec(
    reference=ModelSpec(library="onnx", checkpoint="/home/someone/a.onnx", task="classification"),
    candidate=ModelSpec(library="onnx", checkpoint="/home/someone/b.onnx", task="classification"),
    data=DataSpec(kind="archive", path="/home/someone/photos.zip"),
)


def divergence(*differences: float) -> TensorDivergence:
    tensors = (
        TensorDifference(name=f"t{place}", operator="Conv", shape=(1, 2), difference=each)
        for place, each in enumerate(differences)
    )
    return TensorDivergence(tensors=tuple(tensors), matched_by="name", images=4)


@pytest.mark.parametrize(
    ("differences", "first"),
    [
        ((0.0, 0.001, 0.002), None),
        ((0.0, 0.01, 1.2, 0.4), "t2"),
        ((0.3, 0.2), "t0"),
        ((0.03, 0.06, 0.09, 0.12, 0.15), "t3"),
        ((0.03, 0.09, 0.12, 2.0), "t3"),
        ((0.0, math.inf), "t1"),
    ],
)
def test_the_first_tensor_apart_is_at_a_step_or_the_first_above_a_tenth(
    differences: tuple[float, ...], first: str | None
) -> None:
    found = divergence(*differences).first
    assert (found.name if found is not None else None) == first


def test_sentences_say_how_far_tensors_are_apart() -> None:
    assert "part at tensor “t2” (Conv): 120 %, after at most 1.0 % in the 2 before" in divergence_sentence(
        divergence(0, 0.01, 1.2)
    )
    assert "grow gradually: the first above 10 % is tensor “t2”" in divergence_sentence(divergence(0.05, 0.09, 0.12))
    assert divergence_sentence(divergence(0, 0.0001)) == "No tensor of 2 differs by as much as 0.1 %."
    assert "from the first tensor on, “t0” (Conv), by 30 % there and at most 50 %" in divergence_sentence(
        divergence(0.3, 0.5)
    )


def report(*limits: CheckedLimit, **more: object) -> CheckReport:
    sides = [CheckedFile(name=name, kind="ONNX file", file_bytes=size) for name, size in (("a", 100), ("b", 25))]
    return CheckReport(
        spec=without_folders(SPEC), reference=sides[0], candidate=sides[1], images=10, labelled=False,
        preparation="", limits=limits, machine="", **more,  # type: ignore[arg-type]
    )  # fmt: skip


def limit(name: str, *, holds: bool, undecided: bool = False) -> CheckedLimit:
    return CheckedLimit(name=name, holds=holds, sentence=f"{name} it is.", undecided=undecided)  # type: ignore[arg-type]


def test_a_verdict_holds_only_if_all_conditions_do() -> None:
    good, unsure = limit("loss", holds=True), limit("time", holds=False, undecided=True)
    assert report(good).holds
    assert report(good).headline == "Holds: loss it is."
    assert replace(report(good), notes=(BUSY,)).headline == f"Holds: loss it is. {BUSY}"
    assert report(good, unsure).headline == "Not shown to hold: time it is."
    bad = report(limit("loss", holds=False), unsure, findings=("A cause.",))
    assert (bad.holds, bad.headline) == (False, "Fails: loss it is. A cause.")
    assert replace(bad, notes=(BUSY,)).headline == f"Fails: loss it is. A cause. {BUSY}"


def test_no_folder_of_the_server_is_in_a_report() -> None:
    found = dumps(report(limit("loss", holds=True), time_ratio=Median(value=1.0, low=0.9, high=1.1)))
    assert "someone" not in found
    assert loads(found, CheckReport).spec.title == "b.onnx against a.onnx"


@pytest.mark.parametrize(
    "wrong", [{"max_drop": -0.1}, {"max_drop": math.inf}, {"max_time": 0.0}, {"threads": 0}, {"num_samples": 0}]
)
def test_limits_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSpec):
        CheckSpec(reference=ModelSpec(), candidate=ModelSpec(), **wrong)  # type: ignore[arg-type]
