"""Sending images to a device: what is asked of torch, on a card that is made up."""

from __future__ import annotations

import pytest
import torch

from senseapp.measure.context import to_device


class Asked:
    """Stands in for a batch, and notes what is asked of it."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.calls: list[object] = []

    def pin_memory(self) -> Asked:
        self.calls.append("pin_memory")
        return self

    def to(self, device: torch.device, **options: bool) -> Asked:
        self.calls.append((str(device), options))
        return self


@pytest.mark.parametrize(
    ("lies_on", "wanted", "calls"),
    [
        ("cpu", "cuda:1", ["pin_memory", ("cuda:1", {"non_blocking": True})]),
        ("cuda:1", "cuda:1", [("cuda:1", {})]),
        ("cpu", "mps", [("mps", {})]),
        ("cpu", "cpu", [("cpu", {})]),
    ],
)
def test_only_a_card_of_cuda_copies_by_itself(lies_on: str, wanted: str, calls: list[object]) -> None:
    batch = Asked(lies_on)
    assert to_device(batch, torch.device(wanted)) is batch  # type: ignore[arg-type, comparison-overlap]
    assert batch.calls == calls


def test_nothing_is_copied_where_it_lies_already() -> None:
    batch = torch.ones(2, 3, 4, 4)
    assert to_device(batch, torch.device("cpu")) is batch
