"""Every target format by name; a new one is one file and one line here."""

from __future__ import annotations

from senseapp.core.errors import InvalidSpec
from senseapp.schedules.export.base import ExportFormat
from senseapp.schedules.export.config_formats import MODELOPT, NNI2, NNI3, TORCHAO
from senseapp.schedules.export.fraction_formats import (
    DISTILLER,
    FASTERAI_PRUNER,
    FASTERAI_SPARSIFIER,
    SPARSEML,
    TORCH_PRUNING,
)
from senseapp.schedules.export.model_explorer import MODEL_EXPLORER
from senseapp.schedules.export.plain import CSV, JSON, YAML

FORMATS: dict[str, ExportFormat] = {
    target.name: target
    for target in (
        JSON,
        CSV,
        YAML,
        FASTERAI_SPARSIFIER,
        FASTERAI_PRUNER,
        DISTILLER,
        SPARSEML,
        NNI2,
        NNI3,
        TORCH_PRUNING,
        TORCHAO,
        MODELOPT,
        MODEL_EXPLORER,
    )
}


def export_format(name: str) -> ExportFormat:
    """Return the format called ``name``; raise InvalidSpec, with the names there are, if there is none."""
    if name not in FORMATS:
        raise InvalidSpec(f"The format must be one of {', '.join(FORMATS)}, or zip for all of them, got {name!r}.")
    return FORMATS[name]
