"""The three compressions as values. Behaviour is registered against these types, in ``senseapp.transforms``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from senseapp.errors import InvalidSpec
from senseapp.spec.codec import register_union
from senseapp.spec.levels import check_bits, check_fractions

SparsityGranularity = Literal["weight", "kernel", "filter", "channel", "row", "column", "2:4"]
SparsityCriterion = Literal["magnitude", "squared_magnitude", "random", "wanda"]
PruningCriterion = Literal["magnitude", "magnitude_l1", "lamp", "fpgm", "bn_scale", "random"]
NumberFormat = Literal["int", "fp8_e4m3"]
QuantizationGranularity = Literal["channel", "tensor"]
ActivationObserver = Literal["minmax", "percentile", "mse"]


def _require_member(value: str, allowed: object, *, what: str) -> None:
    names = get_args(allowed)
    if value not in names:
        raise InvalidSpec(f"{what} must be one of {', '.join(names)}, got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsityConfig:
    """Set the least important weights of one layer to zero. A level is the fraction of zeros.

    For a convolution weight of shape (O, I, kH, kW) the unit that is zeroed whole is, by granularity:
    ``weight`` one number; ``kernel`` one (kH, kW) slice; ``filter`` one (I, kH, kW) slice, an output channel;
    ``channel`` one (O, kH, kW) slice, an input channel; ``row`` and ``column`` one row or column inside each
    kernel; ``2:4`` the two smaller of every four weights along the input axis, a level of exactly 0.5.
    A linear weight (O, I) is treated as (O, I, 1, 1).
    """

    kind: ClassVar[str] = "sparsity"

    granularity: SparsityGranularity = "weight"
    criterion: SparsityCriterion = "magnitude"

    def __post_init__(self) -> None:
        _require_member(self.granularity, SparsityGranularity, what="Sparsity granularity")
        _require_member(self.criterion, SparsityCriterion, what="Sparsity criterion")

    def check_levels(self, levels: Sequence[float]) -> None:
        """Raise InvalidSpec unless every level is a fraction that this granularity can reach."""
        check_fractions(levels, what="sparsity")
        if self.granularity == "2:4" and tuple(levels) != (0.5,):
            raise InvalidSpec("2:4 sparsity zeroes exactly half of the weights: its only level is 50.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningConfig:
    """Remove the least important output channels of a coupled group. A level is the fraction removed.

    ``criterion`` names an importance of torch-pruning: L2 (``magnitude``) or L1 norm of the group, LAMP, FPGM
    (distance to the geometric median), the scale of the BatchNorm that follows, or seeded random.
    Attention heads are removed whole.
    """

    kind: ClassVar[str] = "pruning"

    criterion: PruningCriterion = "magnitude"

    def __post_init__(self) -> None:
        _require_member(self.criterion, PruningCriterion, what="Pruning criterion")

    def check_levels(self, levels: Sequence[float]) -> None:
        """Raise InvalidSpec unless every level is a fraction strictly between 0 and 1."""
        check_fractions(levels, what="pruning")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
    """Round the weights of one layer to few bits (and its input, on request). A level is the number of bits.

    ``int`` is symmetric: b bits give the grid −(2^(b−1) − 1) … 2^(b−1) − 1 times a scale, one scale per output
    channel or one per tensor. ``fp8_e4m3`` is the 8-bit float format with 4 exponent and 3 mantissa bits.
    Activation ranges come from calibration images, through ``observer``, never from the images measured.
    """

    kind: ClassVar[str] = "quantization"

    number_format: NumberFormat = "int"
    granularity: QuantizationGranularity = "channel"
    activations: bool = False
    observer: ActivationObserver = "mse"

    def __post_init__(self) -> None:
        _require_member(self.number_format, NumberFormat, what="Number format")
        _require_member(self.granularity, QuantizationGranularity, what="Quantization granularity")
        _require_member(self.observer, ActivationObserver, what="Activation observer")

    def check_levels(self, levels: Sequence[float]) -> None:
        """Raise InvalidSpec unless every level is a number of bits that this format has."""
        check_bits(levels)
        if self.number_format == "fp8_e4m3" and tuple(levels) != (8.0,):
            raise InvalidSpec("The fp8_e4m3 format always has 8 bits: its only level is 8.")


CompressionConfig: TypeAlias = SparsityConfig | PruningConfig | QuantizationConfig
register_union(CompressionConfig)
