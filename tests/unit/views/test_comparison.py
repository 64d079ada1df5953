"""What a comparison is drawn from, how it is drawn, and what is said of it."""

from dataclasses import replace
from typing import Any

import pytest

from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.metrics import METRICS
from senseapp.records.comparison import Comparison, Side, are_one_network, compare
from senseapp.records.measurement import RunResult
from senseapp.records.spec import DataSpec, RunSpec, SensitivitySpec
from senseapp.views.charts.layers import paired_bars
from senseapp.views.frames.comparison import (
    caveat_of_sides,
    finding,
    matching_text,
    moves_frame,
    pair_frame,
    side_labels,
    unmatched_frame,
)
from senseapp.views.words.wording import differing_settings
from tests.pages.records import FRAGILE, NAMES, NOT_PRUNABLE, change, result


def with_drops(whole: RunResult, drops: dict[str, float]) -> RunResult:
    """Give layers another loss of right answers, known to half a point."""
    changed = tuple(
        replace(item, changes=(change("top1", drops[item.layer], 0.005),)) if item.layer in drops else item
        for item in whole.measurements
    )
    return replace(whole, measurements=changed)


def side(whole: RunResult, title: str = "demo", **options: Any) -> Side:
    return Side(title=title, result=whole, **({"level": 0.5} | options))


def two(drops: dict[str, float], **options: Any) -> Comparison:
    """The made-up run beside one in which some layers lose other amounts."""
    return compare([side(result()), side(with_drops(result(), drops), "other", **options)], "top1")


SWAPPED = {"conv1": 0.2, FRAGILE: 0.0}


def test_each_side_has_a_label_of_its_own() -> None:
    bits = result(RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4))))
    assert side_labels([side(result()), side(bits, level=4.0)]) == ["A · demo, 50 %", "B · demo, 4 bits"]
    parts = [side(result(estimates=True), part=part) for part in ("estimated", "measured")]
    assert side_labels(parts) == ["A · estimated", "B · measured"]


def test_there_is_a_row_for_each_layer_and_side_in_network_order() -> None:
    frame = pair_frame(two(SWAPPED), [METRICS["top1"]] * 2)
    assert list(frame["layer"]) == [name for name in NAMES for _ in range(2)]
    both = frame[frame["layer"] == "conv1"]
    assert list(both["drop"]) == pytest.approx([0.0, 20.0])
    assert list(both["change_text"]) == ["0 points", "20.0 points"]
    assert both["description"].iloc[1] == "conv1, B · other, 50 %: 20.0 points, measured"


def test_a_rank_names_the_ranks_that_the_noise_leaves() -> None:
    texts = (
        pair_frame(two(SWAPPED), [METRICS["top1"]] * 2)
        .query("side.str.startswith('A')")
        .set_index("layer")["rank_text"]
    )
    assert texts[FRAGILE] == "1"
    assert texts["fc"] == "2 (2 to 6)"


def test_the_axis_of_shares_ends_at_100() -> None:
    rows, labels = pair_frame(two({FRAGILE: 1.0}), [METRICS["top1"]] * 2), ["A · demo, 50 %", "B · other, 50 %"]
    drawn = paired_bars(rows, METRICS["top1"], labels=labels).to_dict()
    assert drawn["layer"][1]["encoding"]["x"]["scale"]["domain"][1] == 100


def test_moves_say_where_a_layer_is_more_fragile_and_whether_that_is_sure() -> None:
    moves = moves_frame(two(SWAPPED)).set_index("layer")
    assert moves.loc["conv1", ["shift", "fragile_in", "sure"]].tolist() == [5.0, "B", "yes"]
    assert moves.loc[FRAGILE, "fragile_in"] == "A"
    assert moves.loc["conv1", "rank_B"] == "1"


def test_moves_of_estimates_are_never_called_sure() -> None:
    whole = result(estimates=True)
    measured = tuple(
        replace(item, changes=tuple(replace(one, delta=-one.delta) for one in item.changes))
        for item in whole.measurements
    )
    sides = [side(replace(whole, measurements=measured), part=part) for part in ("estimated", "measured")]
    comparison = compare(sides, "kl")
    assert set(moves_frame(comparison)["sure"]) == {"unknown"}
    assert (
        finding(comparison)
        == "Estimate and measurement rank 6 layers in the opposite order: −1.00, where 1 is the same order."
    )


def test_what_is_missing_is_listed_with_the_reason() -> None:
    pruning = result(RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.5,))))
    comparison = compare([side(result()), side(pruning, "pruning")], "top1")
    assert unmatched_frame(comparison).to_numpy().tolist() == [
        [NOT_PRUNABLE, "has a value", "Its channels are added to those of layer2.0.conv2."]
    ]
    assert matching_text(comparison, METRICS["top1"]).endswith("5 layers matched by name · 1 without a value in B")


@pytest.mark.parametrize(
    ("drops", "words"),
    [
        (
            {},
            "almost alike: 1.00, where 1 is the same order. No layer surely changed place: what differs may be chance.",
        ),
        (
            dict(zip(NAMES, (0.9, 0.8, 0.7, 0.6, 0.5, 0.4), strict=True)),
            "in the opposite order: −0.83, where 1 is the same order.",
        ),
        (
            {"conv1": 0.9},
            "differently: 0.14, where 1 is the same order. 2 layers changed place in this order by more than chance.",
        ),
    ],
)
def test_the_finding_says_how_far_the_ranks_agree(drops: dict[str, float], words: str) -> None:
    assert finding(two(drops)).startswith(f"A and B rank 6 layers {words}")


def test_without_an_order_there_is_no_correlation_to_tell() -> None:
    assert "no order to compare" in finding(two(dict.fromkeys(NAMES, 0.1)))
    nothing = compare([side(result()), side(result(names=("x", "y")))], "top1")
    assert finding(nothing) == "No layer has a value in every run, so there are no ranks to compare."
    assert len(unmatched_frame(nothing)) == 8


def test_random_inputs_of_one_side_are_said() -> None:
    random = result(RunSpec(data=DataSpec(kind="random"), sensitivity=SensitivitySpec(levels=(0.5,))))
    assert caveat_of_sides([side(result()), side(random)]) == "B: Indicative only: the inputs are random"


def test_only_settings_that_differ_are_listed() -> None:
    other = result(RunSpec(sensitivity=SensitivitySpec(levels=(0.25, 0.5, 0.75), seed=7)))
    assert differing_settings([side(result()), side(other)]) == {
        "Passes": tuple(f"computed in 32-bit numbers · random choices of seed {seed}" for seed in (0, 7))
    }


def test_layers_of_different_networks_are_not_matched_by_their_names() -> None:
    whole = result()
    assert are_one_network([side(whole), side(with_drops(whole, SWAPPED))])
    assert not are_one_network([side(whole), side(result(names=("x", "y", *NAMES[2:3])))])
    first, *others = whole.profile.layers
    wider = replace(whole.profile, layers=(replace(first, num_params=2 * first.num_params), *others))
    assert not are_one_network([side(whole), side(replace(whole, profile=wider))])
