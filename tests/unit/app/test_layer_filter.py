"""Which layers are drawn."""

from __future__ import annotations

import pytest

from senseapp.app.results.layer_side import fitting_rows, most_fragile
from senseapp.views.frames.results import measurement_frame
from tests.pages.records import FRAGILE, NAMES, NOT_PRUNABLE, result

FRAME = measurement_frame(result(), "top1")


def names(**asked: object) -> list[str]:
    return list(dict.fromkeys(fitting_rows(FRAME, **asked)["layer"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, list(NAMES)),
        ({"name": "conv1"}, ["conv1", "layer1.0.conv1", FRAGILE]),
        ({"name": " CONV2 "}, ["layer1.0.conv2"]),
        ({"name": "layer?.*.conv1"}, ["layer1.0.conv1", FRAGILE]),
        ({"blocks": ("layer2",)}, [FRAGILE, NOT_PRUNABLE]),
        ({"blocks": ("layer1.0", "layer2.0")}, list(NAMES[1:5])),
        ({"types": ("Linear",)}, ["fc"]),
        ({"types": ("Conv2d",), "blocks": ("layer1",), "name": "2"}, ["layer1.0.conv2"]),
        ({"name": "nothing"}, []),
        ({"name": "[conv1"}, []),
    ],
)
def test_name_block_and_type_narrow_the_choice(asked: dict[str, object], found: list[str]) -> None:
    assert names(**asked) == found


def test_a_block_is_not_its_namesake_with_more_digits() -> None:
    frame = measurement_frame(result(names=("layer1.conv", "layer10.conv")), "top1")
    assert set(fitting_rows(frame, blocks=("layer1",))["layer"]) == {"layer1.conv"}


def test_a_coupled_group_passes_with_any_of_its_members() -> None:
    frame = FRAME.assign(members=[f"{layer}, twin" if layer == "fc" else layer for layer in FRAME["layer"]])
    assert set(fitting_rows(frame, name="twin")["layer"]) == {"fc"}


def test_the_most_fragile_come_in_network_order() -> None:
    assert most_fragile(FRAME, 0.5, 2) == [FRAGILE, "fc"]
    assert most_fragile(FRAME, 0.5, 99) == list(NAMES)
