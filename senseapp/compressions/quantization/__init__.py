"""Quantization: the weights of a layer are stored with fewer bits."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from senseapp.descriptions.compressions import CompressionConfig, CompressionDescription, Effect, option
from senseapp.descriptions.levels import BitScale, LevelScale

NumberFormat = Literal["int", "fp8_e4m3"]
QuantizationGranularity = Literal["channel", "tensor"]
ActivationBits = Literal["same", "8", "16"]
ActivationObserver = Literal["minmax", "percentile", "mse", "entropy"]

_FORMATS: dict[NumberFormat, str] = {"int": "Integers", "fp8_e4m3": "8-bit float (E4M3)"}
_GRANULARITIES: dict[QuantizationGranularity, str] = {"channel": "One per channel", "tensor": "One per layer"}
_ACTIVATION_BITS: dict[ActivationBits, str] = {"same": "As many as the weights", "8": "8", "16": "16"}
_WIDEST = 16  # bits of an input
_OBSERVERS: dict[ActivationObserver, str] = {
    "mse": "Smallest error",
    "entropy": "Least information lost (KL)",
    "percentile": "Percentile",
    "minmax": "Smallest to largest",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig(CompressionConfig):
    """Round the weights of one layer to few bits (and its input, on request). A level is the number of bits.

    ``int`` is symmetric: b bits give the grid −(2^(b−1) − 1) … 2^(b−1) − 1 times a scale, one scale per output channel
    or one per tensor. ``fp8_e4m3`` is the 8-bit float format with 4 exponent and 3 mantissa bits. Activation ranges
    come from calibration images, by ``observer``, never from the images measured.
    """

    kind: ClassVar[str] = "quantization"
    scale: ClassVar[LevelScale] = BitScale(noun="quantization", axis="Bits per weight")

    number_format: NumberFormat = option(
        "int", label="Number format", help="The 8-bit float has one level: 8 bits.", choices=_FORMATS
    )
    granularity: QuantizationGranularity = option(
        "channel",
        label="One scale per channel",
        help="A scale of its own for each output channel; off: one for the whole layer, which costs more accuracy.",
        choices=_GRANULARITIES,
        switch=True,
        title="Scale",
        flag_of={"--per-tensor": "tensor"},
    )
    activations: bool = option(
        False,
        label="Quantize activations too",
        help="Also round the layer's input, with ranges from calibration images.",
        choices={True: "Quantized too", False: "Left alone"},
        switch=True,
        title="Activations",
        flag_of={"--activations": True},
    )
    activation_bits: ActivationBits = option(
        "same",
        label="Bits of activations",
        help="Processors that compute with 8 bits take weights of fewer bits and inputs of 8.",
        choices=_ACTIVATION_BITS,
        when=lambda values: bool(values["activations"]) and values["number_format"] == "int",
    )
    observer: ActivationObserver = option(
        "mse",
        label="Activation range",
        help="How the range is chosen from the calibration images; a range that ignores outliers is often better.",
        choices=_OBSERVERS,
        when=lambda values: bool(values["activations"]),
    )

    @property
    def only_level(self) -> tuple[float, str] | None:
        """8 bits, for the 8-bit float."""
        return None if self.number_format == "int" else (8.0, f"The {self.number_format} format always has 8 bits")

    @property
    def schedule_notes(self) -> tuple[str, ...]:
        """Differences from what schedule files assume: integers, one scale per output channel, inputs in float."""
        found = []
        if self.number_format != "int":
            found.append(f"Measured in {self.number_format}; schedule files say 8 bits and mean integers.")
        if self.granularity == "tensor":
            found.append("Measured with one scale per tensor; schedule files ask for one per output channel.")
        if self.activations:
            bits = f"{self.input_bits} bits" if self.input_bits else "as many bits as its weight"
            found.append(
                f"Measured with the input of each layer rounded to {bits}; schedule files set the bits of weights only."
            )
        return tuple(found)

    @property
    def variants(self) -> tuple[tuple[str, CompressionConfig], ...]:
        """Alternatives: a scale per channel; other input ranges; a wider input, or one in float."""
        found: list[tuple[str, CompressionConfig]] = []
        if self.granularity == "tensor":
            found.append(("One scale per channel", replace(self, granularity="channel")))
        if self.activations:
            found += [
                (f"Range of the input: {title.lower()}", replace(self, observer=name))
                for name, title in _OBSERVERS.items()
                if name != self.observer
            ]
            if self.number_format == "int" and self.input_bits != _WIDEST:
                found.append((f"Its input in {_WIDEST} bits", replace(self, activation_bits="16")))
            found.append(("Leave its input in float", replace(self, activations=False)))
        return tuple(found)

    @property
    def input_bits(self) -> int | None:
        """Bits of the input of every layer; None: the same as its weight."""
        return None if self.number_format != "int" or self.activation_bits == "same" else int(self.activation_bits)

    @property
    def scales_per_channel(self) -> bool:
        """False with one scale for the whole tensor."""
        return self.granularity == "channel"


QUANTIZATION = CompressionDescription(
    config=QuantizationConfig,
    label="Quantization",
    line="Store weights with fewer bits",
    in_titles="fewer bits",
    pays="It pays where memory is short, and on devices that compute with 8 bits.",
    at="with its weights in {level}",
    levels_help="Number of bits for each weight of a layer. Each level is measured on its own.",
    amount="Bits",
    effect=Effect.BITS,
    order=2,
    partners=("sparsity",),
    when_run={"activations": True},
    run_levels=(8.0,),
    compressor="senseapp.compressions.quantization.quantization:QuantizationCompressor",
)
