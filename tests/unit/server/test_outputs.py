import csv
import io

import pytest

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.records.measurement import Status
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.outputs import COLUMNS, default_targets, sensitivity_csv
from tests.fake_session import LAYERS, a_change, a_measurement, a_profile, a_result

HEADER = "layer,layer_type,params,macs,compression,level,metric,baseline,value,delta,ci_low,ci_high,status,group"


def spec_of(compression, *levels):
    return RunSpec(sensitivity=SensitivitySpec(compression=compression, levels=levels))


def rows_of(result):
    return list(csv.DictReader(io.StringIO(sensitivity_csv(result))))


def weighted_mean(targets):
    params = {layer.name: layer.num_params for layer in a_profile().layers}
    return sum(targets[name] * params[name] for name in targets) / sum(params[name] for name in targets)


def test_the_columns_are_exactly_those_promised():
    assert sensitivity_csv(a_result()) == HEADER + "\n"
    assert ",".join(COLUMNS) == HEADER


def test_one_row_per_layer_level_and_metric():
    rows = rows_of(a_result([a_measurement(layer, level, delta=0.5) for layer in LAYERS for level in (0.25, 0.5)]))
    assert len(rows) == len(LAYERS) * 2 * 2
    assert rows[0] == {
        "layer": "stem",
        "layer_type": "Conv2d",
        "params": "100",
        "macs": "1000",
        "compression": "sparsity",
        "level": "25",
        "metric": "top1",
        "baseline": "0.98",
        "value": "0.48",
        "delta": "0.5",
        "ci_low": "0.49",
        "ci_high": "0.51",
        "status": "measured",
        "group": "",
    }


@pytest.mark.parametrize(("level", "shown"), [(0.07, "7"), (0.3, "30"), (0.125, "12.5"), (1 / 3, "33.33333333")])
def test_percent_has_no_binary_dust(level, shown):
    spec = spec_of(SparsityConfig(), level)
    assert rows_of(a_result([a_measurement("stem", level)], spec=spec))[0]["level"] == shown


def test_members_of_a_group_have_a_row_each():
    group = a_measurement("stem", group="g1", members=("stem", "head"))
    rows = [row for row in rows_of(a_result([group], spec=spec_of(PruningConfig(), 0.5))) if row["metric"] == "top1"]
    assert [(row["layer"], row["params"], row["group"]) for row in rows] == [
        ("stem", "100", "g1"),
        ("head", "400", "g1"),
    ]
    assert rows[0]["delta"] == rows[1]["delta"]


@pytest.mark.parametrize("status", [Status.FAILED, Status.NOT_APPLICABLE])
def test_what_could_not_be_measured_has_a_row_without_figures(status):
    (row,) = rows_of(a_result([a_measurement("stem", status=status, changes=(), reason="no")]))
    assert (row["status"], row["metric"], row["level"]) == (status.value, "top1", "50")
    assert {row[name] for name in ("baseline", "value", "delta", "ci_low", "ci_high")} == {""}


def test_estimates_are_marked_and_give_way_to_measurements():
    result = a_result(
        [a_measurement("stem", delta=0.1)],
        estimates=tuple(a_measurement(layer, delta=0.9, estimated=True) for layer in ("stem", "head")),
    )
    statuses = {(row["layer"], row["status"]) for row in rows_of(result)}
    assert statuses == {("stem", "measured"), ("head", "estimated")}


def test_targets_average_to_half_weighted_by_parameters_and_spare_the_fragile():
    deltas = {"stem": 0.30, "stage.0.conv": 0.10, "stage.1.conv": 0.05, "head": 0.0}
    targets = default_targets(a_result([a_measurement(layer, delta=delta) for layer, delta in deltas.items()]))
    assert list(targets) == list(LAYERS)
    assert weighted_mean(targets) == pytest.approx(50, abs=1e-4)
    assert sorted(targets, key=targets.get) == list(LAYERS)
    assert all(0 <= percent <= 90 for percent in targets.values())


def test_targets_use_the_level_nearest_to_half():
    far = [a_measurement("stem", 0.25, delta=0.0), a_measurement("head", 0.25, delta=0.1)]
    near = [a_measurement("stem", 0.5, delta=0.5), a_measurement("head", 0.5, delta=0.2)]
    targets = default_targets(a_result([*far, *near]))
    assert targets["head"] > targets["stem"]


def test_members_of_a_group_share_their_target():
    group = a_measurement("stem", delta=0.2, group="g1", members=("stem", "head"))
    alone = a_measurement("stage.0.conv", delta=0.0)
    targets = default_targets(a_result([group, alone], spec=spec_of(PruningConfig(), 0.5)))
    assert targets["stem"] == targets["head"] < targets["stage.0.conv"]


def test_layers_without_a_figure_have_no_target():
    failed = a_measurement("stem", status=Status.FAILED, changes=())
    assert set(default_targets(a_result([failed, a_measurement("head")]))) == {"head"}
    assert default_targets(a_result([failed])) == {}
    assert default_targets(a_result([a_measurement("stem", changes=(a_change(float("nan")),))])) == {}


def test_a_quick_run_is_aimed_by_the_metric_it_has():
    estimates = tuple(
        a_measurement(layer, estimated=True, changes=(a_change(order / 10, metric="kl"),))
        for order, layer in enumerate(LAYERS)
    )
    targets = default_targets(a_result(estimates=estimates))
    assert sorted(targets, key=targets.get) == list(LAYERS)[::-1]


def test_semi_structured_sparsity_is_half_everywhere():
    spec = spec_of(SparsityConfig(granularity="2:4"), 0.5)
    result = a_result([a_measurement(layer, delta=order / 10) for order, layer in enumerate(LAYERS)], spec=spec)
    assert default_targets(result) == dict.fromkeys(LAYERS, 50.0)


@pytest.mark.parametrize(("levels", "average"), [((8, 4, 2), 4), ((4,), 4), ((8,), 8)])
def test_bits_average_to_four_or_the_nearest_measured(levels, average):
    measurements = [
        a_measurement(layer, float(bits), delta=(order + 1) * (9 - bits) / 100)
        for order, layer in enumerate(LAYERS)
        for bits in levels
    ]
    targets = default_targets(a_result(measurements, spec=spec_of(QuantizationConfig(), *levels)))
    assert set(targets) == set(LAYERS)
    assert weighted_mean(targets) <= average + 1e-5
    assert all(bits in (32, *range(min(levels), max(levels) + 1)) for bits in targets.values())
