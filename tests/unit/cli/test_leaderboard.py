"""Rows of the leaderboard: what can be removed for one point, by prediction; and the table of a batch."""

import csv
import io
from dataclasses import replace

import pytest

from senseapp.cli.leaderboard import ALLOWED_DROP, leaderboard_csv, leaderboard_row, ranked
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.trade_off import trade_off
from tests.fake_session import LAYERS, a_change, a_measurement, a_result


def result_with(drop: float, *, metric: str = "top1"):  # type: ignore[no-untyped-def]
    """A run whose layers lose nothing at 50 % and ``drop`` each at 90 %."""
    spec = RunSpec(sensitivity=SensitivitySpec(levels=(0.5, 0.9)))
    found = [
        a_measurement(
            layer,
            level,
            changes=(a_change(0.0 if level == 0.5 else drop, metric=metric),),
            achieved_level=level,
            removed_params=int(level * 100 * (order + 1)),
        )
        for order, layer in enumerate(LAYERS)
        for level in (0.5, 0.9)
    ]
    return a_result(found, spec=spec)


def test_what_is_removable_is_the_most_that_is_predicted_to_cost_one_point() -> None:
    row = leaderboard_row(result_with(0.2), run="r")
    points = trade_off(result_with(0.2), "bytes", metric="top1")
    assert row["bytes_removable"] == max(point.figure for point in points if point.damage <= ALLOWED_DROP)
    stronger = [point.damage for point in points if point.figure > row["bytes_removable"]]
    assert stronger
    assert min(stronger) > ALLOWED_DROP
    assert [row[name] for name in ("model", "compression", "metric", "baseline", "images")] == [
        *("demo", "sparsity", "top1"),
        *(0.98, 100),
    ]
    assert row["drop_metric"] == "top1"


def test_gentler_curves_rank_first_and_unknown_ones_last() -> None:
    fragile, robust = (leaderboard_row(result_with(drop), run=str(drop)) for drop in (0.5, 0.001))
    unknown = leaderboard_row(a_result(estimates=(a_measurement(estimated=True),)), run="unknown")
    assert unknown["bytes_removable"] is None
    assert unknown["drop_metric"] == ""
    assert robust["bytes_removable"] > fragile["bytes_removable"]
    assert ranked([unknown, fragile, robust]) == [robust, fragile, unknown]


def test_without_labels_points_of_agreement_count() -> None:
    result = replace(result_with(0.2, metric="agreement"), metric="kl", baseline={"kl": 0.0})
    row = leaderboard_row(result, run="r")
    assert row["drop_metric"] == "agreement"
    assert row["bytes_removable"]
    assert row["baseline"] is None


def test_images_that_cannot_show_one_point_say_nothing_of_it() -> None:
    """20 images once led the leaderboard with 85 % removable for one point."""
    sure = result_with(0.2)
    unsure = [
        replace(item, changes=tuple(a_change(change.delta, noise=0.161) for change in item.changes))
        for item in sure.measurements
    ]
    few = leaderboard_row(replace(sure, measurements=tuple(unsure), num_samples=20), run="few")
    assert few["bytes_removable"] is None
    assert few["source"] == "too few images to say: 20 images"
    assert ranked([few, leaderboard_row(sure, run="many")])[-1] is few
    (line,) = csv.DictReader(io.StringIO(leaderboard_csv([few])))
    assert (line["bytes_removable"], line["source"]) == ("", "too few images to say: 20 images")


def test_the_table_has_one_line_for_each_run_and_says_what_is_predicted() -> None:
    rows = [leaderboard_row(result_with(0.2), run="one"), leaderboard_row(a_result(), run="two")]
    one, two = csv.DictReader(io.StringIO(leaderboard_csv(rows)))
    assert (one["run"], one["levels"], one["source"], one["drop_metric"]) == ("one", "0.5 0.9", "predicted", "top1")
    assert float(one["bytes_removable"]) == pytest.approx(rows[0]["bytes_removable"], abs=1e-4)
    assert (two["bytes_removable"], two["source"]) == ("", "")
