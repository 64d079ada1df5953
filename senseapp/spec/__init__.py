"""What a person asks for, as frozen values with a tagged JSON form."""

from senseapp.compressions import (
    CompressionConfig,
    PruningConfig,
    QuantizationConfig,
    SparsityConfig,
    parse_numbers,
)
from senseapp.spec.codec import decode, dumps, encode, loads
from senseapp.spec.image_sets import IMAGE_SETS, ImageSetFacts
from senseapp.spec.run import (
    LABEL_FREE_METRICS,
    WITHOUT_LABELS,
    DataSpec,
    MetricName,
    ModelSpec,
    RunSpec,
    SensitivitySpec,
)

__all__ = [
    "IMAGE_SETS",
    "LABEL_FREE_METRICS",
    "WITHOUT_LABELS",
    "CompressionConfig",
    "DataSpec",
    "ImageSetFacts",
    "MetricName",
    "ModelSpec",
    "PruningConfig",
    "QuantizationConfig",
    "RunSpec",
    "SensitivitySpec",
    "SparsityConfig",
    "decode",
    "dumps",
    "encode",
    "loads",
    "parse_numbers",
]
