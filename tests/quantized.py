"""A weight as quantization rounds it, for tests that compare it with others."""

from typing import Any

from torch import Tensor

from senseapp.compressions.quantization.grid import GRIDS, rounded_weight, scale_of


def quantized_weight(weight: Tensor, *, bits: int, **settings: Any) -> Tensor:
    """Return ``weight`` on its grid; ``settings`` are those of :func:`scale_of`."""
    grid = GRIDS[settings.get("number_format", "int")](bits)
    return rounded_weight(weight, scale_of(weight, bits=bits, **settings), grid)
