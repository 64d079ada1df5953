"""Which tensor of which layer to look at on its quantization grid, and what its values should matter to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from senseapp.compressions import QuantizationConfig
from senseapp.errors import InvalidSpec
from senseapp.spec.codec import register

HistogramTensor = Literal["weights", "activations"]
HistogramObjective = Literal["none", "output", "loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSpec:
    """One histogram.

    Attributes:
        layer: dotted module name.
        tensor: its weights, or the activations that it takes in.
        bits: 2 to 8.
        per_channel: one scale per channel rather than one for the tensor.
        fold: fold a BatchNorm that follows into the layer first, so that weights are seen as they will be deployed.
        objective: what is back-propagated: the task's score of each image (``output``), its loss with the
            label (``loss``), or nothing (``none``), which needs no backward pass and sets no sensitivities.
        num_images: most images to look at.
    """

    layer: str
    tensor: HistogramTensor = "weights"
    bits: int = 8
    per_channel: bool = False
    fold: bool = False
    objective: HistogramObjective = "output"
    num_images: int = 64

    def __post_init__(self) -> None:
        QuantizationConfig.scale.check((self.bits,))
        for value, allowed, what in (
            (self.tensor, HistogramTensor, "The tensor of a histogram"),
            (self.objective, HistogramObjective, "The objective of a histogram"),
        ):
            if value not in get_args(allowed):
                raise InvalidSpec(f"{what} must be one of {', '.join(get_args(allowed))}, got {value!r}.")
        if self.num_images < 1:
            raise InvalidSpec(f"A histogram looks at 1 image or more, got {self.num_images}.")


register(HistogramSpec)
