"""What images can show, beside the intervals that it is derived from; ranks under noise."""

import math
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import binomtest

from senseapp.metrics import METRICS
from senseapp.metrics.intervals import discordant_interval, proportion_interval
from senseapp.records.measurement import RecordedOutputs
from senseapp.records.resolution import (
    baseline_warning,
    cannot_tell,
    default_metric,
    everyday,
    hides_losses,
    opening_level,
    preparation_doubt,
    rank_intervals,
    seen_from,
    shared_ranks,
    smallest_visible_loss,
    spearman,
    undecided,
    unseen_below,
)
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.tasks.classification import near_chance
from senseapp.tasks.reading import Reading
from tests.cases import first_of
from tests.fake_session import a_change, a_measurement, a_profile, a_result


@pytest.mark.parametrize("images", [1, 20, 140, 276, 628, 50_000])
def test_what_images_cannot_show_is_the_end_of_the_interval_of_unchanged_answers(images):
    assert METRICS["top1"].unchanged_upper_end(images) == discordant_interval(0, 0, images)[1]
    for name in ("agreement", "label_agreement", "pixel_agreement"):
        assert METRICS[name].unchanged_upper_end(images) == proportion_interval(0, images)[1]
    assert [METRICS[name].unchanged_upper_end(images) for name in ("kl", "pixel_accuracy", "objects_f1")] == [0, 0, 0]


def test_top1_ranks_from_the_number_of_images_on_that_can_show_one_point():
    metrics = ("top1", "loss", "kl", "agreement")
    assert [default_metric(metrics, images) for images in (20, 275, 276, 5000)] == ["kl", "kl", "top1", "top1"]
    assert default_metric(("kl", "agreement"), 5000) == "kl"


def run_with(*intervals, metric="top1", level=0.5, num_samples=20):
    """A run with one layer for each (low, high)."""
    changes = [
        replace(a_change(0.0, metric=metric), delta=(low + high) / 2, ci_low=low, ci_high=high)
        for low, high in intervals
    ]
    found = [a_measurement(f"layer{index}", level, changes=(change,)) for index, change in enumerate(changes)]
    return replace(a_result(found), num_samples=num_samples)


def test_the_smallest_visible_loss_is_the_median_upper_end_of_intervals_that_reach_zero():
    run = run_with((-0.1, 0.1), (-0.1, 0.2), (0.0, 0.7), (0.3, 0.9), (math.nan, math.nan))
    assert smallest_visible_loss(run, "top1", 0.5) == pytest.approx(0.2)
    assert smallest_visible_loss(run, "top1", 0.25) is None
    assert smallest_visible_loss(run, "kl", 0.5) is None


def test_of_all_levels_the_one_where_layers_change_least_says_what_images_can_show():
    mild, strong = run_with((-0.01, 0.01), level=0.25), run_with((-0.05, 0.15), level=0.5)
    both = replace(mild, measurements=(*mild.measurements, *strong.measurements))
    assert smallest_visible_loss(both, "top1") == pytest.approx(0.01)
    assert smallest_visible_loss(both, "top1", 0.5) == pytest.approx(0.15)


def test_estimates_have_no_say():
    run = a_result(estimates=(a_measurement("stem", estimated=True),))
    assert smallest_visible_loss(run, "top1") is None
    assert hides_losses(run, "top1") == ""


def test_losses_that_matter_and_stay_hidden_are_said():
    hidden = "20 images cannot show losses under about 16 points"
    assert hides_losses(run_with((-0.161, 0.161)), "top1") == hidden
    assert hides_losses(run_with((-0.006, 0.006), num_samples=628), "top1") == ""
    assert "cannot show harm under about 0.300" in hides_losses(run_with((0.0, 0.3), metric="kl"), "kl")


def harms_and_shares(*pairs):
    """A run whose layers have these KL divergences, and shares of changed answers."""
    changes = [(a_change(harm, metric="kl"), a_change(share, metric="agreement")) for harm, share in pairs]
    layers = (replace(a_measurement(f"layer{at}"), changes=each) for at, each in enumerate(changes))
    return replace(a_result(), measurements=tuple(layers))


def test_harm_is_said_as_the_answers_that_change_with_it():
    pairs = [(0.01, 0.0), (0.02, 0.02), (0.03, 0.01), (0.1, 0.05), (0.2, 0.1), (0.4, 0.2), (0.5, 0.3), (1.0, 0.4)]
    shown = everyday(harms_and_shares(*pairs), "kl")
    assert shown.axis == "Of 100 answers, about so many change"
    assert [shown.change_text(harm) for harm in (0.0, 0.1, 0.15, 2.0)] == [
        "about 0 of 100 answers",
        "about 5 of 100 answers",
        "about 7.5 of 100 answers",
        "over 40 of 100 answers",
    ]
    assert shown.limit_text(shown.notable) == "1 of 100 answers"  # in every run, whatever its distances
    assert shown.shown([0.0, 0.1, 0.15, 2.0, math.inf]) == pytest.approx([0, 5, 7.5, 80, 100])
    assert shown.limit_text(0.025) == "1.5 of 100 answers"  # the mean of two that fell
    assert shown.limit_text(0.05 / 3) == "1 of 100 answers"
    assert shown.interval_text(0.1, 0.4) == "5 to 20"
    assert shown.in_terms.change_text(0.1) == "0.100 nats"
    assert everyday(harms_and_shares(*pairs), "agreement") is METRICS["agreement"]


def test_before_layers_are_measured_answers_are_those_that_noise_on_the_outputs_changes():
    sure = np.log([[0.98, 0.01, 0.01]] * 200)
    values = np.concatenate([sure, np.log([[0.5, 0.49, 0.01]] * 56)]).astype(np.float16)
    recorded = RecordedOutputs(metric="kl", size=3, values=values.tobytes())
    shown = everyday(replace(a_result(), measurements=(), recorded=recorded), "kl")
    assert shown.axis == "Of 100 answers, about so many change"
    few, half, many = shown.shown([0.0001, 0.01, 1.0])
    assert 1 < few < half < 14  # of the unsure ones, which are 22 of 100, half change at most
    assert 20 < many < 60


def test_harm_stays_harm_where_too_few_answers_changed_to_say():
    few, none = harms_and_shares((0.1, 0.2)), harms_and_shares(*[(0.01, 0.0)] * 9)
    assert everyday(few, "kl") is everyday(none, "kl") is METRICS["kl"]
    assert METRICS["kl"].axis == "Harm to the answers (up to 0.02 hardly shows)"


def test_how_small_a_loss_shows_is_said_no_more_exactly_than_it_is_known():
    said = [unseen_below(20, "top1", loss).partition("about ")[2] for loss in (0.16125, 0.0138, 0.0061)]
    assert said == ["16 points", "1.4 points", "0.6 points"]
    assert unseen_below(1, "kl", 0.00002) == "1 image cannot show harm under about < 0.001"
    assert seen_from(0, "kl", 0.00002) == "these images show harm from under 0.001"


def test_what_the_interval_leaves_open_cannot_be_told():
    lows, deltas, highs = (np.array(ends) for ends in zip((-1, 0, 1), (-1, 0, 9), (1, 5, 9), (2, 5, 9), strict=True))
    assert cannot_tell(lows, deltas, highs, 3.0).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("correct", "scored", "classes"),
    [(10, 140, 10), (14, 140, 10), (19, 140, 10), (22, 140, 10), (3, 20, 10), (6, 20, 10), (1, 60, 1000), (12, 20, 2)],
)
def test_near_chance_is_what_a_binomial_test_cannot_tell_from_guessing(correct, scored, classes):
    expected = bool(binomtest(correct, scored, 1 / classes, alternative="greater").pvalue > 0.05)
    assert near_chance(correct, scored, classes) is expected


def test_images_that_could_prove_nothing_are_not_judged():
    assert not near_chance(0, 1, 10)
    assert not near_chance(2, 4, 2)  # four right by guessing are one in sixteen
    assert not near_chance(0, 0, 10)


def test_a_baseline_near_chance_is_warned_of():
    run = replace(a_result([a_measurement()]), num_samples=140, baseline={"top1": 10 / 140, "loss": 4.0})
    assert baseline_warning(run) == (
        "The uncompressed model is right on 7 % of 140 images, near chance (10 % for 10 classes): check the "
        "preprocessing, which class each label means, or the weights. Losses then mean little."
    )


def test_a_model_that_is_surer_of_wrong_answers_than_a_guess_is_warned_of():
    def warning(top1, loss):
        return baseline_warning(replace(a_result(), num_samples=1000, baseline={"top1": top1, "loss": loss}))

    assert "surer of its wrong answers than a guess" in warning(0.3, 2.4)
    assert warning(0.3, 2.2) == ""  # ln 10 is 2.30: poor, but it knows
    assert warning(0.6, 3.0) == ""


def test_no_warning_where_nobody_expects_right_answers_or_knows_of_them():
    poor = replace(a_result(), num_samples=140, baseline={"top1": 0.07})
    assert baseline_warning(poor)
    assert baseline_warning(replace(poor, profile=replace(a_profile(), pretrained=False))) == ""
    assert baseline_warning(replace(poor, baseline={"kl": 0.0})) == ""
    assert baseline_warning(replace(poor, num_samples=0)) == ""  # imported figures


def colours(losses, noise=0.001):
    """Which of blue, yellow and red losses have, by the plain reading: up to one point, up to ten, more."""
    found = set()
    for loss in losses:
        if loss + noise > 0.01 and (loss - noise <= 0 or loss <= 0.01):
            continue  # grey: the images leave open whether it is tolerable
        found.add("blue" if loss <= 0.01 else "yellow" if loss <= 0.1 else "red")
    return found


def run_of(losses_by_level, **changes):
    found = [
        a_measurement(f"layer{place}", level, changes=(a_change(loss, noise=0.001),))
        for level, losses in losses_by_level.items()
        for place, loss in enumerate(losses)
    ]
    spec = RunSpec(sensitivity=SensitivitySpec(levels=tuple(losses_by_level)))
    return a_result(found, spec=spec, **changes)


@pytest.mark.parametrize("seed", first_of(range(20), 6))
def test_charts_open_where_the_most_colours_are_and_nearest_to_the_usual_level_among_those(seed):
    draw = np.random.default_rng(seed)
    levels = sorted(draw.choice([0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9], size=4, replace=False).tolist())
    losses = {level: (10 ** draw.uniform(-4, -0.3, size=5) * level).tolist() for level in levels}
    found = opening_level(run_of(losses), "top1")
    most = max(len(colours(each)) for each in losses.values())
    richest = [level for level in levels if len(colours(losses[level])) == most]
    assert found in richest
    assert abs(found - 0.5) == min(abs(level - 0.5) for level in richest)


def test_what_is_grey_or_has_no_value_does_not_count_and_other_levels_are_left_out_on_request():
    result = run_of({0.5: [0.0, 0.0], 0.75: [0.0, 0.05], 0.9: [0.0, 0.05, 0.5]})
    assert opening_level(result, "top1") == 0.9
    assert opening_level(result, "top1", (0.5, 0.75)) == 0.75
    grey = run_of({0.5: [0.0], 0.75: [0.0]})
    unclear = replace(grey, measurements=(a_measurement("stem", 0.75, changes=(a_change(0.3, noise=0.4),)),))
    assert opening_level(unclear, "top1") == 0.75  # where there is a value at all
    estimated = replace(grey, measurements=(), estimates=tuple(replace(each, estimated=True) for each in result.shown),
                        spec=result.spec)  # fmt: skip
    assert opening_level(estimated, "top1") == 0.9


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("deltas", "lows", "highs", "possible", "shared", "open_"),
    [
        ([0.5, 4.5, 2.5], [0, 4, 2], [1, 5, 3], [(3, 3), (1, 1), (2, 2)], [3, 1, 2], set()),
        ([0.5, 1.5], [0, 1], [1, 2], [(1, 2), (1, 2)], [1, 1], {0, 1}),  # those that touch
        ([2, 9, 3, 8], [1, 8, 2, 7], [3, 10, 4, 9], None, [3, 1, 3, 1], None),  # two tied pairs rank as in a contest
        ([5, 4, 3], [0, 3.9, 2.9], [10, 4.1, 3.1], None, [1, 1, 2], None),  # a wide one does not tie all others
        ([5, 4, 3], [4.9, 3.9, 0], [5.1, 4.1, 6], [(1, 2), (2, 3), (1, 3)], [1, 2, 2], None),  # ranks never fall
        ([0.5, 1, 5.5, 9.5], [0, 0.5, 5, 9], [1, 1.5, 6, 10], None, None, {0, 1}),
        ([0, 0, 1.5], [0, 0, 1], [0, 0, 2], None, [2, 2, 1], set()),  # layers without any effect are a settled tie
        ([NAN, 0.5, 2.5], [NAN, 0, 2], [NAN, 1, 3], [(1, 3), (2, 3), (1, 2)], None, set()),  # it could lie anywhere
        ([INF, 1.5, INF], [INF, 1, INF], [INF, 2, INF], None, [1, 3, 1], set()),
        ([], [], [], [], [], set()),
    ],
)
def test_intervals_leave_so_many_ranks_possible(deltas, lows, highs, possible, shared, open_):
    assert possible is None or rank_intervals(lows, highs) == possible
    assert shared is None or shared_ranks(deltas, lows, highs) == shared
    assert open_ is None or undecided(lows, highs) == open_


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 400], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, NAN, 3, 4], [1, 5, NAN, 9], 1.0),
        ([1, 2, INF], [1, 2, 3], 1.0),
        ([1, 1, 1], [1, 2, 3], NAN),
        ([1], [1], NAN),
        ([], [], NAN),
        ([NAN, 1], [1, 2], NAN),
    ],
)
def test_spearman_is_defined_for_every_input(first, second, expected):
    assert spearman(first, second) == pytest.approx(expected, nan_ok=True)


def test_a_correlation_does_not_wait_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread imports it, torch is there and has next to nothing in it."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert spearman([1, 2, 3], [2, 4, 9]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("known", "baseline", "is_doubted"),
    [
        ("assumed", {"agreement": 1.0}, True),
        ("images", {"kl": 0.0}, True),
        ("assumed", {"top1": 0.9}, False),
        ("library", {"agreement": 1.0}, False),
    ],
)
def test_a_preparation_that_no_label_confirms_is_said(known, baseline, is_doubted):
    reading = Reading(task="classification", evidence=(("preparation", known),))
    found = preparation_doubt(replace(a_result(), baseline=baseline, reading=reading))
    assert found.startswith("How pictures are prepared for this network is a guess") is is_doubted
    assert not preparation_doubt(replace(a_result(), baseline=baseline, reading=None))
