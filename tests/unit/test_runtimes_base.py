"""Times that are to hold when files are opened anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from senseapp.networks.network import Network
from senseapp.prove.int8_files import holds_time
from tests.toy_runtime import ToyRuntime


@dataclass
class Opening:
    seconds: float


@dataclass
class MoodyRuntime(ToyRuntime):
    """Its first file takes another time each time it is opened, its second one second."""

    moods: Sequence[float]
    _left: Iterator[float] = field(init=False)

    def __post_init__(self) -> None:
        self._left = iter(self.moods)

    def open(self, content: bytes, *, threads: int | None = None) -> Opening:  # type: ignore[override]
        return Opening(seconds=next(self._left) if content == b"file" else 1.0)

    def times(self, networks: Sequence[Network], images: Tensor, *, turns: int = 41) -> list[list[float]]:
        return [[network.seconds] * turns for network in networks]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("moods", "value", "high"),
    [((1.1,) * 5, 1.1, 1.1), ((1.1, 1.1, 1.25, 1.1, 1.12), 1.1, 1.25), ((1.0, 1.2, 1.3, 1.3, 1.2), 1.2, 1.3)],
)
def test_a_ratio_to_rely_on_is_of_several_openings(moods: Sequence[float], value: float, high: float) -> None:
    found = MoodyRuntime(moods).time_ratio_anew(b"file", b"other", torch.zeros(1, 1))
    assert found.value == pytest.approx(value)
    assert (found.low, found.high) == (min(moods), high)


@pytest.mark.parametrize(("moods", "holds"), [((1.1,) * 5, True), ((1.1, 1.1, 1.25, 1.1, 1.12), False)])
def test_a_file_keeps_to_a_time_in_every_opening(moods: Sequence[float], holds: bool) -> None:
    assert holds_time(MoodyRuntime(moods).time_ratio_anew(b"file", b"other", torch.zeros(1, 1)), 1.2) is holds
    assert not holds_time(MoodyRuntime((1.19,) * 5).time_ratio_anew(b"file", b"other", torch.zeros(1, 1)), 1.2)
