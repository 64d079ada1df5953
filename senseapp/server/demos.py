"""Demo runs, complete with model and images."""

from __future__ import annotations

from senseapp.compressions import QuantizationConfig
from senseapp.records.spec import NUM_MEASURED_PHOTOGRAPHS, DataSpec, ModelSpec, RunSpec, SensitivitySpec

PHOTOGRAPHS_DEMO = RunSpec(
    model=ModelSpec(library="demo", name="efficientnet_lite0"),
    data=DataSpec(kind="photographs"),
    sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(4, 8), num_samples=NUM_MEASURED_PHOTOGRAPHS),
)
"""The second demo: EfficientNet-Lite0 on photographs, without a download."""
