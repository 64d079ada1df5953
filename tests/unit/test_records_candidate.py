"""Candidates: what beats what, what is recommended for which goal, and the headline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidSpec
from senseapp.records.candidate import Delivery, offered, recommended
from senseapp.records.deployment import Median
from senseapp.records.schedule import Schedule, ScheduleEntry
from tests.deployments import a_candidate, a_deployment


def test_the_headline_says_size_time_and_answers_with_their_interval() -> None:
    assert a_candidate().headline == (
        "18.8 MB → 4.70 MB · 0.55 × the time · 96 of 100 answers stay (94 to 98; 200 held-out images)"
    )


def test_the_headline_of_labelled_images_counts_right_answers_before_and_after() -> None:
    found = a_candidate(metric="top1", lost=0.01, share=1.0, held_out=False)
    assert found.headline == (
        "18.8 MB → 4.70 MB · the same time · 99 of 100 answers right, 100 before "
        "(97 to 100; 200 of the run's own images)"
    )


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("lrap", "Ranking precision (LRAP) 96.0 %, 100 % before"),
        ("label_agreement", "96 of 100 labels stay"),
        ("agreement", "96 of 100 answers stay"),
    ],
)
def test_the_headline_counts_what_the_metric_counts(metric: str, words: str) -> None:
    assert words in a_candidate(metric=metric, lost=0.04).headline


def test_a_file_is_beaten_by_one_that_is_no_worse_in_all_and_better_in_one() -> None:
    good = a_candidate()
    assert not good.is_beaten_by(good)
    assert a_candidate(size=4_700_001).is_beaten_by(good)
    assert a_candidate(lost=0.05).is_beaten_by(good)
    assert a_candidate(share=0.7).is_beaten_by(good)
    assert not a_candidate(share=0.56).is_beaten_by(good)  # a difference of times that cannot be told
    assert not a_candidate(size=4_000_000, lost=0.05).is_beaten_by(good)
    assert not a_candidate("weights", size=18_000_000).is_beaten_by(good)  # another program reads it


def test_weights_without_some_channels_are_not_said_to_fit_the_architecture() -> None:
    entry = ScheduleEntry(layer="conv1", members=("conv1",), compression="pruning", level=0.5, predicted_damage=0.0)
    pruned = Schedule(model="net", method="manual", entries=(entry,))
    assert "same architecture" in a_candidate("weights").opened_by
    assert "smaller layers" in a_candidate("weights", schedule=pruned).opened_by
    zeros = replace(pruned, entries=(replace(entry, compression="sparsity"),))
    assert "same architecture" in a_candidate("weights", schedule=zeros).opened_by
    assert "onnxruntime" in a_candidate("onnx", schedule=pruned).opened_by


def test_what_does_not_pay_is_not_offered() -> None:
    useless = a_candidate("onnx", size=18_800_000, share=1.0, lost=0.0)
    assert not useless.pays
    assert offered([useless]) == ()
    assert recommended([useless], goal="smaller", allowed_drop=0.05) is None


def test_the_goal_decides_among_what_is_tolerable() -> None:
    small = a_candidate(size=2_000_000, share=1.0, lost=0.045)
    quick = a_candidate(size=5_000_000, share=0.4, lost=0.03)
    harmful = a_candidate(size=1_000_000, share=0.3, lost=0.2)
    every = [small, quick, harmful]
    assert recommended(every, goal="smaller", allowed_drop=0.05) == small
    assert recommended(every, goal="faster", allowed_drop=0.05) == quick
    assert recommended(every, goal="smaller", allowed_drop=0.01) is None
    assert recommended(every, goal="smaller", allowed_drop=0.5) == harmful


def test_files_that_a_runtime_runs_come_before_packed_weights() -> None:
    packed = a_candidate("small", size=1_000_000, share=1.0, file=f"compressed-{'0' * 16}.sparse.safetensors.gz")
    assert recommended([packed], goal="smaller", allowed_drop=0.05) == packed
    assert recommended([packed, a_candidate()], goal="smaller", allowed_drop=0.05) == a_candidate()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=7))
def test_offers_beat_each_other_in_nothing_and_everything_else_is_beaten(axes: list[tuple[int, int, int]]) -> None:
    every = [a_candidate(size=10**6 * size, share=share / 10, lost=lost / 100) for size, share, lost in axes]
    offers = offered(every)
    assert not any(one.is_beaten_by(other) for one in offers for other in offers)
    for one in every:
        assert one in offers or any(one.is_beaten_by(other) for other in every)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "compressed-0.safetensors", f"deployed-{'0' * 16}.pkl", f"/deployed-{'0' * 16}.onnx"]
)
def test_a_name_that_no_run_gives_its_files_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec):
        a_candidate(file=name)


def test_a_delivery_is_read_back_as_it_was() -> None:
    record = Delivery(candidates=(a_candidate(), a_candidate("weights")), notes=("No int8.",))
    assert loads(dumps(record), Delivery) == record


def test_times_that_cannot_be_told_from_the_originals_are_not_called_faster() -> None:
    one = a_candidate(share=0.99)
    assert not one.is_faster
    assert replace(one, figures=replace(one.figures, time_ratio=Median(value=0.9, low=0.85, high=0.95))).is_faster
    barely = Median(value=0.985, low=0.98, high=0.99)  # told from the original's in one opening, not in the next
    assert not replace(one, figures=replace(one.figures, time_ratio=barely)).is_faster


def test_a_file_of_a_search_that_computes_in_float_says_that_its_weights_have_8_bits() -> None:
    stored = a_deployment(in_float=("conv1", "conv2"))
    assert a_candidate("onnx", deployment=stored).made_of == "ONNX, weights in 8 bits"
    assert a_candidate("onnx").made_of == "ONNX"
