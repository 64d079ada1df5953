"""Files of tools that take one fraction or percentage per layer: fasterai, Distiller, SparseML and Torch-Pruning."""

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from senseapp.compressions import SparsityConfig
from senseapp.core.registry import grouped
from senseapp.formats.base import ExportFormat, comments, fractions_by_layer, is_image_layer, noted
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule

_DISTILLER_PRUNER = "senseapp_levels"
# of the recipe: pruning takes two thirds of the epochs, fine-tuning the rest; people edit both
_SPARSEML_LAST_EPOCH = 60.0


def _percent_by_layer(schedule: Schedule, profile: ModelProfile, notes: Sequence[str]) -> str:
    """The Sparsifier takes percent and accepts 0.5 as half a percent, so fractions must never reach it."""
    shown = SparsityConfig.scale.shown
    return noted({layer: shown(fraction) for layer, fraction in fractions_by_layer(schedule).items()}, notes)


def _fraction_by_layer(schedule: Schedule, profile: ModelProfile, notes: Sequence[str]) -> str:
    """Fasterai's Pruner divides values above 1 by 100 and takes 1 for everything; ours always lie between 0 and 1."""
    return noted(fractions_by_layer(schedule), notes)


FASTERAI_SPARSIFIER = ExportFormat(
    name="fasterai-sparsifier",
    title="fasterai Sparsifier",
    reader="fasterai: Sparsifier(..., context='local', layer_type=(nn.Conv2d, nn.Linear)).sparsify_model; percent.",
    suffix=".fasterai-sparsifier.json",
    usage="""\
import json
from fasterai.core.criteria import large_final
from fasterai.sparse.sparsifier import Sparsifier
from torch import nn

percents = json.load(open("FILE"))
percents.pop("_notes", None)
sparsifier = Sparsifier(model, "weight", "local", large_final, layer_type=(nn.Conv2d, nn.Linear))
sparsifier.sparsify_model(percents)
""",
    compressions=("sparsity",),
    render=_percent_by_layer,
    reaches=is_image_layer,
    out_of_reach="layers other than Conv2d and Linear",
)
FASTERAI_PRUNER = ExportFormat(
    name="fasterai-pruner",
    title="fasterai Pruner",
    reader="fasterai: Pruner(model, pruning_ratio=json.load(open(FILE)), context='local', ...); fractions.",
    suffix=".fasterai-pruner.json",
    usage="""\
import json
from fasterai.core.criteria import large_final
from fasterai.prune.pruner import Pruner

ratios = json.load(open("FILE"))
ratios.pop("_notes", None)
Pruner(model, ratios, "local", large_final, example_inputs=images).prune_model()
""",
    compressions=("pruning",),
    render=_fraction_by_layer,
)
TORCH_PRUNING = ExportFormat(
    name="torch-pruning",
    title="Torch-Pruning",
    reader="Torch-Pruning: pruning_ratio_dict, by module; fractions of channels.",
    suffix=".torch-pruning.json",
    usage="""\
import json
import torch_pruning as tp

ratios = json.load(open("FILE"))
ratios.pop("_notes", None)
pruner = tp.pruner.BasePruner(
    model,
    images,
    importance=tp.importance.GroupMagnitudeImportance(p=2),
    pruning_ratio=0.0,
    pruning_ratio_dict={model.get_submodule(name): ratio for name, ratio in ratios.items()},
    num_heads={},
    in_channel_groups={},
    out_channel_groups={},
)
pruner.step()
""",
    compressions=("pruning",),
    render=_fraction_by_layer,
)


_DISTILLER_NAMES = (
    "Each weight stands under every name that it may have: its own, and that in the DataParallel that Distiller puts "
    "around a model on a GPU, or around its features alone (AlexNet, VGG). Names that do not occur are not used."
)


def _distiller(schedule: Schedule, profile: ModelProfile, notes: Sequence[str]) -> str:
    levels = {
        name: level
        for layer, level in fractions_by_layer(schedule).items()
        for name in _names_in_distiller(profile.layer(layer).parameter)
    }
    recipe = {
        "version": 1,
        "pruners": {_DISTILLER_PRUNER: {"class": "SparsityLevelParameterPruner", "levels": {**levels, "*": 0.0}}},
        "policies": [{"pruner": {"instance_name": _DISTILLER_PRUNER}, "epochs": [0]}],
    }
    return comments((*notes, _DISTILLER_NAMES)) + yaml.safe_dump(recipe, sort_keys=False)


def _names_in_distiller(parameter: str) -> list[str]:
    first, dot, rest = parameter.partition(".")
    inner = [f"{first}.module.{rest}"] if dot and first == "features" else []
    return [parameter, f"module.{parameter}", *inner]


DISTILLER = ExportFormat(
    name="distiller",
    title="Distiller",
    is_retired=True,
    reader="Distiller: compress_classifier.py --compress FILE; fractions by parameter name, applied at epoch 0.",
    suffix=".distiller.yaml",
    usage="""\
import distiller
import torch

optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
scheduler = distiller.file_config(model, optimizer, "FILE")
scheduler.on_epoch_begin(0)
scheduler.mask_all_weights()
""",
    compressions=("sparsity",),
    render=_distiller,
)


@dataclass(frozen=True, slots=True)
class _Modifier:
    """A mapping written with the tag of its modifier class, as ``!GMPruningModifier``."""

    name: str
    settings: dict[str, object]


class _SparsemlDumper(yaml.SafeDumper):
    """YAML dumper with modifiers; a class of its own, so that the program's safe dumper is not changed."""


_SparsemlDumper.add_representer(
    _Modifier, lambda dumper, modifier: dumper.represent_mapping(f"!{modifier.name}", modifier.settings)
)


def _sparseml(schedule: Schedule, profile: ModelProfile, notes: Sequence[str]) -> str:
    """Write one gradual magnitude pruning modifier per distinct sparsity."""
    fractions = fractions_by_layer(schedule)
    by_sparsity = grouped((sparsity, profile.layer(layer).parameter) for layer, sparsity in fractions.items())
    modifiers = [_Modifier("EpochRangeModifier", {"start_epoch": 0.0, "end_epoch": _SPARSEML_LAST_EPOCH})]
    for sparsity in sorted(by_sparsity):
        settings: dict[str, object] = {
            "start_epoch": 0.0,
            "end_epoch": _SPARSEML_LAST_EPOCH * 2 / 3,
            "update_frequency": 1.0,
            "init_sparsity": min(0.05, sparsity),  # as in the sample of GMPruningModifier's documentation
            "final_sparsity": sparsity,
            "mask_type": "unstructured",
            "params": by_sparsity[sparsity],
        }
        modifiers.append(_Modifier("GMPruningModifier", settings))
    return comments(notes) + yaml.dump({"modifiers": modifiers}, Dumper=_SparsemlDumper, sort_keys=False)


SPARSEML = ExportFormat(
    name="sparseml",
    title="SparseML",
    is_retired=True,
    reader="SparseML: ScheduledModifierManager.from_yaml(FILE); fractions by parameter name, over 60 epochs to edit.",
    suffix=".sparseml.yaml",
    usage="""\
# Python 3.8 to 3.11, torch up to 2.1: pip install "sparseml[torch]==1.7.0" "sparsezoo==1.7.0"
import torch
from sparseml.pytorch.optim import ScheduledModifierManager

optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
manager = ScheduledModifierManager.from_yaml("FILE")
optimizer = manager.modify(model, optimizer, steps_per_epoch=1)  # batches of an epoch
for epoch in range(manager.max_epochs):  # your training goes here; weights are zeroed gradually
    optimizer.step()
manager.finalize(model)
""",
    compressions=("sparsity",),
    render=_sparseml,
)
