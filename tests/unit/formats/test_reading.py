import json
from dataclasses import replace

import pytest
import yaml

from senseapp.core.errors import InvalidSchedule
from senseapp.formats.plain import read_schedule
from senseapp.formats.registry import FORMATS
from senseapp.records.schedule import Limits, ResourceBudget
from senseapp.solve.methods import make_schedule, mixed_schedule
from tests.schedule_cases import SIZES, profile_of, quantized_run, sparse_run

PROFILE = profile_of(SIZES)
SCHEDULE = make_schedule(
    sparse_run(), budget=ResourceBudget(kind="params", target=0.6), limits=Limits(fixed={"conv1": 0.123456789, "fc": 0})
)
BITS = make_schedule(quantized_run(), budget=ResourceBudget(kind="bits", target=4.5))
MIXED = mixed_schedule(sparse_run(), quantized_run(), budget=ResourceBudget(kind="bytes", target=0.9))


@pytest.mark.parametrize("schedule", [SCHEDULE, BITS, MIXED, replace(SCHEDULE, budget=None, notes=('ä: "x"',))])
@pytest.mark.parametrize("name", ["json", "yaml"])
def test_a_whole_schedule_comes_back_as_it_was(name, schedule):
    text = FORMATS[name].write(schedule, PROFILE)
    assert read_schedule(text, PROFILE) == schedule
    assert read_schedule(text.encode(), PROFILE) == schedule
    assert read_schedule(b"\xef\xbb\xbf" + text.encode(), PROFILE) == schedule


@pytest.mark.parametrize("schedule", [SCHEDULE, BITS, MIXED])
def test_csv_brings_the_rows_back(schedule):
    back = read_schedule(FORMATS["csv"].write(schedule, PROFILE), PROFILE)
    assert back.entries == schedule.entries
    assert back.method == "manual"
    assert back.model == "toy"
    assert back.predicted_damage == pytest.approx(schedule.predicted_damage)


def test_files_say_percent_and_bits():
    row = json.loads(FORMATS["json"].write(SCHEDULE, PROFILE))["layers"][0]
    assert (row["layer"], row["level"], row["unit"], row["locked"]) == ("conv1", 12.3456789, "percent", True)
    row = json.loads(FORMATS["json"].write(BITS, PROFILE))["layers"][0]
    assert row["unit"] == "bits"
    assert row["level"] == int(row["level"])
    header, first, *_ = FORMATS["csv"].write(SCHEDULE, PROFILE).splitlines()
    assert header == "layer,members,compression,level,unit,predicted_damage,locked"
    assert first.startswith("conv1,conv1,sparsity,12.3456789,percent,")


def test_group_members_come_back():
    entry = replace(SCHEDULE.entries[0], members=("conv1", "conv2"), compression="pruning")
    grouped = replace(SCHEDULE, entries=(entry,))
    for name in ("json", "yaml", "csv"):
        assert read_schedule(FORMATS[name].write(grouped, PROFILE), PROFILE).entries == (entry,)


def edited(**changes):
    payload = json.loads(FORMATS["json"].write(SCHEDULE, PROFILE))
    payload.update(changes)
    return payload


def edited_row(**changes):
    payload = edited()
    payload["layers"][0].update(changes)
    return json.dumps(payload)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (edited_row(layer="gone"), r"1 of its 5 layers do not exist in toy \(gone\)"),
        (edited_row(level=100), "above 0 %"),
        (edited_row(level=float("nan")), "NaN is no number"),
        (edited_row(level=10**4000), "must be a finite number, got"),
        (edited_row(level=True), "must be a finite number, got True"),
        (edited_row(locked="no"), "locked of conv1 must be true or false, got 'no'"),
        (json.dumps(edited(predicted_damage=10**400)), "predicted_damage must be a finite number"),
        (json.dumps(edited(achieved={"params": "inf"})), "params of achieved must be a finite number"),
        (json.dumps(edited(budget={"kind": "params", "target": 10**400})), "target of budget must be a finite"),
        (yaml.safe_dump(edited()).replace("version: 1", "version: 1" + ":1" * 2000), "version '1:1"),
        (yaml.safe_dump(edited()).replace("predicted_damage: 0.", "predicted_damage: 1" + ":1" * 2000 + "."), "finite"),
        (yaml.safe_dump(edited()).replace("locked: false", "locked: no"), "must be true or false, got 'no'"),
        (yaml.safe_dump(edited()).replace("locked: false", "locked: &a false"), "aliases"),
        (edited_row(level=4, unit="bits"), "must be given in percent"),
        (edited_row(compression="none", unit=""), "level must be 0"),
        (edited_row(compression="magic"), "must be one of"),
        (edited_row(predicted_damage="inf"), "finite"),
        (json.dumps(edited(version=2)), "version 2"),
        (json.dumps(edited(budget={"kind": "params", "target": 7})), "a fraction"),
        (json.dumps({key: value for key, value in edited().items() if key != "metric"}), "'metric' is missing"),
        ("{", "cannot be read"),
        ("", "starts with"),
        ("layer,members\nconv1,conv1\n", "has the columns"),
        ("layer,members,compression,level,unit,predicted_damage,locked\nconv1,conv1,sparsity,5\n", "Line 2"),
        (
            "layer,members,compression,level,unit,predicted_damage,locked\nconv1,conv1,sparsity,x,percent,0,no\n",
            "Line 2",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_one_sentence(text, reason):
    with pytest.raises(InvalidSchedule, match=reason) as caught:
        read_schedule(text, PROFILE)
    assert "\n" not in str(caught.value)


def test_yaml_cannot_build_objects():
    with pytest.raises(InvalidSchedule, match="cannot be read"):
        read_schedule("!!python/object/apply:os.getcwd []", PROFILE)
    assert yaml.safe_load(FORMATS["yaml"].write(SCHEDULE, PROFILE))["format"] == "senseapp-schedule"
