"""A SparseML recipe: one gradual magnitude pruning modifier per distinct sparsity."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, fractions_by_layer

_LAST_EPOCH = 60.0
_LAST_PRUNING_EPOCH = 40.0
_FIRST_SPARSITY = 0.05


class _Modifier(yaml.YAMLObject):
    """A mapping written with the tag of its modifier class, as ``!GMPruningModifier``."""

    def __init__(self, name: str, settings: Mapping[str, object]) -> None:
        self.name = name
        self.settings = dict(settings)


class _Dumper(yaml.SafeDumper):
    """Knows modifiers; kept apart so that the safe dumper of the rest of the program stays as it is."""


_Dumper.add_representer(
    _Modifier, lambda dumper, modifier: dumper.represent_mapping(f"!{modifier.name}", modifier.settings)
)


def _render(schedule: Schedule, profile: ModelProfile) -> str:
    by_sparsity: dict[float, list[str]] = {}
    for layer, sparsity in fractions_by_layer(schedule).items():
        by_sparsity.setdefault(sparsity, []).append(profile.layer(layer).parameter)
    modifiers = [_Modifier("EpochRangeModifier", {"start_epoch": 0.0, "end_epoch": _LAST_EPOCH})]
    modifiers += [_pruning(sparsity, by_sparsity[sparsity]) for sparsity in sorted(by_sparsity)]
    return yaml.dump({"modifiers": modifiers}, Dumper=_Dumper, sort_keys=False)


def _pruning(sparsity: float, parameters: list[str]) -> _Modifier:
    return _Modifier(
        "GMPruningModifier",
        {
            "start_epoch": 0.0,
            "end_epoch": _LAST_PRUNING_EPOCH,
            "update_frequency": 1.0,
            "init_sparsity": min(_FIRST_SPARSITY, sparsity),
            "final_sparsity": sparsity,
            "mask_type": "unstructured",
            "params": parameters,
        },
    )


SPARSEML = ExportFormat(
    name="sparseml",
    title="SparseML",
    reader="SparseML: ScheduledModifierManager.from_yaml(FILE); fractions by parameter name, over 60 epochs to edit.",
    suffix=".sparseml.yaml",
    compressions=("sparsity",),
    render=_render,
)
