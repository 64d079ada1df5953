"""What people call the finer choices of each compression."""

from __future__ import annotations

from senseapp.spec import CompressionConfig, PruningConfig, SparsityConfig
from senseapp.spec.compression import (
    ActivationObserver,
    NumberFormat,
    PruningCriterion,
    SparsityCriterion,
    SparsityGranularity,
)

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
    if isinstance(config, SparsityConfig):
        return {
            "Granularity": SPARSITY_GRANULARITIES[config.granularity],
            "Criterion": SPARSITY_CRITERIA[config.criterion],
        }
    if isinstance(config, PruningConfig):
        return {"Criterion": PRUNING_CRITERIA[config.criterion]}
    return {
        "Number format": NUMBER_FORMATS[config.number_format],
        "Scale": "One per channel" if config.granularity == "channel" else "One per layer",
        "Activations": f"Quantized too; range: {OBSERVERS[config.observer]}" if config.activations else "Left alone",
    }
