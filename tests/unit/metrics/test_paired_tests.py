"""Noise does not choose: which of two ways to run a model is clearly better."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from senseapp.metrics.paired_tests import Answers, answer_information, calibrated_cross_entropy, clearly_better

N, CLASSES = 50, 10


def scores(seed, *, strength):
    """Return scores that favour the label by ``strength`` standard deviations, and the labels."""
    generator = np.random.default_rng(seed)
    labels = np.random.default_rng(1000 + seed).integers(0, CLASSES, N)
    found = generator.normal(size=(N, CLASSES))
    found[np.arange(N), labels] += strength
    return found, labels


def test_temperature_takes_contrast_away():
    found, labels = scores(0, strength=1)
    base = calibrated_cross_entropy(found, labels)
    for factor in (2.0, 5.0, 20.0):
        scaled = calibrated_cross_entropy(found * factor, labels)
        assert scaled.mean() == pytest.approx(base.mean(), abs=0.02)
    assert base.mean() <= np.log(CLASSES)


def test_useless_answers_cost_the_logarithm_of_the_classes():
    found, labels = scores(1, strength=0)
    assert calibrated_cross_entropy(100 * found, labels).mean() == pytest.approx(np.log(CLASSES), abs=0.05)


def test_information_is_that_of_images_and_classes():
    found = np.random.default_rng(0).normal(size=(N, CLASSES)) * 3
    answers = np.exp(found) / np.exp(found).sum(axis=1, keepdims=True)
    entropy = -(answers * np.log(answers)).sum(axis=1).mean()
    mean = answers.mean(axis=0)
    assert answer_information(found).mean() == pytest.approx(-(mean * np.log(mean)).sum() - entropy)
    assert answer_information(np.ones((N, CLASSES)) * np.arange(CLASSES) * 9).mean() == pytest.approx(0)


@pytest.mark.slow
def test_noise_chooses_no_more_often_than_its_significance():
    chosen = 0
    for seed in range(60):
        one, labels = scores(2 * seed, strength=1.5)
        other = one + np.random.default_rng(9000 + seed).normal(size=one.shape)
        worse = one + np.random.default_rng(19000 + seed).normal(size=one.shape)
        chosen += clearly_better(Answers.of(other, labels), Answers.of(worse, labels), significance=0.05)
    assert chosen <= 9  # 3 are expected; P(more than 9) < .1 %


def test_a_much_better_way_is_found_and_never_the_other_way_round():
    found, labels = scores(3, strength=4)
    poor = np.random.default_rng(5).normal(size=found.shape)
    good, bad = Answers.of(found, labels), Answers.of(poor, labels)
    assert clearly_better(good, bad, significance=0.001)
    assert not clearly_better(bad, good, significance=0.5)
    assert not clearly_better(good, good, significance=0.5)


def test_fewer_right_answers_are_never_better():
    surer = Answers(np.full(N, 0.1) + np.linspace(0, 0.01, N), N - 1)
    assert not clearly_better(surer, Answers(np.full(N, 0.5), N), significance=0.05)


def test_the_p_value_is_that_of_scipy():
    generator = np.random.default_rng(7)
    one, other = generator.gamma(1.0, size=N), generator.gamma(1.3, size=N)
    p = ttest_rel(other, one, alternative="greater").pvalue
    for significance in (p * 0.9, p * 1.1):
        decided = clearly_better(Answers(one, N), Answers(other, N), significance=significance)
        assert decided == (significance > p)


def test_a_handful_of_images_is_not_judged_by_a_t_test():
    few = Answers(np.linspace(0, 0.1, 5), 5), Answers(np.linspace(3, 3.2, 5), 5)
    assert not clearly_better(*few, significance=0.05)


def test_without_labels_a_little_more_information_is_not_enough():
    found, _ = scores(4, strength=3)
    plain, sharper = Answers.of(found * 2, None), Answers.of(found * 2.1, None)
    assert plain.num_correct is None
    assert not clearly_better(sharper, plain, significance=0.05)
    assert clearly_better(Answers.of(found * 4, None), Answers.of(found * 0.2, None), significance=0.01)


def test_scores_that_are_not_finite_are_judged_without_failing():
    found, labels = scores(6, strength=3)
    broken = np.full_like(found, np.nan)
    assert clearly_better(Answers.of(found, labels), Answers.of(broken, labels), significance=0.01)
