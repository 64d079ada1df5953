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
    WITHOUT_LABELS,
    DataSpec,
    ModelSpec,
    RunSpec,
    SensitivitySpec,
)

__all__ = [
    "IMAGE_SETS",
    "WITHOUT_LABELS",
    "CompressionConfig",
    "DataSpec",
    "ImageSetFacts",
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
