from dataclasses import replace

import pytest

from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.records.headline import headline, headline_level
from senseapp.records.measurement import Status
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.views.charts.layers import marked
from senseapp.views.frames.results import at_level, measurement_frame
from tests.fake_session import a_change, a_measurement
from tests.fake_session import a_result as any_result


def spec_of(**settings):
    """Return the settings of a run by right answers, as a person has chosen."""
    return RunSpec(sensitivity=SensitivitySpec(**{"metric": "top1"} | settings))


def a_result(measurements=(), *, spec=None, **changes):
    return any_result(measurements, spec=spec or spec_of(), **changes)


def test_the_metric_is_that_of_the_bars_and_named():
    """Harm unless a person has chosen another: live views have nothing else, so it stays the same until the end."""
    found = [
        a_measurement("stem", delta=0.064),
        a_measurement("head", changes=(a_change(0.0, metric="kl", noise=0.1),)),
    ]
    assert headline(any_result(found)) == (
        "Most fragile: stem, harm 0.128 at 50 %. Too few images to say for 1 of 2 layers: 100 images cannot show harm "
        "under about 0.100."
    )


def test_harm_is_said_as_answers_that_change_where_measurements_tell():
    pairs = [(0.1 * place, 0.05 * place) for place in range(1, 9)]
    found = [
        a_measurement(f"layer{harm:g}", changes=(a_change(harm, metric="kl"), a_change(share, metric="agreement")))
        for harm, share in pairs
    ]
    assert headline(any_result(found)).startswith("Most fragile: layer0.8 changes about 40 of 100 answers at 50 %.")


def test_the_sentence_of_a_usual_run():
    result = a_result(
        [
            a_measurement("stem", delta=0.064),
            a_measurement("stage.0.conv", delta=0.02),
            a_measurement("stage.1.conv", changes=(a_change(0.003, noise=0.004),)),
            a_measurement("head", changes=(a_change(-0.002, noise=0.007),)),
            a_measurement("head", 0.25, delta=0.5),
        ]
    )
    assert headline(result) == (
        "Most fragile: stem loses 6.4 points at 50 %. 2 of 4 layers lose nothing measurable: 100 images show losses "
        "from about 0.6 points."
    )


def test_layers_that_few_images_cannot_tell_are_not_said_to_lose_nothing():
    unclear = a_measurement("head", changes=(a_change(0.0, noise=0.16),))
    assert headline(replace(a_result([a_measurement("stem", delta=0.064), unclear]), num_samples=20)) == (
        "Most fragile: stem loses 6.4 points at 50 %. Too few images to say for 1 of 2 layers: 20 images "
        "cannot show losses under about 16 points."
    )


def test_what_few_images_cannot_show_is_the_answer_where_nothing_is_seen():
    def unclear(layer, *metrics):
        return a_measurement(layer, changes=tuple(a_change(0.0, metric=metric, noise=0.16125) for metric in metrics))

    few = replace(a_result([unclear("stem", "top1", "kl"), unclear("head", "top1", "kl")]), num_samples=20)
    assert headline(few) == (
        "20 images cannot show losses under about 16 points at 50 % (2 layers measured): add images, or look at harm."
    )
    without = replace(a_result([unclear("stem", "top1")]), num_samples=20)
    assert headline(without).endswith("(1 layer measured): add images.")
    assert headline(replace(few, spec=RunSpec())).endswith("add images.")


def test_a_model_that_does_not_do_its_task_is_the_headline():
    result = replace(a_result([a_measurement("stem", delta=0.064)]), num_samples=140, baseline={"top1": 0.07})
    assert headline(result).startswith("The uncompressed model is right on 7 % of 140 images, near chance")
    assert "Most fragile" not in headline(result)


def test_layers_that_surely_lose_something_may_still_be_tolerable_or_not():
    unclear = a_measurement("head", changes=(a_change(0.008, noise=0.004),))  # 0.4 to 1.2 points
    assert headline(a_result([a_measurement("stem", delta=0.064), unclear])) == (
        "Most fragile: stem loses 6.4 points at 50 %. Every layer measured loses something; 100 images cannot show if "
        "that is tolerable for 1 of 2 layers."
    )


def test_where_nothing_is_lost_the_first_stronger_loss_is_named():
    quiet = [a_measurement("stem", delta=0.0), a_measurement("head", delta=-0.001)]
    strong = [a_measurement("stem", 0.75, delta=0.2), a_measurement("head", 0.75, delta=0.15)]
    result = a_result([*quiet, *strong], spec=spec_of(levels=(0.25, 0.5, 0.75)))
    assert headline(result) == (
        "No layer loses anything measurable at 50 % (2 layers measured): 100 images show losses from about 1.0 points. "
        "Most fragile beyond that: stem loses 20.0 points at 75 %."
    )


def test_groups_and_their_layers_are_counted_apart():
    group = a_measurement("stem", delta=0.0, group="g1", members=("stem", "head"))
    result = a_result(
        [group, a_measurement("stage.0.conv", delta=0.3)], spec=spec_of(compression=PruningConfig(), levels=(0.5,))
    )
    assert headline(result) == (
        "Most fragile: stage.0.conv loses 30.0 points at 50 %. 1 of 2 groups (3 layers) loses nothing measurable: 100 "
        "images show losses from about 1.0 points."
    )


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("top5", "stem loses 6.4 points at 50 %"),
        ("agreement", "stem changes 6.4 % of the answers at 50 %"),
        ("loss", "stem, 0.064 nats of loss at 50 %"),
        ("kl", "stem, harm 0.064 at 50 %"),
        ("sqnr", "stem, 0.064 noise per signal at 50 %"),
    ],
)
def test_each_metric_is_said_in_its_unit(metric, expected):
    result = a_result(
        [a_measurement("stem", changes=(a_change(0.064, metric=metric),))], spec=spec_of(levels=(0.5,), metric=metric)
    )
    assert expected in headline(result)


def test_bits_and_the_level_spoken_of():
    spec = spec_of(compression=QuantizationConfig(), levels=(8, 5, 3, 2))
    result = a_result([a_measurement("stem", 3.0, delta=0.1)], spec=spec)
    assert headline_level(result) == 3.0
    assert "loses 10.0 points at 3 bits" in headline(result)
    assert headline_level(a_result(spec=spec_of(levels=(0.25, 0.6, 0.9)))) == 0.6


def test_estimates_are_said_to_be_estimates():
    result = a_result(estimates=(a_measurement("head", delta=0.2, estimated=True),))
    assert headline(result).startswith("Most fragile by estimate: head loses 20.0 points at 50 %.")
    assert "nothing measurable" not in headline(result)


def test_a_cancelled_run_speaks_of_what_was_measured_and_its_chart_marks_no_bar_beside_a_longer_one():
    measured = [a_measurement("stem", delta=0.064), a_measurement("stage.0.conv", delta=0.02)]
    estimates = (a_measurement("stem", delta=0.05, estimated=True), a_measurement("head", delta=0.2, estimated=True))
    result = a_result(measured, estimates=estimates)
    assert headline(result).startswith("Most fragile of 2 layers measured: stem loses 6.4 points at 50 %.")
    rows = marked(at_level(measurement_frame(result, "top1"), headline_level(result), by_sensitivity=True))
    assert [(row.layer, row.extreme) for row in rows.itertuples() if row.extreme] == [("stage.0.conv", "loses least")]
    whole = a_result([*measured, a_measurement("head", delta=0.2)], estimates=estimates)
    assert headline(whole).startswith("Most fragile: head loses 20.0 points at 50 %.")


def test_a_quick_run_speaks_of_the_metric_it_has():
    change = a_change(0.2, metric="kl")
    result = a_result(estimates=(a_measurement("head", changes=(change,), estimated=True),))
    assert result.metric == "top1"
    assert headline(result).startswith("Most fragile by estimate: head, harm 0.200 at 50 %.")


def test_a_run_without_figures():
    failed = a_measurement("stem", status=Status.FAILED, changes=(), reason="broke")
    assert headline(a_result([failed])) == "No layer could be measured at 50 %."
