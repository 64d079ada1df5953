"""Torch-Pruning's ratios, by layer name, and the loader that turns names into modules."""

from __future__ import annotations

import json

from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, fractions_by_layer

_LOADER = '''"""Per-layer ratios for torch_pruning.BasePruner(..., pruning_ratio=0.0, pruning_ratio_dict=ratios)."""
import json

def load_ratios(model, path):
    """Return {module: fraction of its output channels to remove}; pass every other prunable layer as ignored."""
    with open(path) as file:
        return {model.get_submodule(name): ratio for name, ratio in json.load(file).items()}
'''


def _render(schedule: Schedule, profile: ModelProfile) -> str:
    return json.dumps(fractions_by_layer(schedule), indent=2, allow_nan=False) + "\n"


TORCH_PRUNING = ExportFormat(
    name="torch-pruning",
    title="Torch-Pruning",
    reader="Torch-Pruning: pruning_ratio_dict, through the five-line loader beside it; fractions of channels.",
    suffix=".torch-pruning.json",
    compressions=("pruning",),
    render=_render,
    companion=("load_torch_pruning_ratios.py", _LOADER),
)
