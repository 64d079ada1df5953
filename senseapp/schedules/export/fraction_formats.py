"""Files of tools that take one fraction or percentage per layer: fasterai, Distiller, SparseML and Torch-Pruning."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from senseapp.compressions import SparsityConfig
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, fractions_by_layer, json_text

_DISTILLER_PRUNER = "senseapp_levels"
_SPARSEML_LAST_EPOCH = 60.0
_SPARSEML_LAST_PRUNING_EPOCH = 40.0
_SPARSEML_FIRST_SPARSITY = 0.05
_LOADER = '''"""Per-layer ratios for torch_pruning.BasePruner(..., pruning_ratio=0.0, pruning_ratio_dict=ratios)."""
import json

def load_ratios(model, path):
    """Return {module: fraction of its output channels to remove}; pass every other prunable layer as ignored."""
    with open(path) as file:
        return {model.get_submodule(name): ratio for name, ratio in json.load(file).items()}
'''


def _percent_by_layer(schedule: Schedule, profile: ModelProfile) -> str:
    """The Sparsifier takes percent and accepts 0.5 as half a percent, so fractions must never reach it."""
    shown = SparsityConfig.scale.shown
    return json_text({layer: shown(fraction) for layer, fraction in fractions_by_layer(schedule).items()})


def _fraction_by_layer(schedule: Schedule, profile: ModelProfile) -> str:
    """Fasterai's Pruner divides values above 1 by 100 and takes 1 for everything; ours always lie between 0 and 1."""
    return json_text(fractions_by_layer(schedule))


FASTERAI_SPARSIFIER = ExportFormat(
    name="fasterai-sparsifier",
    title="fasterai Sparsifier",
    reader="fasterai: Sparsifier(..., context='local', layer_type=(nn.Conv2d, nn.Linear)).sparsify_model; percent.",
    suffix=".fasterai-sparsifier.json",
    compressions=("sparsity",),
    render=_percent_by_layer,
)
FASTERAI_PRUNER = ExportFormat(
    name="fasterai-pruner",
    title="fasterai Pruner",
    reader="fasterai: Pruner(model, pruning_ratio=json.load(open(FILE)), context='local', ...); fractions.",
    suffix=".fasterai-pruner.json",
    compressions=("pruning",),
    render=_fraction_by_layer,
)
TORCH_PRUNING = ExportFormat(
    name="torch-pruning",
    title="Torch-Pruning",
    reader="Torch-Pruning: pruning_ratio_dict, through the five-line loader beside it; fractions of channels.",
    suffix=".torch-pruning.json",
    compressions=("pruning",),
    render=_fraction_by_layer,
    companion=("load_torch_pruning_ratios.py", _LOADER),
)


def _distiller(schedule: Schedule, profile: ModelProfile) -> str:
    levels = {profile.layer(layer).parameter: level for layer, level in fractions_by_layer(schedule).items()}
    recipe = {
        "version": 1,
        "pruners": {_DISTILLER_PRUNER: {"class": "SparsityLevelParameterPruner", "levels": {**levels, "*": 0.0}}},
        "policies": [{"pruner": {"instance_name": _DISTILLER_PRUNER}, "epochs": [0]}],
    }
    return yaml.safe_dump(recipe, sort_keys=False)


DISTILLER = ExportFormat(
    name="distiller",
    title="Distiller",
    reader="Distiller: compress_classifier.py --compress FILE; fractions by parameter name, applied at epoch 0.",
    suffix=".distiller.yaml",
    compressions=("sparsity",),
    render=_distiller,
)


@dataclass(frozen=True, slots=True)
class _Modifier:
    """A mapping written with the tag of its modifier class, as ``!GMPruningModifier``."""

    name: str
    settings: dict[str, object]


class _SparsemlDumper(yaml.SafeDumper):
    """Knows modifiers; kept apart so that the safe dumper of the rest of the program stays as it is."""


_SparsemlDumper.add_representer(
    _Modifier, lambda dumper, modifier: dumper.represent_mapping(f"!{modifier.name}", modifier.settings)
)


def _sparseml(schedule: Schedule, profile: ModelProfile) -> str:
    """Write one gradual magnitude pruning modifier per distinct sparsity."""
    by_sparsity: dict[float, list[str]] = {}
    for layer, sparsity in fractions_by_layer(schedule).items():
        by_sparsity.setdefault(sparsity, []).append(profile.layer(layer).parameter)
    modifiers = [_Modifier("EpochRangeModifier", {"start_epoch": 0.0, "end_epoch": _SPARSEML_LAST_EPOCH})]
    for sparsity in sorted(by_sparsity):
        settings: dict[str, object] = {
            "start_epoch": 0.0,
            "end_epoch": _SPARSEML_LAST_PRUNING_EPOCH,
            "update_frequency": 1.0,
            "init_sparsity": min(_SPARSEML_FIRST_SPARSITY, sparsity),
            "final_sparsity": sparsity,
            "mask_type": "unstructured",
            "params": by_sparsity[sparsity],
        }
        modifiers.append(_Modifier("GMPruningModifier", settings))
    return yaml.dump({"modifiers": modifiers}, Dumper=_SparsemlDumper, sort_keys=False)


SPARSEML = ExportFormat(
    name="sparseml",
    title="SparseML",
    reader="SparseML: ScheduledModifierManager.from_yaml(FILE); fractions by parameter name, over 60 epochs to edit.",
    suffix=".sparseml.yaml",
    compressions=("sparsity",),
    render=_sparseml,
)
