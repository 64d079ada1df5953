"""Distiller's compression schedule: one level pruner over parameter names, in fractions."""

from __future__ import annotations

import yaml

from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, fractions_by_layer

_PRUNER = "senseapp_levels"


def _render(schedule: Schedule, profile: ModelProfile) -> str:
    levels = {profile.layer(layer).parameter: level for layer, level in fractions_by_layer(schedule).items()}
    recipe = {
        "version": 1,
        "pruners": {_PRUNER: {"class": "SparsityLevelParameterPruner", "levels": {**levels, "*": 0.0}}},
        "policies": [{"pruner": {"instance_name": _PRUNER}, "epochs": [0]}],
    }
    return yaml.safe_dump(recipe, sort_keys=False)


DISTILLER = ExportFormat(
    name="distiller",
    title="Distiller",
    reader="Distiller: compress_classifier.py --compress FILE; fractions by parameter name, applied at epoch 0.",
    suffix=".distiller.yaml",
    compressions=("sparsity",),
    render=_render,
)
