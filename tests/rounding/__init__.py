"""A compression from outside, as a contributor would write one: weights keep k significant binary digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from senseapp.descriptions import BitScale, CompressionConfig, CompressionDescription, Effect, LevelScale, option

RoundingMode = Literal["nearest", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingConfig(CompressionConfig):
    """Round each weight to k significant binary digits. A level is k."""

    kind: ClassVar[str] = "rounding"
    scale: ClassVar[LevelScale] = BitScale(
        noun="rounding", axis="Significant digits", choices=(12.0, 8.0, 6.0, 4.0, 2.0, 1.0), default=(8.0, 2.0, 1.0)
    )

    mode: RoundingMode = option(
        "nearest",
        label="Direction",
        help="Where a weight goes that lies between two neighbours.",
        choices={"nearest": "To the nearest", "down": "Towards zero"},
    )


ROUNDING = CompressionDescription(
    config=RoundingConfig,
    label="Rounding",
    line="Keep few significant digits",
    at="with {level} of its weights kept",
    levels_help="Number of significant binary digits of each weight.",
    amount="Digits",
    effect=Effect.BITS,
    order=3,
    compressor="tests.rounding.compressor:RoundingCompressor",
)
