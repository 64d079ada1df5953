"""Promises: which files keep one, what was tried on the same images, and what is said where none does."""

import math
from dataclasses import replace

import numpy as np
import pytest

from senseapp.core.errors import InvalidSpec
from senseapp.metrics import METRICS, change_of
from senseapp.metrics.bounds import TestSequence, images_needed, upper_bound_of_net_share, upper_bound_of_share
from senseapp.prove.decision import decision
from senseapp.records.candidate import own_bounds
from senseapp.records.promise import (
    Promise,
    check_promisable,
    kept,
    refusal,
    sequence_after,
    shortfall,
    too_few,
    verdicts,
)
from senseapp.records.schedule import Schedule, ScheduleEntry
from tests.cases import first_of
from tests.deployments import a_candidate, a_judged_candidate

FIVE = Promise(most=0.05)
_ENTRY = ScheduleEntry(layer="conv1", members=("conv1",), compression="sparsity", level=0.5, predicted_damage=0.0)
SCHEDULE = Schedule(model="net", method="manual", entries=(_ENTRY,))


def test_a_file_carries_the_bound_of_its_own_loss() -> None:
    found = a_judged_candidate(3, 200)
    assert found.bound == upper_bound_of_share(3, 200)
    assert found.bound_text == "At most 3.9 % of answers change, with 95 % certainty; 3 of 200 did."
    labelled = a_judged_candidate(3, 500, better=1, metric="top1")
    assert labelled.bound == upper_bound_of_net_share(3, 1, 500)
    assert labelled.bound_text == "On new images: loss of right answers at most 1.4 points, with 95 % certainty."


def test_what_was_compared_on_the_same_images_widens_the_bound() -> None:
    plain = a_judged_candidate(3, schedule=SCHEDULE, tried=1)
    vetoed = replace(plain, tried=2)
    assert plain.bound == upper_bound_of_share(3, 500)
    assert vetoed.bound == upper_bound_of_share(3, 500, 0.975)
    assert "with 95 % certainty, counting 2 tried; 3 of 500 did." in vetoed.bound_text


def test_there_is_no_bound_without_held_out_images_or_sums() -> None:
    for found in (a_candidate(), a_judged_candidate(3, held_out=False)):
        assert math.isnan(found.bound)
        assert found.bound_text == ""


def test_the_test_decides_and_not_what_was_measured() -> None:
    most = next(k for k in range(500) if upper_bound_of_share(k + 1, 500, 1 - 0.0425) > 0.05)
    good, bad = a_judged_candidate(most), a_judged_candidate(most + 1)
    assert bad.loss.delta <= 0.05
    assert decision([good], "smaller", 0.05, FIVE).choice == good
    assert decision([bad], "smaller", 0.05, FIVE).choice is None
    assert decision([bad], "smaller", 0.05).choice == bad


def test_files_are_tested_in_turn_and_what_fails_costs_the_next_ones() -> None:
    promise, first, second = Promise(most=0.0488), 0.05 * 0.85, 0.05 * (0.85 + 0.15 / 2)
    mild, strong = a_judged_candidate(2, size=4_000_000), a_judged_candidate(16, size=3_000_000)
    failing = [a_judged_candidate(90, size=size) for size in range(1_000_000, 1_000_003)]
    assert upper_bound_of_share(16, 500, 1 - second) <= promise.most < upper_bound_of_share(16, 500, 1 - first)
    assert kept([mild, strong], promise) == (mild, strong)  # the error of what passed is left to the next
    assert kept([strong, mild], promise) == (mild,)
    assert kept([*failing, mild, strong], promise) == (mild,)
    errors = [each.error for each in verdicts([*failing, mild], promise).values()]
    assert errors == pytest.approx([0.05 * 0.85, 0.0075 / 2, 0.0075 / 6, 0.0075 / 12])
    assert sequence_after([*failing, mild], promise).next_error == pytest.approx(0.0075 / 20 + 0.0075 / 12)


def test_alternatives_that_were_refused_are_tests_that_failed() -> None:
    second = a_judged_candidate(3, schedule=SCHEDULE, tried=2)
    other = a_judged_candidate(3, size=3_000_000, schedule=SCHEDULE, tried=2)
    errors = [each.error for each in verdicts([second, other], FIVE).values()]
    assert errors == pytest.approx([0.0075 / 2, 0.0075 / 2 + 0.0075 / 6])  # counted once for all files of a network


def test_weights_as_they_are_and_packed_are_one_test() -> None:
    plain = a_judged_candidate(3, form="weights", schedule=SCHEDULE, tried=1, size=9_000_000)
    packed = a_judged_candidate(3, form="small", schedule=SCHEDULE, tried=1, size=2_000_000)
    found = verdicts([plain, packed], FIVE)
    assert [each.error for each in found.values()] == pytest.approx([0.0425, 0.0425])
    assert set(found) == {plain.file, packed.file}


@pytest.mark.parametrize("order", first_of(["mild first", "strong first", "by chance"]))
def test_any_wrong_promise_among_files_is_as_rare_as_promised(order: str) -> None:
    rng, wrong, runs = np.random.default_rng(2), 0, 400
    for _ in range(runs):
        shares = np.sort(rng.uniform(0.045, 0.06, 6))  # as near as makes mistakes likely
        shares = {"mild first": shares, "strong first": shares[::-1], "by chance": rng.permutation(shares)}[order]
        hard = rng.random(300)  # the same images, so that files change the same answers
        files = [
            a_judged_candidate(int((hard < share).sum()), 300, size=4_000_000 + place)
            for place, share in enumerate(shares)
        ]
        good = {each.file for each in kept(files, FIVE)}
        wrong += any(each.file in good and share > 0.05 for each, share in zip(files, shares, strict=True))
    assert wrong / runs <= 0.05


def test_where_none_passes_a_sentence_says_what_can_be_promised_and_what_it_takes() -> None:
    promise = Promise(most=0.01)
    assert shortfall([a_judged_candidate(0)], promise) == ""
    assert shortfall([a_judged_candidate(2), a_judged_candidate(9, size=3_000_000)], promise) == (
        "No file is shown to lose at most 1 %, with 95 % certainty. What can be promised with these 500 unseen "
        "images is at most 1.3 %: .onnx file in 8-bit numbers. If it goes on losing 0.4 %, it takes about 1,077 unseen "
        "images."
    )
    assert shortfall([a_judged_candidate(9)], promise).endswith(
        "It lost 1.8 % on them: more images would not help, a milder file would."
    )
    few = a_judged_candidate(0, 100)
    assert f"It takes {images_needed(0.01, 1 - 0.0425)} unseen images without a loss." in shortfall([few], promise)
    none = shortfall([a_judged_candidate(0, held_out=False)], promise)
    assert (
        none
        == "Nothing can be promised without unseen images, and this run has none: it takes at least 315 unseen images."
    )
    verdict = verdicts([few], promise)[few.file]
    assert refusal(verdict, promise).startswith("It is not shown to lose at most 1 point")
    assert refusal(replace(verdict, holds=True), promise) == ""


def test_too_few_images_are_known_before_anything_is_measured() -> None:
    assert too_few(images_needed(0.01, 1 - 0.0425), Promise(most=0.01)) == ""
    assert too_few(200, Promise(most=0.01)) == (
        "To lose at most 1 point, with 95 % certainty, takes at least 315 unseen images. On the 200 unseen images of "
        "this run even a file that loses none is, as the first one tested, only shown to lose at most 1.6 points."
    )
    assert "this run has none" in too_few(0, Promise(most=0.01))


def test_a_promise_may_be_of_another_metric_that_was_measured() -> None:
    found = a_judged_candidate(2, metric="top1")
    changes = (*found.figures.changes, *a_judged_candidate(40).figures.changes)
    found = replace(found, figures=replace(found.figures, changes=changes))
    assert kept([found], FIVE) == (found,)
    assert kept([found], replace(FIVE, metric="agreement")) == ()
    assert kept([found], replace(FIVE, metric="top5")) == ()  # was not measured


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Promise(most=0.0),
        lambda: Promise(most=1.0),
        lambda: Promise(most=0.01, confidence=0.5),
        lambda: Promise(most=0.01, confidence=1.0),
        lambda: Promise(most=0.01, metric="kl"),
        lambda: Promise(most=0.01, metric="nonsense"),
        lambda: check_promisable("sqnr"),
        lambda: a_candidate(tried=0),
    ],
)
def test_what_cannot_be_promised_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidSpec):
        wrong()  # type: ignore[operator]


def test_a_bound_that_takes_a_bootstrap_is_kept_with_the_file() -> None:
    one = [3.0, 5.0, 5.0, 5.0, 3.0, 5.0, 5.0, 4.0]  # of an image before and after: objects there, found, matched
    change = change_of("objects_f1", (60.0, *one * 60))
    bounds = own_bounds((change,))
    assert bounds[0] == METRICS["objects_f1"].upper_bound(change.moments)
    assert list(bounds) == sorted(bounds)
    assert bounds[0] > change.delta + 1 / 60
    found = a_candidate()
    found = replace(found, figures=replace(found.figures, changes=(change,)), bounds=bounds)
    assert found.bound == bounds[0]
    assert found.upper_bound("objects_f1", 0.025) == bounds[1]
    assert found.upper_bound("objects_f1", 0.02) == bounds[2]  # of a smaller error, never of a larger one
    assert found.upper_bound("objects_f1", 1e-9) == math.inf
    assert own_bounds(a_judged_candidate(1).figures.changes) == ()


def test_a_sequence_of_tests_never_spends_more_than_its_error() -> None:
    tests = TestSequence(error=0.05)
    spent = 0.0
    for _ in range(200):
        spent += tests.next_error
        tests.add(passes=False)
    assert spent < 0.05
    passing = TestSequence(error=0.05)
    for _ in range(200):
        passing.add(passes=True)
        assert passing.next_error < 0.05
