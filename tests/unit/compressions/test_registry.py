"""Scales of levels, options of settings, and files of settings."""

import json
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from senseapp import descriptions
from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidFile, InvalidSpec
from senseapp.descriptions import BitScale, LevelScale, options_of
from senseapp.records.spec import RunSpec, SensitivitySpec

ALL = descriptions.all_descriptions()
FRACTION = LevelScale(noun="sparsity", axis="Zeros (%)")
BITS = BitScale(noun="quantization", axis="Bits")


def test_they_are_offered_in_this_order_and_applied_in_another():
    assert descriptions.names() == ("sparsity", "pruning", "quantization")
    assert [each.name for each in sorted(ALL, key=lambda each: each.order)] == ["pruning", "sparsity", "quantization"]


def test_an_unknown_one_names_those_there_are():
    with pytest.raises(InvalidSpec, match="one of sparsity, pruning, quantization, got 'folding'"):
        descriptions.get("folding")


@pytest.mark.parametrize("description", ALL, ids=lambda each: each.name)
def test_every_option_names_each_value_that_its_type_has(description):
    types = get_type_hints(description.config)
    options = options_of(description.config)
    assert list(options) == [field.name for field in fields(description.config)]
    for name, option in options.items():
        assert set(option.choices) == set(get_args(types[name]) or (True, False))
        assert option.label
        assert option.title
        assert option.help.endswith(".")
        assert len(option.choices) == 2 or not option.switch


@pytest.mark.parametrize("description", ALL, ids=lambda each: each.name)
def test_the_levels_offered_can_be_measured(description):
    scale = description.scale
    description.config().check_levels(scale.choices)
    assert list(scale.choices) == scale.sorted(scale.choices)
    assert set(scale.default) <= set(scale.choices)
    assert scale.parse(scale.example, what="Levels") == tuple(scale.sorted(scale.parse(scale.example, what="Levels")))
    assert not scale.allows(scale.untouched)
    assert all(scale.strength(level) > scale.strength(scale.untouched) for level in scale.choices)


def test_levels_as_people_say_them():
    assert FRACTION.texts((0.75, 0.25, 0.5)) == "25, 50, 75 %"
    assert BITS.texts((2, 8, 4)) == "8, 4, 2 bits"
    assert (FRACTION.text(0.07), FRACTION.reached_text(1 / 3)) == ("7 %", "33.3 %")
    assert (BITS.text(4.0), BITS.reached_text(4.0)) == ("4 bits", "4 bits")
    assert FRACTION.parse("7, 12.5", what="Levels") == (0.07, 0.125)
    assert FRACTION.parse("0.5, 12.5", what="Levels") == (0.005, 0.125)
    with pytest.raises(InvalidSpec, match=r"would be below 1 %\. For these shares write 50,75"):
        FRACTION.parse("0.5,0.75", what="Levels")
    assert BITS.parse("8,3", what="Levels") == (8.0, 3.0)


@given(st.integers(min_value=1, max_value=999_999))
def test_what_is_shown_means_the_level_that_it_was_shown_for(millionths):
    level = millionths / 1_000_000
    assert FRACTION.from_shown(FRACTION.shown(level)) == level


@pytest.mark.parametrize(
    ("config", "level", "others"),
    [
        (SparsityConfig(granularity="2:4"), 0.5, (0.25, 0.5)),
        (QuantizationConfig(number_format="fp8_e4m3"), 8.0, (8.0, 4.0)),
    ],
)
def test_settings_with_one_level_refuse_others(config, level, others):
    config.check_levels((level,))
    with pytest.raises(InvalidSpec, match="its only level is"):
        config.check_levels(others)


@pytest.mark.parametrize(
    ("stored", "config", "levels"),
    [
        ('{"granularity":"2:4","criterion":"wanda","type":"SparsityConfig"}',
         SparsityConfig(granularity="2:4", criterion="wanda"), (0.5,)),
        ('{"criterion":"lamp","type":"PruningConfig"}', PruningConfig(criterion="lamp"), (0.25, 0.5)),
        ('{"number_format":"int","granularity":"tensor","activations":true,"observer":"percentile",'
         '"type":"QuantizationConfig"}',
         QuantizationConfig(granularity="tensor", activations=True, observer="percentile"), (8.0, 4.0)),
    ],
)  # fmt: skip
def test_files_of_the_first_version_are_read_and_their_settings_written_alike(stored, config, levels):
    spec = RunSpec(sensitivity=SensitivitySpec(compression=config, levels=levels))
    written = json.loads(dumps(spec))
    assert json.loads(stored).items() <= written["data"]["sensitivity"]["compression"].items()
    written["data"]["sensitivity"]["compression"] = json.loads(stored)
    assert loads(json.dumps(written), RunSpec) == spec


@pytest.mark.parametrize(
    ("old", "new"), [('"PruningConfig"', '"FoldingConfig"'), ('"lamp"', '"taste"'), ('"criterion"', '"taste"')]
)
def test_settings_that_are_not_known_are_refused(old, new):
    spec = RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(criterion="lamp")))
    with pytest.raises(InvalidFile):
        loads(dumps(spec).replace(old, new), RunSpec)
