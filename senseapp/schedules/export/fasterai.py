"""fasterai's two dictionaries, whose units differ: percent for the Sparsifier, fractions for the Pruner."""

from __future__ import annotations

import json

from senseapp.compressions import SparsityConfig
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, fractions_by_layer


def _render_sparsifier(schedule: Schedule, profile: ModelProfile) -> str:
    """The Sparsifier takes percent and accepts 0.5 as half a percent, so fractions must never reach it."""
    shown = SparsityConfig.scale.shown
    return _dumps({layer: shown(fraction) for layer, fraction in fractions_by_layer(schedule).items()})


def _render_pruner(schedule: Schedule, profile: ModelProfile) -> str:
    """The Pruner divides values above 1 by 100 and takes 1 for everything; ours always lie between 0 and 1."""
    return _dumps(fractions_by_layer(schedule))


def _dumps(targets: dict[str, float]) -> str:
    return json.dumps(targets, indent=2, allow_nan=False) + "\n"


FASTERAI_SPARSIFIER = ExportFormat(
    name="fasterai-sparsifier",
    title="fasterai Sparsifier",
    reader="fasterai: Sparsifier(..., context='local', layer_type=(nn.Conv2d, nn.Linear)).sparsify_model; percent.",
    suffix=".fasterai-sparsifier.json",
    compressions=("sparsity",),
    render=_render_sparsifier,
)
FASTERAI_PRUNER = ExportFormat(
    name="fasterai-pruner",
    title="fasterai Pruner",
    reader="fasterai: Pruner(model, pruning_ratio=json.load(open(FILE)), context='local', ...); fractions.",
    suffix=".fasterai-pruner.json",
    compressions=("pruning",),
    render=_render_pruner,
)
