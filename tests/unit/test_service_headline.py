from __future__ import annotations

from dataclasses import replace

import pytest

from senseapp.results import Status
from senseapp.service import headline, headline_level
from senseapp.spec import PruningConfig, QuantizationConfig, RunSpec, SensitivitySpec
from tests.fake_session import a_change, a_measurement, a_result


def spec_of(**settings):
    return RunSpec(sensitivity=SensitivitySpec(**settings))


def test_the_sentence_of_a_usual_run():
    result = a_result(
        [
            a_measurement("stem", delta=0.064),
            a_measurement("stage.0.conv", delta=0.02),
            a_measurement("stage.1.conv", delta=0.003),
            a_measurement("head", delta=-0.002),
            a_measurement("head", 0.25, delta=0.5),
        ]
    )
    assert headline(result) == "Most fragile: stem, −6.4 points at 50 %. 2 of 4 layers lose nothing measurable."


def test_one_layer_loses():
    result = a_result([a_measurement("stem", delta=0.064), a_measurement("head", delta=0.0)])
    assert headline(result).endswith("1 of 2 layers loses nothing measurable.")


def test_an_interval_that_just_touches_zero_is_nothing_measurable():
    touching = replace(a_change(0.05), ci_low=0.0)
    above = replace(a_change(0.05), ci_low=1e-9)
    for change, expected in ((touching, "No layer loses anything"), (above, "Every layer measured loses something.")):
        assert expected in headline(a_result([a_measurement("stem", changes=(change,))]))


def test_nothing_is_lost_anywhere():
    result = a_result([a_measurement("stem", delta=0.001), a_measurement("head", delta=-0.001)])
    assert headline(result) == "No layer loses anything measurable at 50 % (2 layers measured)."


def test_where_nothing_is_lost_the_first_stronger_loss_is_named():
    quiet = [a_measurement("stem", delta=0.001), a_measurement("head", delta=-0.001)]
    strong = [a_measurement("stem", 0.75, delta=0.2), a_measurement("head", 0.75, delta=0.0)]
    result = a_result([*quiet, *strong], spec=spec_of(levels=(0.25, 0.5, 0.75)))
    assert headline(result) == (
        "No layer loses anything measurable at 50 % (2 layers measured). "
        "Most fragile beyond that: stem, −20.0 points at 75 %."
    )


def test_members_of_a_group_count_as_layers():
    group = a_measurement("stem", delta=0.0, group="g1", members=("stem", "head"))
    result = a_result(
        [group, a_measurement("stage.0.conv", delta=0.3)], spec=spec_of(compression=PruningConfig(), levels=(0.5,))
    )
    assert headline(result) == (
        "Most fragile: stage.0.conv, −30.0 points at 50 %. 2 of 3 layers lose nothing measurable."
    )


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("top5", "stem, −6.4 points at 50 %"),
        ("agreement", "stem, −6.4 points of agreement at 50 %"),
        ("loss", "stem, +0.064 nats of loss at 50 %"),
        ("kl", "stem, +0.064 nats of KL divergence at 50 %"),
        ("sqnr", "stem, +0.064 noise per signal at 50 %"),
    ],
)
def test_each_metric_is_said_in_its_unit(metric, expected):
    result = a_result(
        [a_measurement("stem", changes=(a_change(0.064, metric=metric),))],
        spec=spec_of(levels=(0.5,), metric=metric),
    )
    assert expected in headline(result)


def test_a_drop_that_rounds_to_zero_has_no_sign():
    result = a_result([a_measurement("stem", changes=(a_change(0.0004, noise=0.0001),))])
    assert "stem, 0.0 points" in headline(result)


def test_bits_and_the_level_spoken_of():
    spec = spec_of(compression=QuantizationConfig(), levels=(8, 5, 3, 2))
    result = a_result([a_measurement("stem", 3.0, delta=0.1)], spec=spec)
    assert headline_level(result) == 3.0
    assert "−10.0 points at 3 bits" in headline(result)
    assert headline_level(a_result(spec=spec_of(levels=(0.25, 0.6, 0.9)))) == 0.6


def test_estimates_are_said_to_be_estimates():
    result = a_result(estimates=(a_measurement("head", delta=0.2, estimated=True),))
    assert headline(result).startswith("Most fragile by estimate: head, −20.0 points at 50 %.")
    assert "nothing measurable" not in headline(result)


def test_a_quick_run_speaks_of_the_metric_it_has():
    change = a_change(0.2, metric="kl")
    result = a_result(estimates=(a_measurement("head", changes=(change,), estimated=True),))
    assert result.metric == "top1"
    assert headline(result).startswith("Most fragile by estimate: head, +0.200 nats of KL divergence at 50 %.")


def test_a_run_without_figures():
    failed = a_measurement("stem", status=Status.FAILED, changes=(), reason="broke")
    assert headline(a_result([failed])) == "No layer could be measured at 50 %."
