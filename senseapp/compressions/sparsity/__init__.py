"""Sparsity: the least important weights of a layer are set to zero."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from senseapp.descriptions.compressions import CompressionConfig, CompressionDescription, Effect, option
from senseapp.descriptions.levels import LevelScale

SparsityGranularity = Literal["weight", "kernel", "filter", "channel", "row", "column", "2:4"]
SparsityCriterion = Literal["magnitude", "squared_magnitude", "random", "wanda"]

_GRANULARITIES: dict[SparsityGranularity, str] = {
    "weight": "Single weights",
    "kernel": "Kernels",
    "filter": "Filters (output channels)",
    "channel": "Input channels",
    "row": "Kernel rows",
    "column": "Kernel columns",
    "2:4": "2:4 (two of every four)",
}
_CRITERIA: dict[SparsityCriterion, str] = {
    "magnitude": "Magnitude",
    "squared_magnitude": "Squared magnitude",
    "wanda": "Wanda: magnitude times activation",
    "random": "Random (for comparison)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsityConfig(CompressionConfig):
    """Set the least important weights of one layer to zero. A level is the fraction of zeros.

    For a convolution weight of shape (O, I, kH, kW) the unit that is zeroed is, by granularity: ``weight`` one
    number; ``kernel`` one (kH, kW) slice; ``filter`` one (I, kH, kW) slice, an output channel; ``channel`` one (O, kH,
    kW) slice, an input channel; ``row`` and ``column`` one row or column inside each kernel; ``2:4`` the two smaller of
    every four weights along the input axis, a level of exactly 0.5. A linear weight (O, I) is treated as (O, I, 1, 1).
    """

    kind: ClassVar[str] = "sparsity"
    scale: ClassVar[LevelScale] = LevelScale(noun="sparsity", axis="Weights at zero (%)")

    granularity: SparsityGranularity = option(
        "weight",
        label="Granularity",
        help="What is set to zero as a whole. Coarser patterns run faster on common hardware and cost more accuracy. "
        "2:4 has one level: 50 %.",
        choices=_GRANULARITIES,
    )
    criterion: SparsityCriterion = option(
        "magnitude",
        label="Criterion",
        help="How the weights to zero are found. Wanda also looks at the images.",
        choices=_CRITERIA,
    )

    @property
    def only_level(self) -> tuple[float, str] | None:
        """0.5 for 2:4."""
        return (0.5, "2:4 sparsity zeroes exactly half of the weights") if self.granularity == "2:4" else None

    @property
    def schedule_notes(self) -> tuple[str, ...]:
        """The pattern, unless it is single weights."""
        if self.granularity == "weight":
            return ()
        return (f"Measured with {self.granularity} granularity, which most schedule files do not state.",)

    @property
    def whole_units(self) -> str:
        """Whole filters, of which a layer may have few."""
        return "Whole filters are set to zero" if self.granularity == "filter" else ""


SPARSITY = CompressionDescription(
    config=SparsityConfig,
    label="Sparsity",
    line="Set the smallest weights to zero",
    in_titles="zeros",
    pays="It pays where files are stored or sent: zeros compress well. Few devices compute faster for it.",
    at="with {level} of its weights at zero",
    levels_help="Share of a layer's weights that is set to zero. Each level is measured on its own.",
    amount="Zeros",
    effect=Effect.ZEROS,
    order=1,
    partners=("quantization",),
    compressor="senseapp.compressions.sparsity.sparsity:SparsityCompressor",
)
