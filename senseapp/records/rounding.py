"""What rounding does to one layer, told apart by what is rounded: its weights, what it is given, or what it makes."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.core.codec import register
from senseapp.core.errors import InvalidSpec
from senseapp.metrics import METRICS, MetricChange

WEIGHT_BITS = range(2, 9)
ACTIVATION_BITS = (8, 16)
_SEEN = 0.1  # of what is notable: many layers are rounded together
_PARTS = {"weight": "weights", "given": "input", "made": "output"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingSettings:
    """Bits of weights and of activations, each a setting of its own: 8 and 8, 4 and 8, 8 and 16."""

    weight_bits: int = 8
    activation_bits: int = 8

    def __post_init__(self) -> None:
        if self.weight_bits not in WEIGHT_BITS or self.activation_bits not in ACTIVATION_BITS:
            raise InvalidSpec(
                f"Weights have {WEIGHT_BITS[0]} to {WEIGHT_BITS[-1]} bits, activations {ACTIVATION_BITS[0]} or "
                f"{ACTIVATION_BITS[1]}; got {self.weight_bits} and {self.activation_bits}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRounding:
    """Damage of rounding one part of one layer, everything else in float, measured on images that fitted nothing.

    Attributes:
        layer: its name, or that of the operation.
        weight, given, made: the change when only its weights, only its input or only its output are rounded; None where
            there is no such tensor to round.
    """

    layer: str
    weight: MetricChange | None
    given: MetricChange | None
    made: MetricChange | None

    def finding(self) -> str:
        """Return which parts do damage, of more than a tenth of what is notable, and which do not, in one sentence."""
        parts = {name: getattr(self, name) for name in _PARTS}
        known = {name: change.delta for name, change in parts.items() if change is not None}
        metric = next((change.metric for change in parts.values() if change is not None), None)
        least = _SEEN * METRICS[metric].notable if metric is not None else 0.0
        bad = [_PARTS[name] for name, delta in known.items() if not delta < least]
        fine = [_PARTS[name] for name, delta in known.items() if delta < least]
        if not bad:
            return f"{self.layer}: none of its {', '.join(fine)} does notable damage alone."
        kept = f"; its {' and '.join(fine)} can be rounded" if fine else ""
        return f"{self.layer}: rounding its {' and its '.join(bad)} does damage{kept}."


register(RoundingSettings)
register(LayerRounding)
