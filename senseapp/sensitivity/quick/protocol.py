"""What the scan asks of each kind of compression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor, nn

from senseapp.sensitivity.quick.recorder import LayerCall
from senseapp.transforms import Applied, Target

Key: TypeAlias = tuple[str, float]
"""The layer of a target, and a level."""


class Responses(Protocol):
    """Inner products of the output's change with the pull, for one kind of compression.

    Attributes:
        watched: modules to record, by name.
        at_inputs: whether gradients are wanted at the modules' inputs rather than their outputs.
        followers: modules to record after each call of a watched one, by its name.
    """

    watched: dict[str, nn.Module]
    at_inputs: bool
    followers: Mapping[str, Sequence[Sequence[nn.Module]]]

    def prepare(self, targets: Sequence[Target], levels: Sequence[float]) -> dict[Key, Applied]:
        """Make ready every target and level that can be estimated, and say what each would truly do."""
        ...

    def observe(self, name: str, calls: Sequence[LayerCall], num_images: int, num_directions: int) -> None:
        """Take in all calls of the watched module ``name`` for a batch, with their gradients."""
        ...

    def collect(self) -> dict[Key, Tensor]:
        """Return the batch's inner products of all that the observed calls show, (N, directions), and forget them."""
        ...
