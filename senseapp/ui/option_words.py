"""What people call the finer choices of each compression."""

from __future__ import annotations

from dataclasses import asdict

from senseapp.compressions import options_of as options_of_settings
from senseapp.compressions.pruning import PruningCriterion
from senseapp.compressions.quantization import ActivationObserver, NumberFormat
from senseapp.compressions.sparsity import SparsityCriterion, SparsityGranularity
from senseapp.spec import CompressionConfig

SPARSITY_GRANULARITIES: dict[SparsityGranularity, str] = {
    "weight": "Single weights",
    "kernel": "Kernels",
    "filter": "Filters (output channels)",
    "channel": "Input channels",
    "row": "Kernel rows",
    "column": "Kernel columns",
    "2:4": "2:4 (two of every four)",
}
SPARSITY_CRITERIA: dict[SparsityCriterion, str] = {
    "magnitude": "Magnitude",
    "squared_magnitude": "Squared magnitude",
    "wanda": "Wanda: magnitude times activation",
    "random": "Random (for comparison)",
}
PRUNING_CRITERIA: dict[PruningCriterion, str] = {
    "magnitude": "Magnitude (L2)",
    "magnitude_l1": "Magnitude (L1)",
    "lamp": "LAMP",
    "fpgm": "FPGM: distance to the median filter",
    "bn_scale": "BatchNorm scale",
    "random": "Random (for comparison)",
}
NUMBER_FORMATS: dict[NumberFormat, str] = {"int": "Integers", "fp8_e4m3": "8-bit float (E4M3)"}
OBSERVERS: dict[ActivationObserver, str] = {
    "mse": "Smallest error",
    "percentile": "Percentile",
    "minmax": "Smallest to largest",
}


def options_of(config: CompressionConfig) -> dict[str, str]:
    """Return the finer choices of a compression, as label and value."""
    options, values = options_of_settings(config), asdict(config)  # type: ignore[call-overload]
    return {each.title: each.choices[values[name]] for name, each in options.items() if each.when(values)}
