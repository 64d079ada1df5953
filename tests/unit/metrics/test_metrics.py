"""Per-image metrics: what counts as wrong, which way is worse, what broken class scores do."""

import math

import pytest
import torch

from senseapp.core.errors import InvalidInput, InvalidSpec
from senseapp.metrics import METRICS, change_of, divergence_among, judging_among, primary_among
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

NAN, INF = float("nan"), float("inf")
CLASS_METRICS = ("top1", "top5", "loss", "kl", "agreement", "sqnr")


def change(metric, before, after, labels=None):
    before, after = torch.tensor(before), torch.tensor(after)
    return change_of(metric, METRICS[metric].moments(before, after, None if labels is None else torch.tensor(labels)))


def test_every_metric_is_registered_under_its_name_and_described():
    multilabel = ["lrap", "bce", "bernoulli_kl", "label_agreement"]
    segmentation = ["miou", "pixel_accuracy", "pixel_kl", "pixel_agreement", "miou_agreement"]
    precision = ["map", "map50", "map_small", "map_medium", "map_large"]
    detection = [*precision, "objects_f1", "agreement_map", "agreement_map50", "detection_kl"]
    values = ["fidelity", "squared_error", "cosine_distance"]
    assert list(METRICS) == [*CLASS_METRICS, *multilabel, *segmentation, *detection, *values]
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.label
        assert metric.help.endswith(".")
        assert metric.notable > 0


def test_the_settings_refuse_a_metric_that_there_is_not():
    with pytest.raises(
        InvalidSpec, match=r"must be one of top1, top5, loss, kl, agreement, sqnr, lrap, bce, .* got 'speed'"
    ):
        SensitivitySpec(metric="speed")


@pytest.mark.parametrize(("num_classes", "has_top5"), [(1, False), (5, False), (6, True)])
def test_top5_is_offered_above_five_classes_only(num_classes, has_top5):
    assert ("top5" in CLASSIFICATION.metrics(has_labels=True, num_outputs=num_classes)) is has_top5


def test_top1_counts_lost_and_won_images():
    before = [[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]
    outcome = change("top1", before, [[2.0, 1.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], [0, 0, 0, 1])
    assert (outcome.baseline, outcome.value, outcome.delta) == (0.75, 0.5, 0.25)
    assert outcome.moments == (4, 3, 1, 3, 1)


def test_top5_needs_the_class_among_the_first_five():
    scores = [[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]
    swapped = [[6.0, 5.0, 4.0, 3.0, 1.0, 2.0]]
    assert change("top5", scores, swapped, [4]).delta == 1
    assert change("top5", scores, swapped, [3]).delta == 0
    assert change("top5", scores, swapped, [5]).delta == -1


def test_constant_scores_name_the_first_class():
    constant = [[0.5] * 7] * 3
    assert change("top1", constant, constant, [0, 1, 6]).value == pytest.approx(1 / 3)
    assert change("top5", constant, constant, [0, 4, 5]).value == pytest.approx(2 / 3)
    assert change("agreement", constant, constant).value == 1


def test_agreement_needs_no_label_and_counts_other_answers():
    outcome = change("agreement", [[1.0, 0.0], [1.0, 0.0]], [[0.9, 0.0], [0.0, 1.0]])
    assert (outcome.baseline, outcome.value, outcome.delta) == (1.0, 0.5, 0.5)


def test_sqnr_of_an_error_of_a_tenth_is_twenty_decibels():
    outcome = change("sqnr", [[1.0, 2.0], [3.0, 4.0]], [[1.1, 2.2], [3.3, 4.4]])
    assert outcome.value == pytest.approx(20, abs=1e-4)
    assert outcome.delta == pytest.approx(0.01, rel=1e-5)
    assert outcome.baseline == INF


def test_unchanged_scores_give_no_change_in_any_metric():
    scores = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 8
    for metric in CLASS_METRICS:
        outcome = change_of(metric, METRICS[metric].moments(scores, scores.clone(), labels))
        assert outcome.delta == 0, metric
        assert outcome.value == (INF if metric == "sqnr" else outcome.baseline)
        assert outcome.ci_low <= 0 <= outcome.ci_high


@pytest.mark.parametrize("metric", ["top1", "agreement"])
def test_a_nan_row_counts_as_wrong(metric):
    assert change(metric, [[1.0, 0.0], [1.0, 0.0]], [[NAN, 0.0], [1.0, 0.0]], [0, 0]).delta == 0.5


def test_two_nan_rows_do_not_agree():
    assert change("agreement", [[NAN, 0.0]], [[NAN, 0.0]]).delta == 1


@pytest.mark.parametrize("metric", ["loss", "kl", "sqnr"])
@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_broken_compressed_scores_are_damage_without_bound(metric, broken):
    before = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    outcome = change(metric, before, [[broken, 0.0], [1.0, 0.0], [0.0, 1.0]], [0, 0, 1])
    assert (outcome.delta, outcome.ci_low, outcome.ci_high) == (INF, INF, INF)
    assert outcome.value == (-INF if metric == "sqnr" else INF)


@pytest.mark.parametrize("metric", ["loss", "kl", "sqnr"])
def test_a_broken_baseline_makes_the_change_undefined(metric):
    outcome = change(metric, [[NAN, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], [0, 0])
    assert math.isnan(outcome.delta)
    assert math.isnan(outcome.ci_low)


def test_a_class_that_the_original_rules_out_adds_nothing_to_kl():
    assert change("kl", [[0.0, 0.0, -INF]], [[0.0, 0.0, -INF]]).delta == 0


def test_one_image_gives_the_widest_interval():
    assert change("loss", [[1.0, 0.0]], [[0.0, 1.0]], [0]).ci_high == INF
    assert change("loss", [[1.0, 0.0]], [[0.0, 1.0]], [0]).ci_low == -INF
    assert change("kl", [[1.0, 0.0]], [[0.0, 1.0]]).ci_low == 0


def test_one_class_runs_through_every_metric():
    ones = torch.ones(3, 1)
    for metric in CLASSIFICATION.metrics(has_labels=True, num_outputs=1):
        assert (
            change_of(metric, METRICS[metric].moments(ones, 2 * ones, torch.zeros(3, dtype=torch.long))).num_samples
            == 3
        )


def test_moments_are_plain_numbers_and_add_up():
    before, after = torch.randn(2, 9, 7, generator=torch.Generator().manual_seed(1)).unbind()
    labels = torch.arange(9) % 7
    for metric in CLASS_METRICS:
        whole = METRICS[metric].moments(before, after, labels)
        parts = [METRICS[metric].moments(before[cut], after[cut], labels[cut]) for cut in (slice(4), slice(4, 9))]
        assert all(type(number) is float for number in whole)
        assert METRICS[metric].merge(*parts) == pytest.approx(whole, rel=1e-13)


def test_half_precision_scores_are_summed_in_float64():
    scores = torch.full((5000, 2), 1.0, dtype=torch.bfloat16)
    assert METRICS["sqnr"].moments(scores, scores, None)[1] == 10000


@pytest.mark.parametrize(
    ("metric", "before", "after", "labels", "message"),
    [
        ("speed", (2, 3), (2, 3), None, "must be one of top1"),
        ("kl", (2, 3), (2, 4), None, r"\(2, 3\) before and \(2, 4\) after"),
        ("kl", (2, 3, 1), (2, 3, 1), None, "must be \\(images, classes\\)"),
        ("top1", (2, 3), (2, 3), None, "needs labelled images"),
        ("top1", (2, 3), (2, 3), [0], "as many labels"),
        ("loss", (2, 3), (2, 3), [0, 3], "from 0 to 2, got 0 to 3"),
        ("loss", (2, 3), (2, 3), [-1, 2], "from 0 to 2, got -1 to 2"),
    ],
)
def test_wrong_arguments_are_refused_with_a_reason(metric, before, after, labels, message):
    with pytest.raises(InvalidInput, match=message):
        METRICS.named(metric).moments(
            torch.zeros(before), torch.zeros(after), None if labels is None else torch.tensor(labels)
        )


def test_few_images_are_ranked_by_the_divergence_and_a_model_is_judged_by_its_answers():
    assert divergence_among(("top1", "kl", "sqnr")) == "kl"
    assert divergence_among(("top1", "loss")) is None
    assert primary_among(("agreement", "loss", "top1")) == "top1"
    assert primary_among(("kl", "agreement")) == "agreement"
    assert primary_among(("kl", "agreement"), labelled=True) is None
    assert judging_among(("kl", "loss", "agreement", "top1")) == "top1"
    assert judging_among(("loss", "kl")) == "kl"
    assert (judging_among(("loss",)), judging_among((), otherwise="loss")) == ("loss", "loss")


def test_an_estimate_of_kl_is_drawn_up_to_what_the_answers_hold():
    assert METRICS["kl"].largest_estimate(10) == pytest.approx(math.log(10))
    assert METRICS["kl"].largest_estimate(1) == METRICS["top1"].largest_estimate(10) == INF


def test_experts_read_the_terms_of_the_field_and_the_same_figures() -> None:
    terms = METRICS["kl"].in_terms
    assert (terms.label, terms.axis, terms.change_text(0.064)) == (
        "KL divergence",
        "KL divergence (nats)",
        "0.064 nats",
    )
    assert METRICS["kl"].change_text(0.064) == "0.064"
    assert METRICS["top1"].in_terms.change_title == "Drop in top-1 accuracy"
    assert METRICS["loss"].in_terms is METRICS["loss"]
