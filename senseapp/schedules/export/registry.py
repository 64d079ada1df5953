"""Every target format by name; a new one is one file and one line here."""

from __future__ import annotations

from senseapp.core.errors import InvalidSpec
from senseapp.schedules.export.base import ExportFormat
from senseapp.schedules.export.distiller import DISTILLER
from senseapp.schedules.export.fasterai import FASTERAI_PRUNER, FASTERAI_SPARSIFIER
from senseapp.schedules.export.model_explorer import MODEL_EXPLORER
from senseapp.schedules.export.modelopt import MODELOPT
from senseapp.schedules.export.nni import NNI2, NNI3
from senseapp.schedules.export.plain import CSV, JSON, YAML
from senseapp.schedules.export.sparseml import SPARSEML
from senseapp.schedules.export.torch_pruning import TORCH_PRUNING
from senseapp.schedules.export.torchao import TORCHAO

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
    """Return the format called ``name``.

    Raises:
        InvalidSpec: there is none; names those there are.
    """
    if name not in FORMATS:
        raise InvalidSpec(f"The format must be one of {', '.join(FORMATS)}, or zip for all of them, got {name!r}.")
    return FORMATS[name]
