"""Laws of metrics, intervals and ranks over arbitrary inputs."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from senseapp.metrics import change_of
from senseapp.metrics.intervals import discordant_interval
from senseapp.records.resolution import rank_intervals, shared_ranks, undecided
from senseapp.tasks import METRICS  # with those of all tasks
from tests.cases import examples

finite = st.floats(-100, 100)


@st.composite
def scored_images(draw):
    num_images, num_classes = draw(st.integers(2, 12)), draw(st.integers(2, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    before = 3 * torch.randn(num_images, num_classes, generator=generator)
    after = before + draw(st.sampled_from([0.0, 1e-4, 0.3, 3.0])) * torch.randn(before.shape, generator=generator)
    return before, after, torch.randint(num_classes, (num_images,), generator=generator)


OF_SCORES = sorted(name for name, metric in METRICS.items() if metric.task in ("", "classification", "multilabel"))
"""Those that compare (N, K); metrics of pixels and boxes have tests of their own."""


@st.composite
def metrics_and_images(draw):
    """A metric of scores, scores before and after, and targets of its task."""
    metric, (before, after, labels) = draw(st.sampled_from(OF_SCORES)), draw(scored_images())
    if METRICS[metric].task == "multilabel":  # any truths: 0, 1 or unknown, the first one known
        values = torch.tensor([0.0, 1.0, math.nan])
        seed = draw(st.integers(0, 2**31))
        labels = values[torch.randint(3, before.shape, generator=torch.Generator().manual_seed(seed))]
        labels[:, 0].nan_to_num_(1.0)
    return metric, before, after, labels


SHARES = ("top1", "top5", "agreement")
"""Of whole images, whose sums are whole numbers."""


@given(metrics_and_images(), st.integers(1, 11))
@settings(max_examples=examples(80), deadline=None)
def test_shards_merge_to_the_whole(given_metric, cut):
    metric, before, after, labels = given_metric
    whole = METRICS[metric].moments(before, after, labels)
    merged = METRICS[metric].merge(
        METRICS[metric].moments(before[:cut], after[:cut], labels[:cut]),
        METRICS[metric].moments(before[cut:], after[cut:], labels[cut:]),
    )
    assert merged == whole if metric in SHARES else merged == pytest.approx(whole, rel=1e-12, abs=1e-12)


@given(metrics_and_images(), st.sampled_from([0.8, 0.95, 0.999]))
@settings(max_examples=examples(120), deadline=None)
def test_intervals_hold_the_estimate_and_stay_in_range(given_metric, confidence):
    metric, before, after, labels = given_metric
    change = change_of(metric, METRICS[metric].moments(before, after, labels), confidence)
    slack = 1e-9 * (1 + abs(change.delta))
    assert change.ci_low - slack <= change.delta <= change.ci_high + slack
    if metric in (*SHARES, "label_agreement"):
        assert -1 <= change.ci_low <= change.ci_high <= 1
    if metric in ("kl", "agreement", "sqnr", "bernoulli_kl", "label_agreement"):
        assert change.ci_low >= 0


@st.composite
def changed_counts(draw):
    """Images that got worse, images that got better, all images, and a confidence."""
    num_samples = draw(st.integers(2, 3000))
    changed = draw(st.integers(0, num_samples))
    worse = draw(st.integers(0, changed))
    return worse, changed - worse, num_samples, draw(st.sampled_from([0.5, 0.8, 0.95, 1 - 0.05 / 300, 1 - 1e-12]))


@given(changed_counts())
@settings(deadline=None)
def test_accuracy_intervals_hold_the_estimate_are_no_points_and_mirror(counts):
    worse, better, num_samples, confidence = counts
    low, high = discordant_interval(worse, better, num_samples, confidence)
    assert -1 <= low <= (worse - better) / num_samples <= high <= 1
    assert high - low > 0.4 / (num_samples + 1)  # z² is 0.45 at the smallest confidence
    assert discordant_interval(better, worse, num_samples, confidence) == (-high, -low)


@given(changed_counts())
@settings(deadline=None)
def test_accuracy_intervals_rise_with_each_image_that_gets_worse(counts):
    worse, better, num_samples, confidence = counts
    assume(confidence <= 0.998)  # beyond, the spread that a first changed image shows moves the lower end by more
    ends = discordant_interval(worse, better, num_samples, confidence)
    further = []
    if better:
        further = [(worse, better - 1), (worse + 1, better - 1)]
    if worse + better < num_samples:
        further.append((worse + 1, better))
    for more, less in further:
        moved = discordant_interval(more, less, num_samples, confidence)
        assert all(after >= before - 1e-9 for before, after in zip(ends, moved, strict=True))


@given(scored_images(), st.sampled_from(["top1", "top5", "loss"]))
@settings(max_examples=examples(60), deadline=None)
def test_swapping_before_and_after_turns_the_sign(images, metric):
    before, after, labels = images
    there = change_of(metric, METRICS[metric].moments(before, after, labels))
    back = change_of(metric, METRICS[metric].moments(after, before, labels))
    assert there.delta == pytest.approx(-back.delta, abs=1e-12)
    assert (there.ci_low, there.ci_high) == pytest.approx((-back.ci_high, -back.ci_low), abs=1e-6)
    assert there.value == pytest.approx(back.baseline)


@given(scored_images(), st.sampled_from(["top1", "top5", "loss", "kl", "agreement"]))
@settings(max_examples=examples(60), deadline=None)
def test_a_positive_delta_is_a_worse_value(images, metric):
    before, after, labels = images
    change = change_of(metric, METRICS[metric].moments(before, after, labels))
    worsening = change.value - change.baseline
    if METRICS[metric].higher_is_better:
        worsening = -worsening
    assert change.delta == pytest.approx(worsening, abs=1e-12)


intervals = st.lists(st.tuples(finite, st.floats(0, 20)), min_size=1, max_size=12)


@given(intervals, st.randoms(use_true_random=False))
def test_ranks_follow_their_layers_when_the_order_changes(pairs, random):
    order = list(range(len(pairs)))
    random.shuffle(order)
    lows, highs = [c - w for c, w in pairs], [c + w for c, w in pairs]
    moved = [lows[i] for i in order], [highs[i] for i in order]
    assert rank_intervals(*moved) == [rank_intervals(lows, highs)[i] for i in order]
    assert undecided(*moved) == {order.index(i) for i in undecided(lows, highs)}


@given(intervals)
def test_rank_intervals_hold_the_rank_of_the_estimate(pairs):
    deltas = [centre for centre, _ in pairs]
    lows, highs = [c - w for c, w in pairs], [c + w for c, w in pairs]
    for delta, (best, worst) in zip(deltas, rank_intervals(lows, highs), strict=True):
        assert best <= 1 + sum(other > delta for other in deltas) <= worst


@given(intervals)
def test_shared_ranks_fall_with_delta_and_split_what_is_told_apart(pairs):
    deltas = [centre for centre, _ in pairs]
    lows, highs = [c - w for c, w in pairs], [c + w for c, w in pairs]
    ranks = shared_ranks(deltas, lows, highs)
    for i in range(len(pairs)):
        for j in range(len(pairs)):
            if deltas[i] > deltas[j]:
                assert ranks[i] <= ranks[j]
    sure = [best for best, _ in rank_intervals(lows, highs)]
    assert all(rank >= best for rank, best in zip(ranks, sure, strict=True))
    if not undecided(lows, highs):
        assert ranks == [1 + sum(other > delta for other in deltas) for delta in deltas]
