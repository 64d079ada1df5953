"""Pruning: whole channels are removed from coupled layers."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from senseapp.descriptions.compressions import CompressionConfig, CompressionDescription, Effect, option
from senseapp.descriptions.levels import FRACTIONS, LevelScale

PruningCriterion = Literal["magnitude", "magnitude_l1", "lamp", "fpgm", "bn_scale", "least_error", "random"]

_CRITERIA: dict[PruningCriterion, str] = {
    "magnitude": "Magnitude (L2)",
    "magnitude_l1": "Magnitude (L1)",
    "lamp": "LAMP",
    "fpgm": "FPGM: distance to the median filter",
    "bn_scale": "BatchNorm scale",
    "least_error": "Least error left: what other channels tell of goes first",
    "random": "Random (for comparison)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningConfig(CompressionConfig):
    """Remove the least important output channels of a coupled group. A level is the fraction removed.

    ``criterion`` names an importance of torch-pruning: L2 (``magnitude``) or L1 norm of the group, LAMP, FPGM (distance
    to the geometric median), the scale of the BatchNorm that follows, or seeded random; or ``least_error``, the error
    that remains after least-squares compensation in the layers that read a channel. Attention heads are removed whole.
    """

    kind: ClassVar[str] = "pruning"
    scale: ClassVar[LevelScale] = LevelScale(
        noun="pruning", axis="Channels removed (%)", choices=FRACTIONS[:-1], default=(0.1, 0.3, 0.5)
    )

    criterion: PruningCriterion = option(
        "magnitude",
        label="Criterion",
        help="How the channels to remove are found, over all layers that must go together.",
        choices=_CRITERIA,
    )

    @property
    def whole_units(self) -> str:
        """Channels, of which a layer may have few."""
        return "Whole channels are removed"


PRUNING = CompressionDescription(
    config=PruningConfig,
    label="Pruning",
    line="Remove whole channels",
    in_titles="fewer channels",
    pays="It pays on every device: the network itself becomes smaller and faster.",
    at="with {level} of its channels removed",
    levels_help="Share of a layer's output channels that is removed. Layers that depend on each other go together.",
    amount="Removed",
    effect=Effect.CHANNELS,
    order=0,
    compressor="senseapp.compressions.pruning.pruning:PruningCompressor",
)
