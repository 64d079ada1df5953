"""Times of operations in float and int8 from a short probe of this machine, and the prediction for a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from senseapp.core.codec import register

GlueKind = Literal[
    "add", "mul", "silu", "hardswish", "hardsigmoid", "sigmoid", "gelu", "softmax", "layer_norm", "pool", "matmul"
]
"""Operations between layers that take time of their own; ReLU and the like are computed with the layer before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """A layer as far as its time depends on it, for one image.

    Attributes:
        input_shape, output_shape: of input and output, without the batch axis.
        weight: shape of the weight, (out, in / groups, …).
    """

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    weight: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCost:
    """Seconds of a layer in float and in int8, alone, with its input and output in the same precision."""

    shape: LayerShape
    float_seconds: float
    int8_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueCost:
    """Seconds for each value that an operation returns, or for each product of ``matmul``, in float and in int8.

    In int8 they contain the roundings around an operation that the runtime computes in float.
    """

    kind: GlueKind
    float_seconds: float
    int8_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCosts:
    """Times of single operations in a runtime on this machine.

    Attributes:
        border_seconds: for each value of a tensor that goes from float to int8 or back.
    """

    layers: tuple[ShapeCost, ...]
    glue: tuple[GlueCost, ...] = ()
    border_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueVolume:
    """How many values an operation between layers returns for one image in all its calls; products of ``matmul``."""

    kind: GlueKind
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """Seconds that all layers or operations of one kind take, in float and in int8."""

    name: str
    float_seconds: float
    int8_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Prediction:
    """Predicted time of a network in int8, as a multiple of its time in float.

    Attributes:
        ratio, low, high: predicted, and an interval: of a network's shapes alone it holds nine of ten measured ratios,
            of a file that was made for the purpose it is that of the median of its turns.
        float_seconds, int8_seconds: predicted, of one call.
        costly: what takes most of the time in int8, the most first; empty where a file was timed.
        from_file: whether a file of the network in int8 was timed, made without a search.
        machine: processor and runtime.
        products: what the processor computes int8 products with: ``VNNI``, ``AMX`` or nothing of its own.
        bytes_per_second: that the memory was measured to copy.
    """

    ratio: float
    low: float
    high: float
    float_seconds: float
    int8_seconds: float
    costly: tuple[PartTime, ...]
    machine: str
    products: str
    bytes_per_second: float
    from_file: bool = False

    @property
    def sentence(self) -> str:
        """Whether int8 pays here, and about how much."""
        by = "timed on a first file of this network" if self.from_file else "predicted from the shapes of its layers"
        about = f"about {self.ratio:.2f} times the time of float ({self.low:.2f} to {self.high:.2f}), {by}."
        if self.high < 1:
            return f"Int8 pays here: {about}"
        if self.low >= 1:
            return f"Int8 does not pay here: {about} A file in int8 is smaller, and no quicker."
        return f"Whether int8 pays here is not clear: {about}"

    @property
    def machine_sentence(self) -> str:
        """What this machine has for int8."""
        has = f"multiplies 8 bits by {self.products}" if self.products else "has no instructions for products of 8 bits"
        return f"{self.machine}: the processor {has}, and the memory copies {self.bytes_per_second / 1e9:.1f} GB/s."


register(ProbedCosts)
register(Int8Prediction)
